"""Activations without a closed form: deterministic quadrature, and a rule for any elementwise function.

Plain Gauss–Hermite quadrature fails once σ exceeds the scale on which a function bends: its nodes step over the bend.
The bending activations are known far from 0, though: sigmoid is a step, SiLU a ReLU. So for σ ≥ 1.25 the asymptote is
taken in closed form and only the remainder, which has died out at |x| = 18, is integrated, in x, where the *density* is
now the flat factor. Functions with kinks are integrated piece by piece. Shapes: (*) throughout, with a trailing axis of
nodes inside.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl.moments import Moments, numerics
from bedl.moments.dispatch import refusal
from bedl.moments.numerics import FAR, normal_cdf, normal_pdf, standardize, std
from bedl.moments.rules import activations, arithmetic
from bedl.moments.rules._base import approximate, elementwise
from bedl.moments.rules.arithmetic import mul
from bedl.moments.rules.relu import relu_moments

Function = Callable[[Tensor], Tensor]
_SWITCH = 1.25  # the σ from which the asymptote is split off
_REACH = 18.0  # where e^{−|x|} has fallen to 1.5e-8
_MAX_STDS = 7.0  # standard deviations that a piecewise rule spans


_NEAR = 8.0  # standard deviations within which a value lies for all that matters
_GONE = {torch.float32: 100.0, torch.float64: 800.0}  # where e^{−|x|} is 0

_SMOOTH = numerics.hermite(28)
# over [−REACH, REACH], split at 0, where the asymptotes have their kink or step
_REMAINDER = numerics.joined(numerics.legendre(24, -_REACH, 0.0), numerics.legendre(24, 0.0, _REACH))


def expectation(
    function: Function, m: Tensor, v: Tensor, rule: numerics.Rule = _SMOOTH, kinks: Sequence[float] = ()
) -> tuple[Tensor, Tensor]:
    """Mean and variance of function(x), x ~ N(m, v). shapes: (*), (*) -> (*), (*)

    By a Gauss–Hermite rule for a smooth function, or a Gauss–Legendre rule on each piece between kinks. Written as a
    deviation from function(m), so that small variances keep their digits; the variance is a sum of squares.
    """
    sigma = std(v)
    z, w = _pieces(m, sigma, rule, kinks) if kinks else numerics.tensors(rule, m)
    centre = function(m).unsqueeze(-1)
    deviation = function(m.unsqueeze(-1) + sigma.unsqueeze(-1) * z) - centre
    shift = (deviation * w).sum(-1, keepdim=True)
    residual = deviation - shift
    # weighted before it is squared: far nodes have large values and small weights
    return (centre + shift).squeeze(-1), (residual * (residual * w)).sum(-1)


def _pieces(m: Tensor, sigma: Tensor, rule: numerics.Rule, kinks: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Nodes and weights of a rule that is split at the kinks. shapes: (*), (*) -> 2 × (*, pieces·nodes)"""
    u, w = numerics.tensors(rule, m)
    borders = [standardize(k - m, sigma).clamp(-_MAX_STDS, _MAX_STDS) for k in sorted(kinks)]
    edges = torch.stack([torch.full_like(m, -_MAX_STDS), *borders, torch.full_like(m, _MAX_STDS)], -1)
    half = edges.diff(dim=-1).unsqueeze(-1) / 2
    z = (edges[..., :-1].unsqueeze(-1) + half * (1 + u)).flatten(-2)
    return z, (half * w).flatten(-2) * normal_pdf(z)


