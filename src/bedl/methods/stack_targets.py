"""The stack of real targets: a mixture of normals, and intervals that hold what they promise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bedl.methods.base import Method
from bedl.methods.stack_base import FAMILIAR, Stack
from bedl.methods.stacking import held_out_quantile, mixture_weights
from bedl.moments import Moments
from bedl.predictive import NormalMixturePredictive, Predictive
from bedl.special import normal_log_density

__all__ = ["TargetStack"]

SCALES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)  # factors on a member's variance
PARTS = ("mean", "data", "distributional", "model")


class TargetStack(Stack):
    """A stack for real targets.

    A component is a member with its variance multiplied by a scale: the weights of the pairs (group, scale) make the
    rows that were held out most likely, which stacks, scales and gives heavy tails in one convex problem.

    Args:
        members, folds, held, linear: as for `Stack`.
        n_targets: how many targets there are.

    Example:
        >>> import torch
        >>> from bedl.methods import Problem, registry
        >>> stack = registry.get("stack")(Problem("regression", 1, (3,)), folds=2)
        >>> len(stack.members), stack.predict(torch.zeros(5, 3)).mean.shape
        (4, torch.Size([5, 1]))
    """

    scales: Tensor
    scores: Tensor
    mass: Tensor

    def __init__(
        self,
        members: Sequence[Method],
        folds: int,
        held: int | None = None,
        linear: nn.Module | None = None,
        n_targets: int = 1,
    ):
        super().__init__(members, folds, held, linear)
        self.register_buffer("scales", torch.tensor(SCALES))
        equal = (self.scales == 1.0).to(self.scales) / self.n_groups
        self.register_buffer("weights", equal.repeat(self.n_groups, 1))  # shape: (groups, scales)
        for name in ("scores", "mass"):
            self.register_buffer(name, torch.empty(0, n_targets))  # shape: (rows, targets)
        self.register_buffer("familiar", torch.full((n_targets,), torch.inf))  # ignorance that rows like the data have

    # -- predicting -------------------------------------------------------------------------------
    def forward(self, x: Tensor | Moments) -> Predictive:
        """The mixture, in the members' present mode and with gradients. x: shape (n, *input)"""
        said = self._stacked(x, PARTS)
        if self.linear is not None:
            unknown = (said[2] + said[3])[:-1].mean((0, 1)) - self.familiar
            said[2] = torch.cat([said[2][:-1], said[2][-1:] + unknown.clamp_min(0.0)])
        mean, *parts = (part.permute(2, 3, 0, 1) for part in said)  # shapes: (n, T, groups, held)
        scaled = [(part[..., :, None, :] * self.scales[:, None]).flatten(-3) for part in parts]
        means = mean[..., :, None, :].expand(*mean.shape[:-1], len(self.scales), self.held_folds).flatten(-3)
        log_weights = (self.weights / self.held_folds).log()[..., None].expand(-1, -1, self.held_folds).flatten()
        data, distributional, model = scaled
        return NormalMixturePredictive(means, data, distributional, model, log_weights.expand(means.shape[0], 1, -1))

    def interval_factor(self, coverage: float) -> Tensor | None:
        if not len(self.scores):
            return None
        factor = held_out_quantile(self.scores, self.mass, coverage)
        normal = math.sqrt(2) * torch.special.erfinv(torch.tensor(coverage, dtype=torch.float64))
        few = torch.maximum(self.scores[-1], normal.to(self.scores))  # rows that cannot say it: the most that was seen
        return torch.where(factor.isfinite(), factor, few)

    def interval_spread(self, prediction: Any) -> Tensor:
        """That of one fold's members, by which rows held out were measured: what folds disagree about is not in it."""
        folds = (-1, self.held_folds)
        weights = prediction.log_weights.exp().unflatten(-1, folds) * self.held_folds
        means = prediction.means.unflatten(-1, folds)
        parts = (prediction.members_data, prediction.members_distributional, prediction.members_model)
        variances = sum(parts).unflatten(-1, folds)
        middle = (weights * means).sum(-2, keepdim=True)
        return (weights * (variances + (means - middle).square())).sum(-2).mean(-1).sqrt()

    # -- what the rows that were held out say -----------------------------------------------------
    @torch.no_grad()
    def finish(self, x: Tensor | Moments, y: Tensor, fold: Tensor, weight: Tensor | None = None) -> None:
        y = y.reshape(len(y), -1)
        if self.linear is not None:
            self.linear.fit(x, y, fold, weight)  # type: ignore[operator]
        rows, means, variances, unknown = [], [], [], []
        for some, (mean, data, distributional, model) in self._out_of_fold(x, fold, PARTS):
            rows.append(some)
            means.append(mean.permute(1, 2, 0).double())
            variances.append((data + distributional + model).permute(1, 2, 0).double())
            unknown.append((distributional + model)[: self.n_groups - 1].mean(0))  # shape: (n, T)
        held, variance = torch.cat(rows), torch.cat(variances)
        if self.linear is not None:
            ignorance = torch.cat(unknown)
            self.familiar.copy_(torch.quantile(ignorance, FAMILIAR, dim=0))
            variance[..., -1] += (ignorance - self.familiar).clamp_min(0.0)
        self._weigh(torch.cat(means), variance, y[held], None if weight is None else weight[held])

    def _weigh(self, mean: Tensor, variance: Tensor, y: Tensor, weight: Tensor | None) -> None:
        """Weights and interval scores of rows that were held out. mean, variance: shape (n, T, groups)"""
        y = y.to(mean)
        spread = variance[..., None] * self.scales.to(mean)  # shape: (n, T, groups, scales)
        log_densities = normal_log_density(y[..., None, None], mean[..., None], spread.log()).sum(1)
        weights = mixture_weights(log_densities.flatten(1), weight).reshape(self.weights.shape)
        self.weights.copy_(weights)
        shares, scaled = weights.sum(1).to(mean), (weights.to(mean) @ self.scales.to(mean))
        middle = mean @ shares
        total = variance @ scaled + (mean - middle[..., None]).square() @ shares
        scores, order = ((y - middle).abs() / total.sqrt()).sort(0)
        counts = torch.ones(len(y)).to(mean) if weight is None else weight.to(mean)
        self.scores, self.mass = scores.to(self.weights), counts[order].cumsum(0).to(self.weights)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name in ("scores", "mass"):  # as many as there were rows
            stored = state_dict.get(prefix + name)
            if stored is not None:
                setattr(self, name, torch.empty_like(stored, dtype=self.weights.dtype, device=self.weights.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)
