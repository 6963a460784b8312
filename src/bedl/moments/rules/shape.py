"""Operations that move entries about, and sums and means over axes.

Moving is exact, with one caveat: a copy (`expand`, `repeat`) is as random as its original but *the same* draw; what
follows treats the two as independent.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from bedl.moments import Moments, as_moments, variance_dtype
from bedl.moments.dispatch import refusal
from bedl.moments.rules import linear
from bedl.moments.rules._base import approximate
from bedl.moments.rules.attention import bounded
from bedl.moments.rules.pooling import MAX, largest

# PyTorch makes views of these where the memory allows it, else copies.
_BY_LAYOUT = {"contiguous", "reshape", "flatten", "ravel", "reshape_as"}


def moves(func: Callable) -> Callable[..., Any]:
    """The rule of a function that only moves or copies entries: the same for mean and variance."""
    name = getattr(func, "__name__", "moves")

    def rule(input: Moments, *args: Any, **kwargs: Any) -> Any:
        def move(x: Tensor) -> Any:
            return func(x, *args, **kwargs)

        loc, variance = move(input.loc), move(input.variance)
        if isinstance(loc, Tensor):
            return input.moved(loc, variance, move, name in _BY_LAYOUT)
        parts = enumerate(zip(loc, variance, strict=True))
        return type(loc)(input.moved(a, b, lambda x, i=i: move(x)[i]) for i, (a, b) in parts)  # type: ignore[misc]

    rule.__name__ = name
    return rule


def moves_like(func: Callable) -> Callable[..., Any]:
    """The rule of a function that takes its shape from a second tensor (`view_as`, `expand_as`)."""
    move = moves(func)

    def rule(input: Moments | Tensor, other: Moments | Tensor) -> Any:
        shape = other.loc if isinstance(other, Moments) else other
        return move(input, shape) if isinstance(input, Moments) else func(input, shape)

    rule.__name__ = getattr(func, "__name__", "moves_like")
    return rule


def getitem(input: Moments | Tensor, index: Any) -> Moments:
    if not isinstance(input, Moments) or isinstance(index, Moments):
        raise refusal(torch.Tensor.__getitem__, "the index is random")
    return input.moved(input.loc[index], input.variance[index], lambda x: x[index])


def setitem(input: Moments | Tensor, index: Any, value: Any) -> None:
    """x[index] = value, by `Moments.assign_`."""
    if not isinstance(input, Moments) or isinstance(index, Moments):
        raise refusal(torch.Tensor.__setitem__, "a plain tensor cannot hold Moments, nor can an index be random")
    loc, variance = input.loc.clone(), input.variance.clone()
    loc[index] = value.loc if isinstance(value, Moments) else value
    variance[index] = value.variance if isinstance(value, Moments) else 0.0
    input.assign_(Moments(loc, variance))


def joins(func: Callable) -> Callable[..., Moments]:
    """The rule of `cat` and `stack`; plain tensors among the parts join with variance 0."""

    def rule(tensors: Sequence[Moments | Tensor], *args: Any, **kwargs: Any) -> Moments:
        parts = [as_moments(t) for t in tensors]
        return Moments(
            func([p.loc for p in parts], *args, **kwargs), func([p.variance for p in parts], *args, **kwargs)
        )

    rule.__name__ = getattr(func, "__name__", "joins")
    return rule


def _pads_with_copies(input: Moments, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> bool:
    return mode != "constant"


@approximate("exact if constant; copies (reflect, replicate, circular) are taken as independent", _pads_with_copies)
def pad(input: Moments, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Moments:
    return Moments(F.pad(input.loc, pad, mode, value), F.pad(input.variance, pad, mode, None))


def to(input: Moments | Tensor, *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(a, Moments) for a in args):
        args = tuple(a.loc if isinstance(a, Moments) else a for a in args)
    if not isinstance(input, Moments):  # a plain tensor to the dtype and device of Moments
        return input.to(*args, **kwargs)
    loc = input.loc.to(*args, **kwargs)
    if loc is input.loc:
        return input  # as torch does
    if not loc.is_floating_point():
        raise refusal(torch.Tensor.to, f"Moments cannot be {loc.dtype}")
    # the device and copy semantics of the call, but the variance's own precision
    variance = input.variance.to(*args, **kwargs).to(variance_dtype(loc.dtype))
    if loc.dtype != variance.dtype:
        variance = input.variance.to(device=loc.device)
    return Moments(loc, variance)


def casts(dtype: torch.dtype) -> Callable[[Moments], Moments]:
    def rule(input: Moments, **kwargs: Any) -> Moments:
        return to(input, dtype)

    return rule


def type_as(input: Moments | Tensor, other: Moments | Tensor) -> Any:
    return to(input, device=other.device, dtype=other.dtype)


def type_(input: Moments, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """`Tensor.type`: the name of the tensor's type, or a conversion."""
    if dtype is None:
        return input.loc.type()
    return to(input, input.loc[:0].type(dtype).dtype, non_blocking=non_blocking)


