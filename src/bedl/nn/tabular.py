"""Columns of a table, embedded in front of a network: bounded, and as waves of learned frequencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bedl.moments import Moments
from bedl.moments.rules.numerical import quadrature

REACH = 3.0


def soft_clip(x: Tensor) -> Tensor:
    """x / sqrt(1 + (x/3)²): nearly x within a few standard deviations, never beyond ±3. shape: (*shape)"""
    return x * torch.rsqrt(1 + (x / REACH).square())


_soft_clip_moments: Any = quadrature(soft_clip)


def bounded(x: Any) -> Any:
    """`soft_clip` of a tensor, or the moments of it. shape: (*shape)"""
    return _soft_clip_moments(x) if isinstance(x, Moments) else soft_clip(x)


class PeriodicEmbedding(nn.Module):
    """Each standardised column z, bounded smoothly, beside a few numbers made of its waves cos(2π c z + b).

    The bound makes "far away" a finite place: nothing can run off along a line there. Waves let a network bend quickly
    along a column. Y. Gorishniy, I. Rubachev, A. Babenko, "On Embeddings for Numerical Features in Tabular Deep
    Learning", NeurIPS 2022; D. Holzmüller, L. Grinsztajn, I. Steinwart, "Better by Default", NeurIPS 2024.

    Args:
        n_columns: how many columns there are.
        size: numbers made of each column; 0: only the bound.
        waves: frequencies of each column.
        frequency: standard deviation of the frequencies at the start.

    Example:
        >>> import torch
        >>> columns = PeriodicEmbedding(3, size=4)
        >>> columns(torch.zeros(5, 3)).shape, columns.n_outputs
        (torch.Size([5, 15]), 15)
        >>> PeriodicEmbedding(1, size=0)(torch.tensor([[1e9]]))
        tensor([[3.0000]])
    """

    def __init__(self, n_columns: int, size: int = 4, waves: int = 16, frequency: float = 0.3):
        super().__init__()
        self.n_columns, self.size = n_columns, size
        if size:
            self.frequency = nn.Parameter(frequency * torch.randn(n_columns, waves))
            self.phase = nn.Parameter(2 * math.pi * torch.rand(n_columns, waves))
            self.weight = nn.Parameter((2 * torch.rand(n_columns, waves, size) - 1) / math.sqrt(waves))
            self.bias = nn.Parameter(torch.zeros(n_columns, size))

    @property
    def n_outputs(self) -> int:
        """Numbers for each row."""
        return self.n_columns * (1 + self.size)

    def forward(self, x: Any) -> Any:
        """x: tensor or Moments, shape (n, columns) -> (n, n_outputs)"""
        z = bounded(x)
        if not self.size:
            return z
        waves = torch.cos(2 * math.pi * z[..., None] * self.frequency + self.phase)  # shape: (n, columns, waves)
        made = torch.matmul(waves.transpose(0, 1), self.weight).transpose(0, 1) + self.bias
        return torch.cat([z, made.flatten(1)], -1)

    def extra_repr(self) -> str:
        return f"n_columns={self.n_columns}, size={self.size}"


class QuantileCodes(nn.Module):
    """Each standardised column z, and piecewise-linear codes of its bins.

        column:                  z clamped to [first edge, last edge], bounded smoothly
        code of the bin [a, b]:  clamp((z − a) / (b − a), 0, 1)

    With codes a network bends at quantiles of the data. Y. Gorishniy, I. Rubachev, A. Babenko, "On Embeddings for
    Numerical Features in Tabular Deep Learning", NeurIPS 2022.

    Args:
        edges: of each column's bins, ascending, at least one; a column of a single bin has no codes.

    Example:
        >>> codes = QuantileCodes([torch.tensor([0.0, 1.0, 3.0]), torch.tensor([0.0, 1.0])])
        >>> codes(torch.tensor([[2.0, 0.0]])).round(decimals=2)
        tensor([[1.6600, 0.0000, 1.0000, 0.5000]])
        >>> codes.outside(torch.tensor([[2.0, 0.0], [3.0, 1.5]]))
        tensor([0., 2.])
    """

    column: Tensor
    low: Tensor
    width: Tensor
    least: Tensor
    most: Tensor

    def __init__(self, edges: Sequence[Tensor]):
        super().__init__()
        self.n_columns = len(edges)
        self.register_buffer("least", torch.stack([e[0] for e in edges]))
        self.register_buffer("most", torch.stack([e[-1] for e in edges]))
        several = [e if len(e) > 2 else e[:1] for e in edges]
        bins = torch.tensor([len(e) - 1 for e in several])
        self.register_buffer("column", torch.repeat_interleave(torch.arange(len(edges)), bins))
        self.register_buffer("low", torch.cat([e[:-1] for e in several]))
        self.register_buffer("width", torch.cat([e[1:] - e[:-1] for e in several]))
        if not bool((self.width > 0).all()):
            raise ValueError("QuantileCodes: the edges of each column ascend")

    @property
    def n_outputs(self) -> int:
        """Numbers for each row."""
        return self.n_columns + len(self.column)

    def forward(self, x: Any) -> Any:
        """x: tensor or Moments, shape (n, columns) -> (n, n_outputs)"""
        codes = ((x[..., self.column] - self.low) / self.width).clamp(0.0, 1.0)
        below, above = (self.least - x).relu(), (x - self.most).relu()
        return torch.cat([bounded(x + below - above), codes], -1)

    def outside(self, x: Any) -> Tensor:
        """How far a row lies outside the edges, in quarters of the columns' ranges, summed over columns. shape: (n,)"""
        z = x.loc if isinstance(x, Moments) else x
        beyond = (self.least - z).relu() + (z - self.most).relu()
        width = (self.most - self.least) / 4
        return (beyond / torch.where(width > 0, width, torch.ones_like(width))).sum(-1)

    def extra_repr(self) -> str:
        return f"n_columns={self.n_columns}, n_outputs={self.n_outputs}"


