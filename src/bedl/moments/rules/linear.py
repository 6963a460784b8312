"""Products of weights and inputs: linear, matrix products, einsum, bilinear, embedding; `product` for all others.

All are bilinear maps `op(a, b)` whose terms a_i·b_j are distinct pairs of independent entries. Then

    mean = op(m_a, m_b)        variance = op(v_a, m_b²) + op(m_a² + v_a, v_b)

whichever of the two is random, and no term can be negative. Where entries of one operand *share* a term (an index
summed in one operand only, the bilinear form), the formula would be wrong; those have their own below.
"""

from __future__ import annotations

import contextlib
import string
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl.moments import Moments, variance_dtype
from bedl.moments.dispatch import refusal
from bedl.moments.moments import REAL
from bedl.moments.rules._base import LayerWeight, rounded

Operand = Moments | Tensor
Bilinear = Callable[[Tensor, Tensor], Tensor]
Total = Callable[[Tensor, Tensor], Tensor]


def full_precision(device: torch.device) -> contextlib.AbstractContextManager:
    """Autocast rounds products to half precision. Means may be rounded, variances may not."""
    if device.type != "meta" and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def loc_of(x: Operand) -> Tensor:
    return x.loc if isinstance(x, Moments) else x


def _square(x: Operand) -> Tensor:
    """(E x)², in the precision of variances; what the other operand's variance is multiplied by."""
    if isinstance(x, LayerWeight) and x.gain is not None:
        return x.gain
    loc = loc_of(x)
    return loc.to(variance_dtype(loc.dtype)).square()


def _made_again(second_moment: Tensor, x: Operand) -> contextlib.AbstractContextManager:
    """Inside, what autograd would keep of E[x²] is made again when it is needed, from x, which is kept anyway.

    Args:
        second_moment: shape (*shape)
        x: shape (*shape)
    """
    if not (isinstance(x, Moments) and torch.is_grad_enabled()) or torch.compiler.is_compiling():
        return contextlib.nullcontext()
    if torch._C._functorch.is_functorch_wrapped_tensor(second_moment):  # torch.func knows no such hooks
        return contextlib.nullcontext()
    loc, variance = x.loc.detach(), x.variance.detach()
    place, shape = second_moment.data_ptr(), second_moment.shape

    def pack(kept: Tensor) -> Tensor | None:
        return None if kept.data_ptr() == place and kept.shape == shape else kept

    def unpack(kept: Tensor | None) -> Tensor:
        return loc.to(variance.dtype).square() + variance if kept is None else kept

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def product(
    op: Bilinear, a: Operand, b: Operand, mean_op: Bilinear | None = None, total: Total | None = None
) -> Moments:
    """Moments of a bilinear map of independent entries.

    Args:
        op: the map.
        a, b: its operands; a layer's weight is the second.
        mean_op: the map with a constant added, if there is one.
        total: the sum of the entries of `a` that meet in an output, and the variances by output in a shape that
            multiplies it: what is left of the map where `b` has one variance per output.
    """
    if a is b:
        raise refusal(torch.matmul, "both factors are the same random values, not independent ones")
    for operand in (a, b):
        if not operand.is_floating_point():
            remedy = REAL if operand.is_complex() else "use .float()"
            raise TypeError(f"a product with Moments needs floating-point operands, not {operand.dtype}; {remedy}")
    loc = (mean_op or op)(loc_of(a), loc_of(b))
    with full_precision(loc.device):
        terms = []
        if isinstance(a, Moments):
            terms.append(rounded(op, a.variance, _square(b)))
        if isinstance(b, Moments):
            seen = _square(a) + a.variance if isinstance(a, Moments) else _square(a)
            if total is not None and isinstance(b, LayerWeight) and b.by_output is not None:
                terms.append(total(seen, b.by_output))
            else:
                with _made_again(seen, a):
                    terms.append(rounded(op, seen, b.variance))
        if terms:
            variance = terms[0] if len(terms) == 1 else terms[0] + terms[1]
        else:  # only a bias is random
            variance = torch.zeros_like(loc, dtype=variance_dtype(loc.dtype))
    return Moments(loc, variance)


