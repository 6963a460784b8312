"""Groups of entries that an index names, as the edges that lead to a node are: the largest of each, and a softmax.

A group has as many entries as it has. For the largest, groups are laid side by side and filled up with entries that
never win, so that the longest group decides on memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bedl.moments import Moments
from bedl.rules.attention import bounded
from bedl.rules.pooling import largest

__all__ = ["largest_of_groups", "softmax_of_groups"]


def largest_of_groups(own: Moments, dim: int, index: Tensor, source: Moments, include_self: bool) -> Moments:
    """`scatter_reduce` with "amax"; what no entry is sent to keeps its own value. own, result: shape (*, N, *)"""
    length, wide = index.shape[dim], torch.promote_types(own.variance.dtype, source.variance.dtype)
    entries = [t.narrow(dim, 0, length).movedim(dim, -1) for t in (index, source.loc, source.variance)]
    cut = [slice(0, n) for n in index.movedim(dim, -1).shape[:-1]]
    index, loc, variance = (t[tuple(cut)].reshape(-1, length) for t in entries)
    mine, spread = (t.movedim(dim, -1)[tuple(cut)] for t in (own.loc, own.variance))
    kept, count = mine.shape, mine.shape[-1]
    group = (index + count * torch.arange(len(index), device=index.device)[:, None]).flatten()
    place, sizes = _places(group, len(index) * count)
    slots = int(sizes.max()) if len(group) else 0

    def laid_out(values: Tensor, fill: float) -> Tensor:
        table = torch.full((len(sizes), slots), fill, dtype=wide, device=values.device)
        return table.index_put((group, place), values.to(wide).flatten())

    m, v = laid_out(loc, torch.finfo(wide).min / 4), laid_out(variance, 0.0)
    first = mine.to(wide).reshape(-1, 1), spread.to(wide).reshape(-1, 1)
    empty = (sizes == 0)[:, None]
    if not include_self:
        first = torch.where(empty, first[0], torch.finfo(wide).min / 4), torch.where(empty, first[1], 0.0)
    m, v = torch.cat([first[0], m], -1), torch.cat([first[1], v], -1)
    found = largest(m, v, m.amax(-1).to(own.dtype))
    loc = torch.where(empty[:, 0], mine.flatten(), found.loc).view(kept)
    variance = torch.where(empty[:, 0], spread.flatten().to(wide), found.variance).view(kept)
    whole = own.loc.movedim(dim, -1).clone(), own.variance.to(wide).movedim(dim, -1).clone()
    whole[0][tuple(cut)], whole[1][tuple(cut)] = loc, variance
    return Moments(whole[0].movedim(-1, dim), whole[1].movedim(-1, dim))


def _places(group: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The number that each entry has in its group, and how many each group has. shape: (n,) -> (n,), (count,)"""
    sizes = torch.bincount(group, minlength=count)
    order = torch.argsort(group, stable=True)
    ranks = torch.arange(len(group), device=group.device) - (sizes.cumsum(0) - sizes)[group[order]]
    return torch.empty_like(order).index_put((order,), ranks), sizes


def softmax_of_groups(softmax: Callable[[Tensor], Tensor], source: Moments, index: Tensor, dim: int, count: int) -> Any:
    """A softmax within each group, to first order as `torch.softmax`; `softmax` is the plain one. index: shape (n,)"""
    plain = softmax(source.loc)
    p = plain.to(source.variance.dtype)
    squares = p.square() * source.variance
    shape = list(p.shape)
    shape[dim] = count
    total = torch.zeros(shape, dtype=p.dtype, device=p.device).index_add(dim, index, squares).index_select(dim, index)
    spread = (1 - p).square() * source.variance + (total - squares).clamp_min(0)
    return Moments(plain, bounded(p.square() * spread, p * (1 - p)))
