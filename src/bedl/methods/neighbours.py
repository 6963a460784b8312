"""What members are off by at rows near by: a correction of means that looks rows up instead of learning them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Neighbours"]

WIDTHS = (0.02, 0.04, 0.08, 0.16, 0.32)  # of the kernel, in units of the target's standard deviation
SHRINKS = (0.1, 0.3, 1.0, 3.0)  # rows that say 0
FAR = -60.0  # a logarithm of next to nothing: smaller ones make numbers that processors are slow with
SURE = 3.0  # standard errors by which squared errors have to become smaller


class Neighbours(nn.Module):
    """Residuals of each member, averaged over the rows near by that it has learned from.

    With e_r the residual of row r, a member is corrected by

        Σ_r κ_r e_r / (shrink + Σ_r κ_r),   κ_r = exp(−d²(x, r) / (2 width²)),   rows r outside the member's fold

    (E. Nadaraya 1964, G. Watson 1964; on residuals: "twicing", J. Tukey 1977), which is nothing where no row is near.
    A member and its correction depend on the same rows, so those held out are predicted as new ones are: they say
    which width and shrinkage make squared errors least, and whether there is anything to gain. If there is not, there
    is no correction.

    Args:
        n_groups: groups of members.
        n_targets: how many targets there are.
    """

    residuals: Tensor
    others: Tensor
    width: Tensor
    shrink: Tensor

    def __init__(self, n_groups: int, n_targets: int):
        super().__init__()
        self.register_buffer("residuals", torch.zeros(0, n_groups, n_targets, 1))  # shape: (rows, groups, T, folds)
        self.register_buffer("others", torch.zeros(0, 1))  # a row's weight, 0 in its own fold. shape: (rows, folds)
        self.register_buffer("width", torch.ones(()))
        self.register_buffer("shrink", torch.ones(()))

    @property
    def any(self) -> bool:
        """Whether there is a correction."""
        return len(self.residuals) > 0

    def forward(self, squares: Tensor) -> Tensor:
        """Corrections. squares: distances to the rows, shape (n, rows) -> (groups, folds, n, T)"""
        sums, mass = _sums(squares, self.width, self.residuals, self.others)
        return (sums / (self.shrink + mass)[:, None, None]).permute(1, 3, 0, 2)

    @torch.no_grad()
    def fit(self, squares: Tensor, looked_at: Tensor, residuals: Tensor, fold: Tensor, weight: Tensor) -> None:
        """Choose width and shrinkage by some of the rows; without a gain, keep nothing.

        Args:
            squares: distances of the rows that are looked at to all of them. shape: (looked at, rows)
            looked_at: which rows those are. shape: (looked at,)
            residuals: of the rows, by every member. shape: (rows, groups, T, folds)
            fold: of the rows; that fold's members have not seen them. shape: (rows,)
            weight: how much each row counts. shape: (rows,)
        """
        self.residuals, self.others = self.residuals[:0], self.others[:0]
        residuals, weight = residuals.to(squares), (weight / weight.mean()).to(squares)
        others = nn.functional.one_hot(fold, residuals.shape[3]).logical_not() * weight[:, None]
        unseen = residuals[torch.arange(len(fold), device=fold.device), ..., fold]  # shape: (rows, groups, T)
        best = (weight @ unseen.square().sum(2)).argmin()  # of the groups
        own, held, counts = residuals[:, [best]], fold[looked_at], weight[looked_at] / weight[looked_at].sum()
        before, place = unseen[looked_at, best], torch.arange(len(looked_at), device=fold.device)
        gains = {}
        for width in WIDTHS:
            sums, mass = _sums(squares, torch.tensor(width).to(squares), own * others[:, None, None], others)
            for shrink in SHRINKS:
                after = before - (sums / (shrink + mass)[:, None, None])[place, 0, :, held]
                gains[width, shrink] = (before.square() - after.square()).sum(1)
        chosen = max(gains, key=lambda pair: float(counts @ gains[pair]))
        gain = counts @ gains[chosen]
        if gain <= SURE * (counts.square() @ (gains[chosen] - gain).square()).sqrt():
            return
        self.residuals, self.others = (residuals * others[:, None, None]).to(self.width), others.to(self.width)
        self.width.fill_(chosen[0])
        self.shrink.fill_(chosen[1])

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name in ("residuals", "others"):  # as many as there were
            stored = state_dict.get(prefix + name)
            if stored is not None:
                setattr(self, name, torch.empty_like(stored, dtype=self.width.dtype, device=self.width.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _sums(squares: Tensor, width: Tensor, values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the rows' values, and of their weights, under the kernel.

    squares: shape (n, rows)
    values: shape (rows, …)
    weights: shape (rows, folds)

    Returns:
        shapes (n, …) and (n, folds)
    """
    near = squares.mul(-0.5 / width.square()).clamp_min_(FAR).exp_()
    return (near @ values.flatten(1)).unflatten(1, values.shape[1:]), near @ weights
