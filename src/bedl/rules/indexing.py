"""Sums and copies by index, which is how graphs pass messages, and products with sparse matrices; all exact but the
largest of several.

As everywhere, entries are independent. A message that a node sends along several edges is the same draw in each, which
a later sum over those edges does not know.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bedl.dispatch import refusal
from bedl.moments import Moments, as_moments, variance_dtype
from bedl.rules import affine
from bedl.rules._marks import approximate
from bedl.rules.groups import largest_of_groups
from bedl.rules.pooling import MAX

Operand = Moments | Tensor


def _pair(input: Operand, source: Operand, func: Any) -> tuple[Moments, Moments]:
    if not isinstance(input, (Moments, Tensor)) or not isinstance(source, (Moments, Tensor)):
        raise refusal(func, "its operands must be tensors or Moments")
    return as_moments(input), as_moments(source)


def _no_random_index(index: Any, func: Any) -> None:
    if isinstance(index, Moments):
        raise refusal(func, "the index is random")


def index_add(input: Operand, dim: int, index: Tensor, source: Operand, *, alpha: float = 1) -> Moments:
    _no_random_index(index, torch.index_add)
    a, b = _pair(input, source, torch.index_add)
    return Moments(
        a.loc.index_add(dim, index, b.loc, alpha=alpha),
        a.variance.index_add(dim, index, b.variance, alpha=alpha * alpha),
    )


def index_copy(input: Operand, dim: int, index: Tensor, source: Operand) -> Moments:
    _no_random_index(index, torch.index_copy)
    a, b = _pair(input, source, torch.index_copy)
    return Moments(a.loc.index_copy(dim, index, b.loc), a.variance.index_copy(dim, index, b.variance))


def index_fill(input: Moments, dim: int, index: Tensor, value: float | Tensor) -> Moments:
    _no_random_index(index, torch.index_fill)
    if isinstance(value, Moments):
        raise refusal(torch.index_fill, "the value is random; use x[index] = value")
    return Moments(input.loc.index_fill(dim, index, value), input.variance.index_fill(dim, index, 0.0))


def scatter(input: Operand, dim: int, index: Tensor, src: Any = None, *, value: Any = None,
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


def scatter_add(input: Operand, dim: int, index: Tensor, src: Operand) -> Moments:
    _no_random_index(index, torch.scatter_add)
    a, b = _pair(input, src, torch.scatter_add)
    return Moments(a.loc.scatter_add(dim, index, b.loc), a.variance.scatter_add(dim, index, b.variance))


def _largest_of_several(input: Any, dim: Any, index: Any, src: Any, reduce: str, **kwargs: Any) -> bool:
    return reduce in ("amax", "amin")


@approximate("exact for sums and means; amax, amin: " + MAX, when=_largest_of_several)
def scatter_reduce(input: Operand, dim: int, index: Tensor, src: Operand, reduce: str, *,
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


def matmul(input: Operand, other: Operand) -> Moments:
    """A product of matrices, of which the first may be sparse if it is plain."""
    if isinstance(input, Tensor) and input.layout != torch.strided:
        assert isinstance(other, Moments)
        return Moments(torch.mm(input, other.loc), torch.mm(_squared(input), other.variance))
    return affine.matmul(input, other)


def sparse_mm(mat1: Operand, mat2: Operand, reduce: str = "sum") -> Moments:
    if reduce != "sum":
        raise refusal(torch.sparse.mm, f"reduce={reduce!r} is not defined")
    return matmul(mat1, mat2)


def sparse_addmm(mat: Operand, mat1: Operand, mat2: Operand, *, beta: float = 1, alpha: float = 1) -> Moments:
    """beta·mat + alpha·(mat1 @ mat2)"""
    y, constant = sparse_mm(mat1, mat2), as_moments(mat)
    return Moments(beta * constant.loc + alpha * y.loc, beta * beta * constant.variance + alpha * alpha * y.variance)