def biased(
    func: Callable[..., Tensor], a: Operand, b: Operand, bias: Operand | None, total: Total | None, dims: int = 0
) -> Moments:
    """`func(a, b, bias)`, its channels `dims` axes before the last; `total` as for `product`."""
    constant = loc_of(bias) if bias is not None else None
    result = product(lambda a, b: func(a, b, None), a, b, lambda a, b: func(a, b, constant), total)
    if isinstance(bias, Moments):
        return Moments(result.loc, result.variance + bias.variance.reshape(-1, *[1] * dims))
    return result


def linear(input: Operand, weight: Operand, bias: Operand | None = None) -> Moments:
    return biased(F.linear, input, weight, bias, lambda x, by_output: x.sum(-1, keepdim=True) * by_output)


def matmul(input: Operand, other: Operand) -> Moments:
    return product(torch.matmul, input, other)


def rmatmul(input: Operand, other: Operand) -> Moments:
    return product(torch.matmul, other, input)


def addmm(input: Operand, a: Operand, b: Operand, *, beta: float = 1, alpha: float = 1) -> Moments:
    """beta·input + alpha·(a @ b), also for batches."""
    result = product(torch.matmul, a, b)
    scaled = Moments(alpha * result.loc, alpha * alpha * result.variance)
    if isinstance(input, Moments):
        return Moments(scaled.loc + beta * input.loc, scaled.variance + beta * beta * input.variance)
    return Moments(scaled.loc + beta * input, scaled.variance)


def einsum(equation: str, *operands: Any) -> Moments:
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) > 2:
        raise refusal(torch.einsum, "only 'equation' strings with one or two operands are defined; split the product")
    inputs, output = _named_axes(equation.replace(" ", ""), [x.dim() for x in operands])
    if len(operands) == 1:  # a sum of entries, each once
        x = operands[0]
        return Moments(torch.einsum(f"{inputs}->{output}", x.loc), torch.einsum(f"{inputs}->{output}", x.variance))
    left, right = inputs.split(",")
    # An index summed in one operand only would pair one entry of the other with several: sum it beforehand.
    reduced, terms = [], []
    for x, mine, theirs in ((operands[0], left, right), (operands[1], right, left)):
        kept = "".join(dict.fromkeys(c for c in mine if c in theirs or c in output))
        if kept != mine:
            x = einsum(f"{mine}->{kept}", x) if isinstance(x, Moments) else torch.einsum(f"{mine}->{kept}", x)
        reduced.append(x)
        terms.append(kept)
    return product(lambda a, b: torch.einsum(f"{terms[0]},{terms[1]}->{output}", a, b), reduced[0], reduced[1])


def _named_axes(equation: str, dims: list[int]) -> tuple[str, str]:
    """Both sides of an equation, with a letter of its own for each axis behind '...'; dims: axes of each operand."""
    sides = equation.split("->")
    inputs = sides[0]
    free = [c for c in string.ascii_letters if c not in equation]
    terms, longest = [], 0
    for term, count in zip(inputs.split(","), dims, strict=True):
        hidden = count - len(term.replace("...", ""))
        longest = max(longest, hidden if "..." in term else 0)
        terms.append(term.replace("...", "".join(free[:hidden][::-1])))  # the last axes have the same letters in all
    rest = "".join(free[:longest][::-1])
    if len(sides) == 2:
        if "..." in inputs and "..." not in sides[1]:
            raise refusal(torch.einsum, "axes behind '...' that are summed are not defined; name them")
        return ",".join(terms), sides[1].replace("...", rest)
    alone = sorted(c for c in set(inputs) - set(",.") if inputs.count(c) == 1)
    return ",".join(terms), rest + "".join(alone)


def products(op: Callable[..., Tensor]) -> Callable[..., Moments]:
    """The rule of a function that multiplies entries of its first argument by entries of its second, and adds up."""

    def rule(input: Operand, other: Operand, *args: Any, **kwargs: Any) -> Moments:
        return product(lambda a, b: op(a, b, *args, **kwargs), input, other)

    rule.__name__ = op.__name__
    return rule


