"""Sums, differences, products and quotients.

**Independence is assumed between different operands.** A residual sum `x + f(x)` adds the variances of the two
branches although they share x; that is the diagonal approximation at work. Only `x ∘ x` with the very same
object is recognised and treated exactly.
"""

from __future__ import annotations

from numbers import Number
from typing import Any

import torch
from torch import Tensor

from bedl.moments import Moments, as_moments, variance_dtype
from bedl.moments.dispatch import refusal
from bedl.moments.rules.activations import square

Operand = Moments | Tensor | float


def _constant(value: Any, func: Any) -> Any:
    if isinstance(value, (Tensor, Number)):
        return value
    raise refusal(func, f"an operand is a {type(value).__name__}")


def _loc(x: Operand) -> Any:
    return x.loc if isinstance(x, Moments) else x


def _variance(x: Operand, scale: Any = 1) -> Any:
    """Variance of scale·x; 0 for a constant."""
    return _scaled(x.variance, scale) if isinstance(x, Moments) else 0.0


def add(input: Operand, other: Operand, *, alpha: float = 1) -> Moments:
    loc = torch.add(_loc(input), _constant(_loc(other), torch.add), alpha=alpha)
    if input is other:  # (1 + alpha)·x
        return Moments(loc, _variance(input, 1 + alpha))
    return Moments(loc, _variance(input) + _variance(other, alpha))


def neg(input: Moments) -> Moments:
    return Moments(-input.loc, input.variance)


def sub(input: Operand, other: Operand, *, alpha: float = 1) -> Moments:
    return add(input, other, alpha=-alpha)


def rsub(input: Operand, other: Operand, *, alpha: float = 1) -> Moments:
    return sub(other, input, alpha=alpha)


def _wide(constant: Tensor) -> Tensor:
    return constant.to(variance_dtype(constant.dtype)) if constant.is_floating_point() else constant


def _scaled(variance: Tensor, constant: Any) -> Any:
    """variance·constant²; the square by itself may overflow, or vanish, where the result does not."""
    if isinstance(constant, Tensor):
        return variance * _wide(constant) * _wide(constant)
    moderate = constant == 0 or 1e-18 < abs(constant) < 1e18
    return variance * (constant * constant) if moderate else variance * constant * constant


def mul(input: Operand, other: Operand) -> Moments:
    if input is other and isinstance(input, Moments):
        return square(input)
    if isinstance(input, Moments) and isinstance(other, Moments):
        a, b = input.variance, other.variance
        return Moments(input.loc * other.loc, a * b + _scaled(a, other.loc) + _scaled(b, input.loc))
    random, constant = (input, other) if isinstance(input, Moments) else (other, input)
    constant = _constant(constant, torch.mul)
    return Moments(random.loc * constant, _scaled(random.variance, constant))  # type: ignore[union-attr]


def div(input: Operand, other: Operand, *, rounding_mode: str | None = None) -> Moments:
    """By a plain divisor; `positive.div` has random ones."""
    if rounding_mode is not None:
        raise refusal(torch.div, "rounding jumps")
    divisor = _constant(other, torch.div)
    assert isinstance(input, Moments)
    wide = _wide(divisor) if isinstance(divisor, Tensor) else divisor
    return Moments(input.loc / divisor, input.variance / wide / wide)


def where(condition: Tensor, input: Operand, other: Operand) -> Moments:
    """Choose by a plain condition; exact."""
    if isinstance(condition, Moments):
        raise refusal(torch.where, "the condition is random")
    like = input if isinstance(input, Moments) else other
    assert isinstance(like, Moments)

    def part(x: Any) -> Moments:
        return as_moments(
            x if isinstance(x, (Moments, Tensor)) else torch.as_tensor(x, dtype=like.dtype, device=like.device)
        )

    a, b = part(input), part(other)
    return Moments(torch.where(condition, a.loc, b.loc), torch.where(condition, a.variance, b.variance))


def where_method(input: Operand, condition: Tensor, other: Operand) -> Moments:
    return where(condition, input, other)


def masked_fill(input: Moments, mask: Tensor, value: float | Tensor) -> Moments:
    return Moments(input.loc.masked_fill(mask, value), input.variance.masked_fill(mask, 0.0))


def lerp(input: Operand, end: Operand, weight: float | Tensor) -> Moments:
    if isinstance(weight, Moments):
        raise refusal(torch.lerp, "the weight is random")
    if input is end and isinstance(input, Moments):
        return Moments(input.loc, input.variance)
    loc = torch.lerp(_loc(input), _loc(end), weight)
    return Moments(loc, _variance(input, 1 - weight) + _variance(end, weight))


