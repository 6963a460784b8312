"""Groups of entries that an index names, as the edges that lead to a node are: the largest of each, and a softmax.

A group has as many entries as it has. For the largest, groups are laid side by side and filled up with entries that
never win, so that the longest group decides on memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bedl.moments import Moments, as_moments, variance_dtype
from bedl.moments.dispatch import refusal
from bedl.moments.rules import linear
from bedl.moments.rules._base import approximate
from bedl.moments.rules.attention import bounded
from bedl.moments.rules.pooling import MAX, largest


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


# Sums and copies by index, which is how graphs pass messages, and products with sparse matrices; all exact but the
# largest of several.
#
# As everywhere, entries are independent. A message that a node sends along several edges is the same draw in each,
# which a later sum over those edges does not know.


MomentsOrTensor = Moments | Tensor


def _pair(input: MomentsOrTensor, source: MomentsOrTensor, func: Any) -> tuple[Moments, Moments]:
    if not isinstance(input, (Moments, Tensor)) or not isinstance(source, (Moments, Tensor)):
        raise refusal(func, "its operands must be tensors or Moments")
    return as_moments(input), as_moments(source)


def _no_random_index(index: Any, func: Any) -> None:
    if isinstance(index, Moments):
        raise refusal(func, "the index is random")


def index_add(input: MomentsOrTensor, dim: int, index: Tensor, source: MomentsOrTensor, *, alpha: float = 1) -> Moments:
    _no_random_index(index, torch.index_add)
    a, b = _pair(input, source, torch.index_add)
    return Moments(
        a.loc.index_add(dim, index, b.loc, alpha=alpha),
        a.variance.index_add(dim, index, b.variance, alpha=alpha * alpha),
    )


def index_copy(input: MomentsOrTensor, dim: int, index: Tensor, source: MomentsOrTensor) -> Moments:
    _no_random_index(index, torch.index_copy)
    a, b = _pair(input, source, torch.index_copy)
    return Moments(a.loc.index_copy(dim, index, b.loc), a.variance.index_copy(dim, index, b.variance))


def index_fill(input: Moments, dim: int, index: Tensor, value: float | Tensor) -> Moments:
    _no_random_index(index, torch.index_fill)
    if isinstance(value, Moments):
        raise refusal(torch.index_fill, "the value is random; use x[index] = value")
    return Moments(input.loc.index_fill(dim, index, value), input.variance.index_fill(dim, index, 0.0))


def scatter(input: MomentsOrTensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None,
            reduce: str | None = None) -> Moments:  # fmt: skip
    _no_random_index(index, torch.scatter)
    if reduce is not None:
        raise refusal(torch.scatter, "reduce= is not defined; use scatter_add or scatter_reduce")
    src = value if src is None else src
    if not isinstance(src, (Moments, Tensor)):
        assert isinstance(input, Moments)
        return Moments(input.loc.scatter(dim, index, src), input.variance.scatter(dim, index, 0.0))
    a, b = _pair(input, src, torch.scatter)
    return Moments(a.loc.scatter(dim, index, b.loc), a.variance.scatter(dim, index, b.variance))


def scatter_add(input: MomentsOrTensor, dim: int, index: Tensor, src: MomentsOrTensor) -> Moments:
    _no_random_index(index, torch.scatter_add)
    a, b = _pair(input, src, torch.scatter_add)
    return Moments(a.loc.scatter_add(dim, index, b.loc), a.variance.scatter_add(dim, index, b.variance))


def _largest_of_several(input: Any, dim: Any, index: Any, src: Any, reduce: str, **kwargs: Any) -> bool:
    return reduce in ("amax", "amin")


@approximate("exact for sums and means; amax, amin: " + MAX, when=_largest_of_several)
def scatter_reduce(input: MomentsOrTensor, dim: int, index: Tensor, src: MomentsOrTensor, reduce: str, *,
                   include_self: bool = True) -> Moments:  # fmt: skip
    _no_random_index(index, torch.scatter_reduce)
    if reduce not in ("sum", "mean", "amax", "amin"):
        raise refusal(torch.scatter_reduce, f"reduce={reduce!r} is not defined; 'sum', 'mean', 'amax' and 'amin' are")
    a, b = _pair(input, src, torch.scatter_reduce)
    if reduce == "amax":
        return largest_of_groups(a, dim, index, b, include_self)
    if reduce == "amin":
        a, b = (Moments(-x.loc, x.variance) for x in (a, b))
        found = largest_of_groups(a, dim, index, b, include_self)
        return Moments(-found.loc, found.variance)
    loc = a.loc.scatter_reduce(dim, index, b.loc, reduce, include_self=include_self)
    variance = a.variance.scatter_reduce(dim, index, b.variance, reduce, include_self=include_self)
    if reduce == "mean":  # of n values: the variance is the mean of the variances over n
        ones = torch.ones_like(b.variance)
        counts = torch.full_like(variance, float(include_self)).scatter_add(dim, index, ones)
        variance = variance / counts.clamp_min(1)
    return Moments(loc, variance)


# -- sparse matrices -------------------------------------------------------------------------------
def _squared(sparse: Tensor) -> Tensor:
    """The entries of a sparse matrix, squared; those that are stored in parts are added up first."""
    wide = variance_dtype(sparse.dtype)
    if sparse.layout == torch.sparse_coo:
        sparse = sparse.coalesce()
        return torch.sparse_coo_tensor(
            sparse.indices(), sparse.values().to(wide).square(), sparse.shape, is_coalesced=True, check_invariants=False
        )
    if sparse.layout == torch.sparse_csr:
        return torch.sparse_csr_tensor(
            sparse.crow_indices(), sparse.col_indices(), sparse.values().to(wide).square(), sparse.shape,
            check_invariants=False,
        )  # fmt: skip
    raise refusal(torch.sparse.mm, f"the layout {sparse.layout} is not defined; use .to_sparse_coo()")


def matmul(input: MomentsOrTensor, other: MomentsOrTensor) -> Moments:
    """A product of matrices, of which the first may be sparse if it is plain."""
    if isinstance(input, Tensor) and input.layout != torch.strided:
        assert isinstance(other, Moments)
        return Moments(torch.mm(input, other.loc), torch.mm(_squared(input), other.variance))
    return linear.matmul(input, other)


def sparse_mm(mat1: MomentsOrTensor, mat2: MomentsOrTensor, reduce: str = "sum") -> Moments:
    if reduce != "sum":
        raise refusal(torch.sparse.mm, f"reduce={reduce!r} is not defined")
    return matmul(mat1, mat2)


def sparse_addmm(
    mat: MomentsOrTensor, mat1: MomentsOrTensor, mat2: MomentsOrTensor, *, beta: float = 1, alpha: float = 1
) -> Moments:
    """beta·mat + alpha·(mat1 @ mat2)"""
    y, constant = sparse_mm(mat1, mat2), as_moments(mat)
    return Moments(beta * constant.loc + alpha * y.loc, beta * beta * constant.variance + alpha * alpha * y.variance)