def quadrature(function: Function, nodes: int = 32, kinks: Sequence[float] = ()) -> Callable[..., Moments]:
    """A rule for any elementwise function, by Gauss–Hermite quadrature.

    Accurate where the function is smooth on the scale of the input's standard deviation. Name the places where it is
    not (`kinks`), and each smooth piece gets `nodes` nodes of its own.

    Example:
        >>> import bedl, torch
        >>> rule = bedl.rules.quadrature(torch.atan)
        >>> with bedl.use_rules({torch.atan: rule}):
        ...     torch.atan(bedl.Moments(torch.tensor([1.0]), 0.25)).loc
        tensor([0.7264])
    """

    family, points = ("Legendre", numerics.legendre(nodes)) if kinks else ("Hermite", numerics.hermite(nodes))

    @approximate(f"Gauss–{family} quadrature, {nodes} nodes")
    @elementwise(function)
    def rule(m: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return expectation(lambda x: function(x, *args, **kwargs), m, v, points, kinks)

    return rule


def _split(
    function: Function,
    asymptote: Function,
    asymptote_moments: Callable,
    m: Tensor,
    v: Tensor,
    remainder_rule: numerics.Rule = _REMAINDER,
    gone: float | None = None,
    narrow: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of `function`, splitting off its asymptote where σ is large, or 0 far away.

    With g = a + ρ:  E g = E a + E ρ,  Var g = Var a + 2 E[(a − E a)ρ] + E ρ² − (E ρ)².

    Args:
        function, asymptote: g and a.
        asymptote_moments: of m and v: mean and variance of a.
        m, v: shapes (*), (*)
        remainder_rule: nodes and weights of integrals over ρ.
        gone: |x| from which ρ is 0, so that g need not be evaluated: beside a large m, steps of σ are lost in rounding.
        narrow: of m and v: the moments where σ is small; by Gauss–Hermite quadrature if it is not said.
    """
    narrow = narrow or (lambda m, v: expectation(function, m, v))
    gone = gone or _GONE[m.dtype]
    wide = v >= _SWITCH * _SWITCH
    near = (m.abs() <= gone + _NEAR * std(v)) & ~wide
    # each branch sees the other's entries replaced by harmless ones
    mean_narrow, variance_narrow = narrow(torch.where(near, m, 0.0), torch.where(near, v, 0.0))
    sigma = torch.where(wide, v, _SWITCH * _SWITCH).sqrt().unsqueeze(-1)
    x, w = numerics.tensors(remainder_rule, m)
    base = asymptote(x)
    remainder = function(x) - base
    integrands = torch.stack([remainder, base * remainder, remainder.square()], -1) * w.unsqueeze(-1)  # (nodes, 3)
    distance = (x - torch.where(wide, m, 0.0).unsqueeze(-1)) / sigma
    density = normal_pdf(distance.clamp(-FAR, FAR)) / sigma
    mean, mixed, squared = (density @ integrands).unbind(-1)
    base_mean, base_variance = asymptote_moments(torch.where(near, 0.0, m), torch.where(near, 1.0, v))
    variance = base_variance + 2 * (mixed - base_mean * mean) + (squared - mean * mean)
    mean_far, variance_far = torch.where(wide, base_mean + mean, base_mean), torch.where(wide, variance, base_variance)
    return torch.where(near, mean_narrow, mean_far), torch.where(near, variance_narrow, variance_far.clamp_min(0))


def _step_moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    r = standardize(m, std(v))
    return normal_cdf(r), normal_cdf(r) * normal_cdf(-r)


def _step(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype)


_SPLIT = "quadrature, relative error ≤ 1e-4"
_HARD = numerics.joined(numerics.legendre(24, -3.0, 0.0), numerics.legendre(24, 0.0, 3.0))


def _like_relu(function: Function, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _split(function, torch.relu, relu_moments, m, v)


@approximate(_SPLIT)
@elementwise(torch.sigmoid)
def sigmoid(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _split(torch.sigmoid, _step, _step_moments, m, v)


@approximate(_SPLIT)
@elementwise(torch.tanh)
def tanh(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    def scaled(x: Tensor) -> Tensor:  # so that the remainder dies out within the rule's reach
        return torch.tanh(0.5 * x)

    def sign_moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        _, variance = _step_moments(m, v)
        return torch.erf(standardize(m, std(v)) * 0.5**0.5), 4 * variance

    return _split(scaled, torch.sign, sign_moments, 2 * m, 4 * v)


@approximate(_SPLIT)
@elementwise(F.silu)
def silu(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _like_relu(F.silu, m, v)


@approximate(_SPLIT)
@elementwise(F.mish)
def mish(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _like_relu(F.mish, m, v)


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """F.gelu, whose slope in the form with tanh is NaN from |x| = 1e13 on, where x³ overflows."""
    if approximate == "none":
        return F.gelu(x)
    return torch.where(x > 30, x, F.gelu(x.clamp(-30, 30), approximate=approximate))


@approximate(_SPLIT)
@elementwise(_gelu)
def gelu(m: Tensor, v: Tensor, approximate: str = "none") -> tuple[Tensor, Tensor]:
    return _like_relu(lambda x: _gelu(x, approximate), m, v)


@approximate(_SPLIT)
@elementwise(F.hardswish)
def hardswish(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    def narrow(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return expectation(F.hardswish, m, v, numerics.legendre(20), kinks=(-3.0, 3.0))

    return _split(F.hardswish, torch.relu, relu_moments, m, v, _HARD, gone=3.0, narrow=narrow)


@approximate(_SPLIT)
@elementwise(F.softplus)
def softplus(m: Tensor, v: Tensor, beta: float = 1.0, threshold: float = 20.0) -> tuple[Tensor, Tensor]:
    def unit(x: Tensor) -> Tensor:
        return F.softplus(x, threshold=threshold)

    if beta <= 1:
        mean, variance = _like_relu(unit, beta * m, beta * beta * v)
        return mean / beta, variance / (beta * beta)
    huge = (m.abs() > 1e30) | (v > 1e30)  # there it is ReLU, and in its own scale would overflow
    mean, variance = _like_relu(unit, beta * torch.where(huge, 0.0, m), beta * beta * torch.where(huge, 0.0, v))
    mean_huge, variance_huge = relu_moments(m, v)
    return torch.where(huge, mean_huge, mean / beta), torch.where(huge, variance_huge, variance / (beta * beta))


@approximate(_SPLIT)
@elementwise(F.logsigmoid)
def logsigmoid(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    mean, variance = _like_relu(F.softplus, -m, v)
    return -mean, variance


@approximate(_SPLIT)
def glu(input: Moments, dim: int = -1) -> Moments:
    """The first half times the sigmoid of the second, which is independent of it."""
    if input.shape[dim] % 2:
        raise ValueError(f"glu: axis {dim} has odd length {input.shape[dim]}, so it has no halves")
    (loc, gate), (variance, gate_variance) = input.loc.chunk(2, dim), input.variance.chunk(2, dim)
    return mul(Moments(loc, variance), sigmoid(Moments(gate, gate_variance)))


# Roots, logarithms, reciprocals and powers: functions of quantities that have one sign.
#
# A Gaussian reaches over 0, where these have no value; what networks put into them (a mean of squares, a sum of
# exponentials) does not. So x ~ N(m, v) is read as a *log-normal* variable, with the mean and variance of the
# positive
# part max(x, 0): those of x itself, to 1e-4, where m > 3.5 standard deviations, and finite down to m = 0. A logarithm
# is then Gaussian, a power log-normal again, and no moment is infinite. Where m itself is outside the domain, the
# plain
# function has no value and the rule has none (NaN). Reciprocals read x on the side of 0 where m is. Shapes: (*shape).


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
            below, _ = relu_moments(-height, v)
            _, spread = relu_moments(height, v)
            above = torch.where(known, 1.0, height.clamp_min(0) + below)  # E max(height, 0)
            s2 = torch.log1p(spread / above / above)
            mean, variance = moments_of(m + below if origin else above, s2, *args)
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


log2, log10 = _logarithm(2.0), _logarithm(10.0)


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


# The error function: a step, seen from afar.


_SCALE = 2.5  # erf(x/2.5) bends on the scale of 1, as the rule wants it


def _sign_moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    _, variance = _step_moments(m, v)
    return torch.erf(standardize(m, std(v)) * 0.5**0.5), 4 * variance


@approximate(_SPLIT)
@elementwise(torch.erf)
def erf(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The mean is erf(m/√(1 + 2v)), exactly."""
    _, variance = _split(lambda x: torch.erf(x / _SCALE), torch.sign, _sign_moments, _SCALE * m, _SCALE * _SCALE * v)
    return torch.erf(m * torch.rsqrt(1 + 2 * v)), variance


@approximate(_SPLIT)
def erfc(input: Moments) -> Moments:
    y = erf(input)
    return Moments(torch.where(input.variance != 0, 1 - y.loc, torch.erfc(input.loc)), y.variance)