class SkipLinear(nn.Module):
    """A network behind `PeriodicEmbedding`, and a linear map of the bounded columns beside it, which starts at 0.

    Args:
        columns: what embeds them.
        body: the network behind; ``columns.n_outputs`` numbers in.
        n_outputs: of the body.
    """

    def __init__(self, columns: PeriodicEmbedding, body: nn.Module, n_outputs: int):
        super().__init__()
        self.columns, self.body = columns, body
        self.shortcut = nn.Linear(columns.n_columns, n_outputs, bias=False)
        nn.init.zeros_(self.shortcut.weight)

    def forward(self, x: Any) -> Any:
        """x: tensor or Moments, shape (n, columns)"""
        embedded = self.columns(x)
        return self.body(embedded) + self.shortcut(embedded[..., : self.columns.n_columns])


# Standardisation as a part of the network, so that it goes wherever the network goes.


class Standardize(nn.Module):
    """(x − loc) / scale, for tensors and Moments alike: a variance is divided by scale².

    Args:
        loc: what becomes 0. shape: (*input), or what broadcasts to it
        scale: what becomes 1; positive. shape: as `loc`

    Example:
        >>> import torch
        >>> from bedl import Moments
        >>> standardize = Standardize(torch.tensor([10.0]), torch.tensor([2.0]))
        >>> z = standardize(Moments(torch.tensor([[14.0]]), 1.0))
        >>> z.loc.item(), z.variance.item()
        (2.0, 0.25)
    """

    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Tensor, scale: Tensor):
        super().__init__()
        if loc.shape != scale.shape or not bool((scale > 0).all() & scale.isfinite().all()):
            raise ValueError("Standardize: loc and scale have the same shape, and scale is positive and finite")
        self.register_buffer("loc", loc)
        self.register_buffer("scale", scale)

    def forward(self, x: Any) -> Any:
        """x: shape (n, *input)"""
        return (x - self.loc) / self.scale

    def extra_repr(self) -> str:
        return f"shape={tuple(self.loc.shape)}"