def bilinear(input1: Operand, input2: Operand, weight: Operand, bias: Operand | None = None) -> Moments:
    """y_o = Σ_jk W_ojk x1_j x2_k. Terms share entries of x1 and x2, so the variance has four parts:

    Σ s²_jk E[x1_j²] E[x2_k²] + Σ_j v1_j (Σ_k μ_jk m2_k)² + Σ_k v2_k (Σ_j μ_jk m1_j)² + Σ_jk μ²_jk v1_j v2_k
    """
    m1, m2, mu = loc_of(input1), loc_of(input2), loc_of(weight)
    loc = F.bilinear(m1, m2, mu, loc_of(bias) if bias is not None else None)
    with full_precision(loc.device):
        m1, m2, mu = (t.to(variance_dtype(t.dtype)) for t in (m1, m2, mu))
        v1 = input1.variance if isinstance(input1, Moments) else torch.zeros_like(m1)
        v2 = input2.variance if isinstance(input2, Moments) else torch.zeros_like(m2)
        variance = F.bilinear(v1, v2, mu.square())
        variance = variance + torch.einsum("...j,...oj->...o", v1, torch.einsum("ojk,...k->...oj", mu, m2).square())
        variance = variance + torch.einsum("...k,...ok->...o", v2, torch.einsum("ojk,...j->...ok", mu, m1).square())
        if isinstance(weight, Moments):
            variance = variance + F.bilinear(m1.square() + v1, m2.square() + v2, weight.variance)
        if isinstance(bias, Moments):
            variance = variance + bias.variance
    return Moments(loc, variance)


def embedding(input: Tensor, weight: Moments, padding_idx: int | None = None, max_norm: float | None = None,
              norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False) -> Moments:  # fmt: skip
    if max_norm is not None:
        raise refusal(F.embedding, "max_norm rewrites the table in place; use max_norm=None")
    return Moments(
        F.embedding(input, weight.loc, padding_idx, None, norm_type, scale_grad_by_freq, sparse),
        F.embedding(input, weight.variance, padding_idx, None, norm_type, scale_grad_by_freq, sparse),
    )


def embedding_bag(input: Tensor, weight: Moments, offsets: Tensor | None = None, max_norm: float | None = None,
                  norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
                  per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
                  padding_idx: int | None = None) -> Moments:  # fmt: skip
    """Var Σ_k c_k w_k = Σ_k c_k² v_k, with c_k how often (with which weight) entry k is in the bag."""
    if max_norm is not None or mode == "max":
        raise refusal(F.embedding_bag, "of a table of Moments it takes mode='sum' or 'mean', and max_norm=None")
    if not isinstance(weight, Moments) or isinstance(per_sample_weights, Moments):
        raise refusal(F.embedding_bag, "per_sample_weights must be a tensor")
    bags: dict[str, Any] = {"offsets": offsets, "include_last_offset": include_last_offset, "padding_idx": padding_idx}
    loc = F.embedding_bag(
        input, weight.loc, mode=mode, sparse=sparse, per_sample_weights=per_sample_weights,
        scale_grad_by_freq=scale_grad_by_freq, **bags,
    )  # fmt: skip
    v = weight.variance
    if input.dim() == 2:
        bag = torch.arange(len(input), device=input.device).repeat_interleave(input.shape[1])
    else:
        assert offsets is not None
        bag = torch.bucketize(torch.arange(len(input), device=input.device), offsets.to(input.device), right=True) - 1
    counts = torch.ones_like(bag, dtype=v.dtype) if per_sample_weights is None else per_sample_weights.flatten().to(v)
    kept = counts if padding_idx is None else counts * (input.flatten() != padding_idx)
    _, same = torch.unique(bag * len(v) + input.flatten(), return_inverse=True)
    total = torch.zeros_like(kept).index_add(0, same, kept)[same]
    squares = (kept * total).view_as(input)
    variance = F.embedding_bag(input, v, mode="sum", per_sample_weights=squares, **bags)
    if mode == "mean":
        sizes = torch.zeros(len(variance), dtype=v.dtype, device=v.device).index_add(0, bag, kept)
        variance = variance / sizes.clamp_min(1).square().unsqueeze(-1)
    return Moments(loc, variance)
