"""Intervals about a mixture's mean that are as wide as rows held out say."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from bedl.methods.stacking import held_out_quantile, interval_scores

__all__ = ["HeldOutIntervals"]

TINY = 1e-12  # variance of a standardised target
ORDINARY = 0.99  # share of the rows held out that say how much members disagree


class HeldOutIntervals(nn.Module):
    """Mean ± a factor times a spread: as many spreads as held the asked share of the rows held out.

    The spread is the standard deviation of one fold's members, by which rows held out were measured: what folds
    disagree about is not in it. Where predictions have heavy tails, the factor is far below that of a normal; so what
    exceeds all that is usual on the data is widened, as rows that have none of it cannot say that it is too wide.

    Args:
        n_targets: how many targets there are.
    """

    widening: Tensor
    usual_apart: Tensor
    scores: Tensor
    mass: Tensor

    def __init__(self, n_targets: int):
        super().__init__()
        self.register_buffer("widening", torch.ones(n_targets))  # of what is unusual
        self.register_buffer("usual_apart", torch.zeros(n_targets))  # how much members disagree, over their variance
        for name in ("scores", "mass"):
            self.register_buffer(name, torch.empty(0, n_targets))  # shape: (rows, targets)

    def factor(self, coverage: float) -> Tensor | None:
        """How many spreads an interval reaches; None: nothing was held out. shape: (T,)"""
        if not len(self.scores):
            return None
        factor = held_out_quantile(self.scores, self.mass, coverage)
        normal = math.sqrt(2) * torch.special.erfinv(torch.tensor(coverage, dtype=torch.float64))
        few = torch.maximum(self.scores[-1], normal.to(self.scores))  # rows that cannot say it: the most that was seen
        return torch.where(factor.isfinite(), factor, few)

    def spread(self, prediction: Any, held_folds: int) -> Tensor:
        """What intervals are counted in. shape: (n, T)

        Args:
            prediction: a mixture whose components are the kinds of members, and for each the folds.
            held_folds: how many.
        """
        folds = (-1, held_folds)
        weights = prediction.log_weights.exp().unflatten(-1, folds) * held_folds
        means = (prediction.means - prediction.mean[..., None]).unflatten(-1, folds)  # from there, as they may be large
        usual, beyond = (
            (weights * part.unflatten(-1, folds)).sum(-2).mean(-1)
            for part in (prediction.members_data + prediction.members_model, prediction.members_distributional)
        )
        middle = (weights * means).sum(-2, keepdim=True)
        within = (weights * (means - middle).square()).sum(-2).mean(-1)
        usual, beyond = self._told_apart(usual, beyond, within, middle.squeeze(-2).var(-1, correction=0))
        return (usual + self.widening.to(beyond) * beyond).sqrt()

    def fit(
        self, y: Tensor, mean: Tensor, variances: tuple[Tensor, Tensor], across: Tensor, weights: Tensor, counts: Tensor
    ) -> None:
        """Let rows held out say how wide intervals are.

        Args:
            y: shape (n, T)
            mean: of components that have not seen the row. shape: (n, T, components)
            variances: theirs, what is usual and what exceeds it. shapes: (n, T, components)
            across: the variance of what folds expect. shape: (n, T)
            weights: of components. shape: (components,)
            counts: how much each row counts. shape: (n,)
        """
        middle = mean @ weights
        within = (mean - middle[..., None]).square() @ weights
        usual, beyond = (part @ weights for part in variances)
        self.usual_apart.copy_(torch.quantile((within + across) / usual.clamp_min(TINY), ORDINARY, 0))
        usual, beyond = self._told_apart(usual, beyond, within, across)
        scores, mass, widening = interval_scores((y - middle).abs(), usual, beyond, counts)
        self.scores, self.mass = scores.to(self.widening), mass.to(self.widening)
        self.widening.copy_(widening)

    def _told_apart(self, usual: Tensor, beyond: Tensor, within: Tensor, across: Tensor) -> tuple[Tensor, Tensor]:
        """The usual part of a variance and the rest, where members may disagree more than is usual, too.

        usual, beyond: of members' own variances. within, across: what is between those of a fold, and between folds.
        shapes: (n, T)
        """
        apart = (within + across - self.usual_apart.to(usual) * usual).clamp_min(0.0)
        return usual + (within - apart).clamp_min(0.0), beyond + apart

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name in ("scores", "mass"):  # as many as there were
            stored, own = state_dict.get(prefix + name), getattr(self, name)
            if stored is not None:
                setattr(self, name, torch.empty_like(stored, dtype=own.dtype, device=own.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)