def nan_to_num(
    input: Moments, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Moments:
    """What is replaced is known."""
    replaced = ~(input.loc.isfinite() & input.variance.isfinite())
    loc = torch.nan_to_num(torch.where(input.variance.isnan(), torch.nan, input.loc), nan, posinf, neginf)
    return Moments(loc, input.variance.masked_fill(replaced, 0.0))


def at_least(func: Callable) -> Callable[..., Any]:
    """The rule of `atleast_1d` and its relatives, of one value or of several."""
    mover = moves(func)

    def rule(*tensors: Any) -> Any:
        given = tensors[0] if len(tensors) == 1 else tensors
        if isinstance(given, Moments):
            return mover(given)
        return tuple(mover(x) if isinstance(x, Moments) else func(x) for x in given)

    rule.__name__ = getattr(func, "__name__", "at_least")
    return rule


def detach(input: Moments) -> Moments:
    return input.moved(input.loc.detach(), input.variance.detach(), torch.Tensor.detach)


def _reduced_dims(input: Moments, dim: Any) -> tuple[int, ...]:
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return tuple(range(input.dim()))
    return (dim,) if isinstance(dim, int) else tuple(dim)


def sum(input: Moments, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Moments:
    dims = _reduced_dims(input, dim)
    loc = input.loc.sum(dims, keepdim=keepdim, dtype=dtype) if dims else input.loc.clone()
    return Moments(loc, input.variance.sum(dims, keepdim=keepdim) if dims else input.variance.clone())


def mean(input: Moments, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Moments:
    dims = _reduced_dims(input, dim)
    count = math.prod([input.shape[d] for d in dims])  # a list: torch.compile does not take a generator here
    loc = input.loc.mean(dims, keepdim=keepdim, dtype=dtype) if dims else input.loc.clone()
    variance = input.variance.mean(dims, keepdim=keepdim) / count if dims else input.variance.clone()
    return Moments(loc, variance)


def diff(input: Moments, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Moments:
    """The n-th differences Σ_k ± C(n, k) x_k: each exact; that those which share an entry vary together is not kept."""
    x = joins(torch.cat)([part for part in (prepend, input, append) if part is not None], dim)
    n = min(n, x.shape[dim])
    parts = [math.comb(n, k) ** 2 * x.variance.narrow(dim, k, x.shape[dim] - n) for k in range(n + 1)]
    return Moments(torch.diff(x.loc, n, dim), functools.reduce(torch.add, parts))


def interpolate(input: Moments, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
                align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
                antialias: bool = False) -> Moments:  # fmt: skip
    """Resampling is linear, and separable: the variance takes the squared weights of each axis in turn."""
    loc = F.interpolate(input.loc, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    if mode in ("nearest", "nearest-exact"):
        variance = F.interpolate(input.variance, size, scale_factor, mode, align_corners, recompute_scale_factor)
        return Moments(loc, variance)
    if mode not in ("linear", "bilinear", "trilinear", "bicubic"):
        raise refusal(F.interpolate, f"mode {mode!r} is not defined")
    variance = input.variance
    dims = input.dim() - 2
    scales = scale_factor if isinstance(scale_factor, (tuple, list)) else [scale_factor] * dims
    for axis in range(dims):
        length, new = input.shape[2 + axis], loc.shape[2 + axis]
        keep = None if scales[axis] is None or recompute_scale_factor else scales[axis]
        unit = torch.eye(length, dtype=variance.dtype, device=variance.device)
        weights = _resample_rows(unit, new, keep, mode, align_corners, antialias)  # (length, new)
        variance = (variance.movedim(2 + axis, -1) @ weights.square()).movedim(-1, 2 + axis)
    return Moments(loc, variance)


def _resample_rows(rows: Tensor, new: int, scale: float | None, mode: str, align: bool | None, anti: bool) -> Tensor:
    """Each row resampled along its length. shapes: (L, L) -> (L, new)"""
    if mode != "bicubic" and not anti:
        flat: dict[str, Any] = {"size": new} if scale is None else {"scale_factor": scale}
        return F.interpolate(rows[None], mode="linear", align_corners=align, **flat)[0]
    size: dict[str, Any] = {"size": (rows.shape[0], new)} if scale is None else {"scale_factor": (1.0, scale)}
    mode = "bilinear" if mode == "trilinear" else mode
    return F.interpolate(rows[None, None], mode=mode, align_corners=align, antialias=anti, **size)[0, 0]


# Functions that make a tensor of the shape, type and device of another: of Moments, too, they make a plain tensor.


def makes(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The rule of a function that looks at a tensor's form alone."""

    @approximate("makes a plain tensor")
    def rule(input: Moments, *args: Any, **kwargs: Any) -> Tensor:
        args, kwargs = pytree.tree_map_only(Moments, lambda x: x.loc, (args, kwargs), is_leaf=_is_moments)
        return func(input.loc if isinstance(input, Moments) else input, *args, **kwargs)

    rule.__name__ = getattr(func, "__name__", "makes")
    return rule


def _is_moments(x: Any) -> bool:
    return isinstance(x, Moments)


# Groups of entries that an index names, as the edges that lead to a node are: the largest of each, and a softmax.
#
# A group has as many entries as it has. For the largest, groups are laid side by side and filled up with entries that
# never win, so that the longest group decides on memory.


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
