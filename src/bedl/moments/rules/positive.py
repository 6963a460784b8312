"""Roots, logarithms, reciprocals and powers: functions of quantities that have one sign.

A Gaussian reaches over 0, where these have no value; what networks put into them (a mean of squares, a sum of
exponentials) does not. So x ~ N(m, v) is read as a *log-normal* variable, with the mean and variance of the positive
part max(x, 0): those of x itself, to 1e-4, where m > 3.5 standard deviations, and finite down to m = 0. A logarithm
is then Gaussian, a power log-normal again, and no moment is infinite. Where m itself is outside the domain, the plain
function has no value and the rule has none (NaN). Reciprocals read x on the side of 0 where m is. Shapes: (*shape).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bedl.moments import Moments, numerics
from bedl.moments.dispatch import refusal
from bedl.moments.rules import activations, arithmetic
from bedl.moments.rules._base import approximate, elementwise
from bedl.moments.rules.numerical import expectation
from bedl.moments.rules.relu import relu_moments

_LOG_NORMAL = "as if log-normal, with the mean and variance of the positive part"
# p + 1 nodes integrate the square of a polynomial of degree p; made beforehand, as torch.compile wants constants.
_NODES = {exponent: numerics.hermite(exponent + 1) for exponent in range(5, 21)}


def _log_normal(plain: Callable[..., Tensor], origin: float = 0.0) -> Callable[[Callable], Callable[..., Moments]]:
    """Turn `(E x, s², …) -> (mean, variance)` of a log-normal x with Var(log x) = s² into a rule for x + origin.

    The form gets E x less 1 − origin as its first argument, so that `log1p` keeps its digits.
    """

    def make(moments_of: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Moments]:
        @functools.wraps(moments_of)
        def rule(input: Moments, *args: Any) -> Moments:
            v = input.variance
            known = v == 0  # each branch sees the other's entries replaced by harmless ones
            m = torch.where(known, 1.0, input.loc.to(v.dtype))
            height = m - origin
            above, spread = relu_moments(height, v, alone=True)  # of max(height, 0), where height is not below 0
            above = torch.where(known, 1.0, above)
            s2 = torch.log1p(spread / above / above)
            less_one = m + relu_moments(-height, v)[0] if origin else above
            mean, variance = moments_of(less_one, s2, *args)
            undefined = height < 0
            mean, variance = (t.masked_fill(undefined, math.nan) for t in (mean, variance))
            plain_mean = plain(torch.where(known, input.loc.to(v.dtype), 1.0), *args)
            return Moments(torch.where(known, plain_mean, mean).to(input.dtype), variance.masked_fill(known, 0.0))

        return approximate(_LOG_NORMAL)(rule)

    return make


@_log_normal(torch.log)
def log(mean: Tensor, s2: Tensor) -> tuple[Tensor, Tensor]:
    return torch.log(mean) - s2 / 2, s2


@_log_normal(torch.log1p, origin=-1.0)
def log1p(mean: Tensor, s2: Tensor) -> tuple[Tensor, Tensor]:
    return torch.log1p(mean) - s2 / 2, s2


def _logarithm(base: float) -> Callable[[Moments], Moments]:
    scale = 1 / math.log(base)

    @approximate(_LOG_NORMAL)
    def rule(input: Moments) -> Moments:
        y = log(input)
        return Moments(y.loc * scale, y.variance * scale * scale)

    return rule


log2: Callable[[Moments], Moments] = _logarithm(2.0)
log10: Callable[[Moments], Moments] = _logarithm(10.0)


def _raised(mean: Tensor, s2: Tensor, exponent: Any) -> tuple[Tensor, Tensor]:
    """E x^p = (E x)^p e^{p(p−1)s²/2}, and its relative variance e^{p²s²} − 1."""
    raised = torch.pow(mean, exponent) * torch.exp(exponent * (exponent - 1) / 2 * s2)
    return raised, (raised * numerics.std(numerics.expm1(exponent * exponent * s2))).square()


@_log_normal(torch.sqrt)
def sqrt(mean: Tensor, s2: Tensor) -> tuple[Tensor, Tensor]:
    return _raised(mean, s2, 0.5)


@_log_normal(torch.rsqrt)
def rsqrt(mean: Tensor, s2: Tensor) -> tuple[Tensor, Tensor]:
    return _raised(mean, s2, -0.5)


@_log_normal(torch.pow)
def _power_of_positive(mean: Tensor, s2: Tensor, exponent: float | Tensor) -> tuple[Tensor, Tensor]:
    return _raised(mean, s2, exponent)


@approximate(_LOG_NORMAL)
def _signed_power(input: Moments, exponent: float | Tensor) -> Moments:
    """x^p = (sign x)^p |x|^p, the sign that of the mean; NaN where that has no power p."""
    negative = input.loc < 0
    y = _power_of_positive(Moments(torch.where(negative, -input.loc, input.loc), input.variance), exponent)
    sign = torch.pow(torch.where(negative, -1.0, 1.0).to(input.dtype), exponent)
    return Moments(y.loc * sign, y.variance * sign.to(y.variance.dtype).square())


@approximate(_LOG_NORMAL + ", on the side of 0 where the mean is")
def reciprocal(input: Moments) -> Moments:
    return _signed_power(input, -1.0)


def _whole_power(input: Moments, exponent: int) -> Moments:
    """Exact: the rule integrates its square."""

    @elementwise(lambda m: m**exponent)
    def rule(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return expectation(lambda x: x**exponent, m, v, _NODES[exponent])

    return rule(input)


@approximate(f"exact for exponents 1, 2, … {max(_NODES)}; others " + _LOG_NORMAL)
def power(input: Moments | Tensor | float, exponent: Moments | Tensor | float) -> Moments:
    if isinstance(exponent, Moments):
        return _exponential(input, exponent)
    assert isinstance(input, Moments)
    if isinstance(exponent, Tensor):
        return _signed_power(input, exponent.to(input.variance.dtype))
    if exponent == 0:
        return Moments(torch.ones_like(input.loc), 0.0)
    if exponent in (1, 2, 3, 4):
        return activations.small_power(input, int(exponent))
    if exponent in _NODES:
        return _whole_power(input, int(exponent))
    return _signed_power(input, float(exponent))


def _exponential(base: Any, exponent: Moments) -> Moments:
    """base^x = e^{x log base}, exact."""
    if isinstance(base, Moments):
        raise refusal(torch.pow, "base and exponent are both random")
    scale = torch.log(base) if isinstance(base, Tensor) else math.log(base) if base > 0 else math.nan
    y = activations.exp(arithmetic.mul(exponent, scale))
    return Moments(torch.where(exponent.variance != 0, y.loc, torch.pow(base, exponent.loc)), y.variance)


@approximate("exact for a plain divisor; a random one " + _LOG_NORMAL)
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Moments:
    if not isinstance(other, Moments):
        return arithmetic.div(input, other, rounding_mode=rounding_mode)
    if rounding_mode is not None:
        raise refusal(torch.div, "rounding jumps")
    if input is other:
        return Moments(torch.ones_like(input.loc), 0.0)
    return arithmetic.mul(input, reciprocal(other))


@approximate("a random divisor " + _LOG_NORMAL)
def rdiv(input: Moments, other: Any) -> Moments:
    return div(other, input)
