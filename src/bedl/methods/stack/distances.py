"""Distances to the training rows in units of the prediction, and the nearest-neighbour correction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bedl.moments import Moments, as_moments
from bedl.nn.tabular import soft_clip

__all__ = ["LANDMARKS", "Nearness", "Neighbours", "in_blocks", "spaced"]


LANDMARKS = 10_000
LOOKED_AT = 1000  # rows where slopes are measured
CHUNK = 128  # rows whose distances are computed together
UNUSUAL = 0.2  # share of the held-out rows whose distance counts as more than usual,
MOST_UNUSUAL = 100  # and how many: what more rows show need not be assumed


class Nearness(nn.Module):
    """The squared distance to the nearest training row, each column weighted by the slope along it.

    The weights are the root mean square of a prediction's derivative, so that a distance says by how much a function
    as steep as the prediction might differ from what was seen near by; columns that do not matter do not count. What
    networks learn from copies off the data does not reach the gaps between rows of many columns; distances do.
    Of many rows, some are kept, evenly spaced.

    Args:
        n_columns: of the table.
        front: scales the columns; None: they are as they should be.
        most: rows that are kept.
    """

    slopes: Tensor
    landmarks: Tensor
    usual: Tensor

    def __init__(self, n_columns: int, front: nn.Module | None = None, most: int = LANDMARKS):
        super().__init__()
        self.most = most
        self.front = nn.Identity() if front is None else front
        self.register_buffer("slopes", torch.zeros(n_columns))
        self.register_buffer("landmarks", torch.zeros(0, n_columns))  # weighted already. shape: (rows, columns)
        self.register_buffer("usual", torch.zeros(()))  # squared distance that rows like the data have

    @torch.no_grad()
    def fit(
        self,
        x: Tensor | Moments,
        fold: Tensor,
        held: Tensor,
        weight: Tensor | None,
        predict: Callable[[Tensor], Iterable[Tensor]],
        most: int = LOOKED_AT,
    ) -> Tensor:
        """Keep rows, and give the distances of the held-out ones to rows of other folds. shape: (held,)

        Args:
            x: the table. shape: (n, columns)
            fold: of each row. shape: (n,)
            held: which rows. shape: (held,)
            weight: rows of weight 0 are not kept. shape: (n,)
            predict: what each network predicts, one after the other; their slopes count. (n, columns) -> (n, outputs)
            most: rows where slopes are measured.
        """
        kept = self.kept(fold, weight)
        looked_at = as_moments(x[spaced(kept, min(most, LOOKED_AT))]).loc
        self.slopes.copy_(self._slopes(looked_at, predict))
        self.landmarks = self.place(x[kept]).to(self.slopes)
        away = torch.cat([
            self.nearest(self.squares(z).masked_fill(own[:, None] == fold[kept], torch.inf))
            for z, own in zip(self.place(x[held]).split(CHUNK), fold[held].split(CHUNK), strict=True)
        ])  # fmt: skip
        unusual = min(UNUSUAL, MOST_UNUSUAL / len(away))
        self.usual.copy_(torch.quantile(away, 1 - unusual))
        return away

    def kept(self, fold: Tensor, weight: Tensor | None) -> Tensor:
        """Which rows are kept: of those that count, some, evenly spaced. shape: (n,) -> (rows,)"""
        counted = torch.arange(len(fold), device=fold.device) if weight is None else weight.nonzero()[:, 0]
        return spaced(counted, self.most)

    def forward(self, x: Tensor | Moments) -> Tensor:
        """Squared distances to the nearest row. x: shape (n, columns) -> (n,)"""
        z = self.place(x)
        if not len(self.landmarks):
            return torch.zeros_like(z[:, 0])
        return torch.cat([self.nearest(self.squares(some)) for some in in_blocks(z)])

    def beyond(self, distance: Tensor) -> Tensor:
        """The excess of a squared distance over the usual one. shape: (n,)"""
        return (distance - self.usual).clamp_min(0.0)

    def place(self, x: Tensor | Moments) -> Tensor:
        """Rows as points whose distances are in units of the prediction. shape: (n, columns)"""
        return soft_clip(as_moments(self.front(x)).loc) * self.slopes

    def squares(self, z: Tensor) -> Tensor:
        """Squared distances of places to all rows that are kept. shape: (n, columns) -> (n, rows)"""
        squares = torch.addmm(self.landmarks.square().sum(1), z, self.landmarks.mT, alpha=-2)
        return squares.add_(z.square().sum(1, keepdim=True)).clamp_min_(0.0)  # in place: memory is what takes time

    def nearest(self, squares: Tensor) -> Tensor:
        """The least of them, which has a bound. shape: (n, rows) -> (n,)"""
        furthest = 36 * self.slopes.square().sum()  # columns lie between −3 and 3
        return squares.amin(1).clamp_max(furthest)

    # -- inside -----------------------------------------------------------------------------------
    def _slopes(self, x: Tensor, predict: Callable[[Tensor], Iterable[Tensor]]) -> Tensor:
        """Root mean squares of derivatives along scaled columns. shape: (columns,)"""
        x, along = x.clone().requires_grad_(), []
        with torch.enable_grad():
            (scale,) = torch.autograd.grad(self.front(x).sum(), x)
            for said in predict(x):  # one network at a time: of many classes, a graph takes much memory
                sums = [output.sum() for output in said.unbind(-1)]
                along += [torch.autograd.grad(total, x, retain_graph=len(sums) > 1)[0] for total in sums]
        return (torch.stack(along) / scale).square().mean((0, 1)).sqrt()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        stored = state_dict.get(prefix + "landmarks")  # as many as there were
        if stored is not None:
            self.landmarks = torch.empty_like(stored, dtype=self.slopes.dtype, device=self.slopes.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def in_blocks(z: Tensor) -> Sequence[Tensor]:
    """Some rows at a time, whose distances stay in the cache; graphs, which are for any number, have one block."""
    return [z] if torch.compiler.is_exporting() else z.split(CHUNK)


def spaced(rows: Tensor, most: int) -> Tensor:
    """Of many rows some, evenly spaced."""
    return rows[torch.linspace(0, len(rows) - 1, min(len(rows), most)).long().to(rows.device)]


# The nearest-neighbour correction: kernel smoothing of residuals.


WIDTHS = (0.02, 0.04, 0.08, 0.16, 0.32)  # of the kernel, in units of the target's standard deviation
SHRINKS = (0.1, 0.3, 1.0, 3.0)  # pseudo-rows with a residual of 0
FAR = -60.0  # a logarithm of next to nothing: smaller ones make numbers that processors are slow with
SURE = 3.0  # standard errors by which squared errors have to fall


class Neighbours(nn.Module):
    """Kernel smoothing (Nadaraya–Watson) of each member's residuals at its training rows.

    With e_r the residual of row r, a member is corrected by

        Σ_r κ_r e_r / (shrink + Σ_r κ_r),   κ_r = exp(−d²(x, r) / (2 width²)),   rows r outside the member's fold

    (E. Nadaraya 1964, G. Watson 1964; on residuals: "twicing", J. Tukey 1977), which is 0 far from all rows.
    A member and its correction depend on the same rows, so held-out rows are predicted as new ones are. Width and
    shrinkage minimise the out-of-fold squared error; if that does not fall significantly, there is no correction.

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