def addcmul(input: Operand, tensor1: Operand, tensor2: Operand, *, value: float = 1) -> Moments:
    """input + value·tensor1·tensor2, also where some of the three are the same random values."""
    factors = (tensor1, tensor2)
    if isinstance(input, Moments) and any(factor is input for factor in factors):
        return _with_own_product(input, *factors, value)
    if not (isinstance(tensor1, Moments) or isinstance(tensor2, Moments)):
        return Moments(torch.addcmul(_loc(input), *factors, value=value), _variance(input))  # type: ignore[arg-type]
    product = mul(*factors)
    return Moments(_loc(input) + value * product.loc, _variance(input) + _variance(product, value))


def _with_own_product(x: Moments, a: Operand, b: Operand, value: float) -> Moments:
    """x + value·a·b, where x is one of the factors, or both. shapes: (*shape)"""
    other = b if a is x else a
    if other is not x:  # x·(1 + value·other)
        return mul(x, add(mul(other, value), 1.0) if isinstance(other, Moments) else 1.0 + value * other)
    m, v = x.loc.to(x.variance.dtype), x.variance  # Var x² = 2v² + 4m²v, Cov(x, x²) = 2mv
    loc = m + value * (m * m + v)
    return Moments(loc.to(x.dtype), v * (1 + 2 * value * m).square() + 2 * (value * v).square())


def cumsum(input: Moments, dim: int, **kwargs: Any) -> Moments:
    return Moments(torch.cumsum(input.loc, dim, **kwargs), torch.cumsum(input.variance, dim))


def prod(input: Moments, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Moments:
    """Exact: two halves are independent of each other, and so are theirs."""
    if dtype is not None:
        raise refusal(torch.prod, "dtype is not defined; convert first")
    x, axis = (Moments(input.loc.flatten(), input.variance.flatten()), 0) if dim is None else (input, dim)
    if x.shape[axis] == 0:
        return Moments(x.loc.prod(axis, keepdim=keepdim), 0.0)
    while (length := x.shape[axis]) > 1:
        pairs = _part(x, axis, 0, length // 2), _part(x, axis, length // 2, length // 2)
        x = _joined(mul(*pairs), _part(x, axis, length - length % 2, length % 2), axis)
    if dim is not None and keepdim:
        return _part(x, axis, 0, 1)
    return Moments(x.loc.squeeze(axis), x.variance.squeeze(axis))


def cumprod(input: Moments, dim: int, *, dtype: torch.dtype | None = None) -> Moments:
    """Exact: after k steps an entry is the product of 2ᵏ entries up to it, and shares none with the one 2ᵏ before."""
    if dtype is not None:
        raise refusal(torch.cumprod, "dtype is not defined; convert first")
    x, step, length = input, 1, input.shape[dim]
    while step < length:
        later = mul(_part(x, dim, step, length - step), _part(x, dim, 0, length - step))
        x, step = _joined(_part(x, dim, 0, step), later, dim), 2 * step
    return Moments(x.loc, x.variance)


def _part(x: Moments, dim: int, start: int, length: int) -> Moments:
    return Moments(x.loc.narrow(dim, start, length), x.variance.narrow(dim, start, length))


def _joined(a: Moments, b: Moments, dim: int) -> Moments:
    return Moments(torch.cat([a.loc, b.loc], dim), torch.cat([a.variance, b.variance], dim))


# Dropout without sampling (Wang & Manning 2013, Fast Dropout): its noise in closed form while training.


def dropout(input: Moments, p: float = 0.5, training: bool = True) -> Moments:
    """x·b/(1 − p), b ~ Bernoulli(1 − p): the mean stays, the variance becomes (v + p·m²)/(1 − p).

    Whole-channel dropout has the same moments entry by entry.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        return input
    if p == 1:
        return Moments(input.loc * 0, input.variance * 0)
    loc = input.loc.to(variance_dtype(input.dtype))
    return Moments(input.loc, (input.variance + p * loc.square()) / (1 - p))


def alpha_dropout(input: Moments, p: float = 0.5, training: bool = False) -> Moments:
    """Dropout for SELU nets: a·(x·b + α'(1 − b)) + c, which keeps zero mean and unit variance."""
    if not training or p == 0:
        return input
    alpha, q = -1.7580993408473766, 1 - p
    scale = (q + alpha * alpha * q * p) ** -0.5 if p < 1 else 0.0
    loc = input.loc.to(variance_dtype(input.dtype))
    # the constant c = −a·α'·p cancels the mean of the filled-in value
    return Moments(scale * q * input.loc, scale * scale * (q * input.variance + q * p * (loc - alpha).square()))
