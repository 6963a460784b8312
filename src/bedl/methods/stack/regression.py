"""Fold ensemble for regression: a mixture of normals with cross-conformal intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bedl.heads.predictive import NormalMixturePredictive, Predictive
from bedl.methods.base import Method
from bedl.methods.stack.base import Stack
from bedl.methods.stack.distances import Nearness, Neighbours, in_blocks, spaced
from bedl.methods.stack.weights import HeldOutIntervals, mixture_weights
from bedl.moments import Moments
from bedl.moments.numerics import normal_log_density

__all__ = ["TargetStack"]


SCALES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)  # factors on a member's variance
REACHES = (0.0, 0.03, 0.1, 0.3, 1.0)  # variance that a squared distance of 1 adds
BEYOND = 2.0  # the same, of distances beyond the usual ones, always
STEEP = 5.0  # squared ratio of the steepest slope that is assumed to that of the predictions
LEAST_WEIGHT = 0.002  # of a component that is kept
MUCH = 1e6  # more than any variance of a standardised target
MOST = 1.0  # bound on a member's epistemic variance: that of the target
ORDINARY = 0.99  # out-of-fold quantile of the noise that bounds it
LOOKED_AT = 2000  # out-of-fold rows that validate the nearest-neighbour correction
LEAST_NOISE = 0.02  # share of what members take for noise
USUAL = 0.9  # out-of-fold quantile up to which epistemic variance counts as usual
SIZED = ("groups", "scales", "reaches", "weights", "usual_ignorance")  # their shapes depend on the fit
PARTS = ("mean", "data", "distributional", "model")


class TargetStack(Stack):
    """Fold ensemble for regression.

    A component is a member whose variance is multiplied by a scale, and grows with the distance to the training rows
    by a reach. The weights of the triples (group, scale, reach) maximise the out-of-fold likelihood, which stacks,
    scales and gives heavy tails in one convex problem. Beyond the distances of out-of-fold rows, each component's
    variance grows, up to that of the target. Where the nearest-neighbour correction (`Neighbours`) helps, each group of
    networks has two components: without it and with it.

    Likelihoods do not identify how much of a variance is noise: weights that are drawn for each point are as good as
    noise. Folds do: (K − 1) times the variance of K folds' means estimates the squared error of such a mean (the
    jackknife; J. Tukey 1958), and out-of-fold residuals beyond it are noise. So `data` is that noise, `model` what
    more rows of the kind would remove, and `distributional` what exceeds the usual variance on the data.

    Args:
        members, folds, held, linear, nearness: as for `Stack`.
        n_targets: how many targets there are.

    Example:
        >>> import torch
        >>> from bedl.methods import Problem, registry
        >>> stack = registry.get("stack")(Problem("regression", 1, (3,)), folds=2)
        >>> len(stack.members), stack.predict(torch.zeros(5, 3)).mean.shape
        (4, torch.Size([5, 1]))
    """

    groups: Tensor
    scales: Tensor
    reaches: Tensor
    noise: Tensor
    most_data: Tensor
    usual_ignorance: Tensor

    def __init__(
        self,
        members: Sequence[Method],
        folds: int,
        held: int | None = None,
        linear: nn.Module | None = None,
        nearness: Nearness | None = None,
        n_targets: int = 1,
    ):
        super().__init__(members, folds, held, linear, nearness)
        equal = torch.ones(self.n_groups)
        self.register_buffer("groups", torch.arange(self.n_groups))  # of each component. shape: (components,)
        for name, start in {"scales": equal, "reaches": 0 * equal, "weights": equal / self.n_groups}.items():
            self.register_buffer(name, start)
        self.register_buffer("noise", torch.ones(n_targets))  # 1: what members take for it; see `_noise`
        self.register_buffer("most_data", torch.full((self.n_groups, n_targets), MUCH))  # noise that members may say
        self.register_buffer("usual_ignorance", torch.zeros(n_targets, self.n_groups))  # shape: (targets, components)
        self.intervals = HeldOutIntervals(n_targets)
        # one held-out fold cannot validate a correction of the others
        whole = nearness is not None and self.held_folds == self.folds
        self.neighbours = Neighbours(self.n_networks, n_targets) if whole else None

    @property
    def shares(self) -> list[float]:
        every = self._every_share()
        own, corrected = every[: self.n_groups], every[self.n_groups :]
        own[: self.n_networks] += corrected
        return own.tolist()

    def summary(self) -> str:
        corrected = round(100 * self._every_share()[self.n_groups :].sum().item())
        return super().summary() + (f"; {corrected} % with nearest-neighbour correction" if corrected else "")

    def _every_share(self) -> Tensor:
        """How much each group counts, then each group of networks that is corrected. shape: (groups + networks,)"""
        every = torch.zeros(self.n_groups + self.n_networks)
        return every.index_add(0, self.groups.cpu(), self.weights.cpu().float())

    # -- predicting -------------------------------------------------------------------------------
    def forward(self, x: Tensor | Moments) -> Predictive:
        """The mixture, in the members' present mode and with gradients. x: shape (n, *input)"""
        distance, correction = self._near(x)
        kinds = self._kinds(self._stacked(x, PARTS), correction)
        mean, data, ignorance = (part[self.groups].permute(2, 3, 0, 1) for part in kinds)  # (n, T, components, held)
        data, ignorance = self.scales[:, None] * data, self.scales[:, None] * ignorance
        if distance is not None:
            ignorance = ignorance + self._grown(distance, self.reaches)[:, None, :, None]
            ignorance = self._bounded(ignorance, distance, x)
        ordinary, noise = self._noise(data, ignorance, self.noise)
        log_weights = (self.weights / self.held_folds).log()[:, None].expand(-1, self.held_folds).flatten()
        return NormalMixturePredictive(
            means=mean.flatten(-2),
            members_data=noise.flatten(-2),
            members_distributional=(data + ignorance - ordinary).clamp_min(0.0).flatten(-2),
            members_model=(ordinary - noise).clamp_min(0.0).flatten(-2),
            log_weights=log_weights.expand(mean.shape[0], 1, -1),
        )

    def _near(self, x: Tensor | Moments) -> tuple[Tensor | None, Tensor | None]:
        """Distances of rows to the data, and nearest-neighbour corrections. shapes: (n,), (networks, held, n, T)"""
        if self.nearness is None:
            return None, None
        if self.neighbours is None or not self.neighbours.any:
            return self.nearness(x), None
        found = []
        for z in in_blocks(self.nearness.place(x)):
            squares = self.nearness.squares(z)
            found.append((self.nearness.nearest(squares), self.neighbours(squares)))
        distances, corrections = zip(*found, strict=True)
        return torch.cat(distances), torch.cat(corrections, 2)

    def _kinds(self, parts: Sequence[Tensor], correction: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, noise and epistemic variance of the groups, then of the networks' groups with the correction.

        Both are bounded: noise by its out-of-fold quantile, epistemic variance by the variance of the target.

        parts: those of `PARTS`. shapes: (groups, …, T)
        correction: shape (networks, …, T)
        """
        mean, data, distributional, model = parts
        most = self.most_data.to(data).reshape(-1, *(1,) * (data.ndim - 2), data.shape[-1])
        kinds = mean, torch.minimum(data, most), (distributional + model).clamp_max(MOST)
        if correction is None:
            return kinds
        networks = [part[: self.n_networks] for part in kinds]
        networks[0] = networks[0] + correction
        mean, data, ignorance = (torch.cat(both) for both in zip(kinds, networks, strict=True))
        return mean, data, ignorance

    def _steep(self, member: Any, x: Tensor) -> Tensor:
        return member(x).mean

    def _noise(self, data: Tensor, ignorance: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        """The usual part of components' variances, and its share of noise.

        Up to level 1 it is a share of the members' noise; up to level 2, the lower part of their epistemic variance as
        well, so that it keeps its order from row to row.

        data, ignorance: shape (n, T, components, …)
        level: shape (T,)
        """
        fit = (..., *(None,) * (data.ndim - 3))
        usual, level = self.usual_ignorance[fit].to(data), level[:, None][fit]
        noise = level.clamp_max(1.0) * data + torch.minimum(ignorance, (level - 1).clamp_min(0.0) * usual)
        return data + torch.minimum(ignorance, usual), noise

    def _grown(self, distance: Tensor, reaches: Tensor) -> Tensor:
        """The variance that distances add, from 0 to that of a standardised target. shape: (n, reaches)"""
        grown = distance[:, None] * reaches + BEYOND * self.nearness.beyond(distance)[:, None]  # type: ignore[union-attr]
        return grown / (1 + grown)

    def _bounded(self, ignorance: Tensor, distance: Tensor, x: Tensor | Moments) -> Tensor:
        """Bounded by the usual variance and by the change of a steep function since the nearest row.

        Networks learn a large variance off the data, however near. Variance from noise of inputs has no such bound.
        ignorance: shape (n, T, components, …)
        """
        if not isinstance(x, Tensor):
            return ignorance
        fit = (..., *(None,) * (ignorance.ndim - 3))
        reach = STEEP * distance.to(ignorance)[:, None, None][fit]
        return torch.minimum(ignorance, self.usual_ignorance[fit].to(ignorance) + reach)

    def interval_factor(self, coverage: float) -> Tensor | None:
        return self.intervals.factor(coverage)

    def interval_spread(self, prediction: Any) -> Tensor:
        return self.intervals.spread(prediction, self.held_folds)

    # -- fitting to out-of-fold predictions --------------------------------------------------------
    @torch.no_grad()
    def finish(self, x: Tensor | Moments, y: Tensor, fold: Tensor, weight: Tensor | None = None) -> None:
        y = y.reshape(len(y), -1)
        if self.linear is not None:
            self.linear.fit(x, y, fold, weight)  # type: ignore[operator]
        found = list(self._out_of_fold(x, fold, PARTS))
        held = torch.cat([rows for rows, _, _ in found])
        parts = [torch.cat(some, 1).double() for some in zip(*(own for _, own, _ in found), strict=True)]
        means = torch.cat([everyone for _, _, everyone in found], 2).to(parts[0])  # of all members
        y, distance = y[held].to(means), self._distances(x, fold, held, weight)
        counts = torch.ones(len(held)).to(means) if weight is None else weight[held].to(means)
        self.most_data = torch.quantile(parts[1], ORDINARY, 1).to(self.most_data)
        correction = self._corrections(x, y - means[: self.n_networks], fold, weight)
        if correction is not None:
            means = torch.cat([means, means[: self.n_networks] + correction])
            correction = correction[:, fold[held], torch.arange(len(held), device=fold.device)]
        mean, data, ignorance = (part.permute(1, 2, 0) for part in self._kinds(parts, correction))
        self._weigh(mean, data + ignorance, distance, y, counts)
        mean, data, ignorance = self._components(mean, data, ignorance, distance)
        folds = torch.tensordot(self._every_share()[: len(means)].to(means), means, 1)  # shape: (folds held, n, T)
        self._tell_noise(data, ignorance, folds, counts)
        if distance is not None:
            ignorance = self._bounded(ignorance, distance, x)
        common = torch.minimum(ignorance, self.usual_ignorance.to(mean))
        variances = data + common, ignorance - common
        self.intervals.fit(y, mean, variances, folds.var(0, correction=0), self.weights.to(mean), counts)

    def _corrections(self, x: Tensor | Moments, residuals: Tensor, fold: Tensor, weight: Tensor | None) -> Any:
        """The nearest-neighbour corrections, if they help. residuals, and the result: shape (networks, held, n, T)"""
        if self.neighbours is None:
            return None
        near, z, kept = self.nearness, self.nearness.place(x), self.nearness.kept(fold, weight)  # type: ignore[union-attr]
        looked_at = spaced(torch.arange(len(kept), device=kept.device), LOOKED_AT)
        counts = torch.ones_like(residuals[0, 0, :, 0]) if weight is None else weight
        known = residuals[:, :, kept].permute(2, 0, 3, 1), fold[kept], counts[kept]
        self.neighbours.fit(near.squares(z[kept[looked_at]]), looked_at, *known)  # type: ignore[union-attr]
        if not self.neighbours.any:
            return None
        rows = torch.arange(len(z), device=kept.device)
        blocks = [
            self.neighbours(near.squares(some).masked_fill(own[:, None] == kept, torch.inf))  # type: ignore[union-attr]
            for some, own in zip(in_blocks(z), in_blocks(rows), strict=True)
        ]
        return torch.cat(blocks, 2).to(residuals)

    def _weigh(self, mean: Tensor, variance: Tensor, distance: Tensor | None, y: Tensor, counts: Tensor) -> None:
        """Components and their weights, by out-of-fold likelihood. mean, variance: shape (n, T, groups)"""
        scales = torch.tensor(SCALES).to(mean)
        reaches = torch.tensor(REACHES if distance is not None else REACHES[:1]).to(mean)
        spread = (variance[..., None] * scales)[..., None].expand(*variance.shape, len(scales), len(reaches))
        if distance is not None:
            spread = spread + self._grown(distance.to(mean), reaches)[:, None, None, None]
        log_densities = normal_log_density(y[..., None, None, None], mean[..., None, None], spread.log()).sum(1)
        weights = mixture_weights(log_densities.flatten(1), counts).to(mean)
        kept = (weights >= min(LEAST_WEIGHT, weights.max().item())).nonzero()[:, 0]
        weights = weights[kept] / weights[kept].sum()
        axes = torch.meshgrid(torch.arange(mean.shape[-1]).to(mean), scales, reaches, indexing="ij")
        group, scale, reach = (axis.flatten()[kept] for axis in axes)
        self.groups = group.long()
        self.scales, self.reaches, self.weights = (part.to(self.weights) for part in (scale, reach, weights))

    def _components(self, mean: Tensor, data: Tensor, ignorance: Tensor, distance: Tensor | None) -> tuple[Tensor, ...]:
        """Means, noise and ignorance of components, of members' own. shapes: (n, T, kinds) -> (n, T, components)"""
        mean, data, ignorance = (part[..., self.groups] for part in (mean, data, ignorance))
        data, ignorance = (part * self.scales.to(part) for part in (data, ignorance))
        if distance is not None:
            ignorance = ignorance + self._grown(distance.to(data), self.reaches.to(data))[:, None]
        return mean, data, ignorance

    def _tell_noise(self, data: Tensor, ignorance: Tensor, folds: Tensor, counts: Tensor) -> None:
        """The share of noise that leaves components the epistemic variance that the jackknife finds out of fold.

        data, ignorance: of components. shape: (n, T, components)
        folds: what each one's members expect. shape: (folds held, n, T)
        """
        weights, counts = self.weights.to(folds), counts / counts.sum()
        self.usual_ignorance = ignorance.kthvalue(math.ceil(USUAL * len(ignorance)), 0).values.to(self.weights)
        unsure = (len(folds) - 1) * folds.var(0, correction=0)
        wanted = counts @ ((data + ignorance) @ weights - unsure)
        low, high = torch.full_like(wanted, LEAST_NOISE), torch.full_like(wanted, 2.0)
        for _ in range(40):  # by bisection: noise grows with its level
            level = (low + high) / 2
            less = counts @ (self._noise(data, ignorance, level)[1] @ weights) < wanted
            low, high = torch.where(less, level, low), torch.where(less, high, level)
        self.noise.copy_(low)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name in SIZED:  # as many as there were
            stored, own = state_dict.get(prefix + name), getattr(self, name)
            if stored is not None:
                setattr(self, name, torch.empty_like(stored, dtype=own.dtype, device=own.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)
