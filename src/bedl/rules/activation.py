"""Activations in closed form: mean and variance of g(x) for x ~ N(m, v), entry by entry.

Every form is arranged so that no variance can turn negative by cancellation; `bedl.special` explains the tails.
Shapes: all tensors here are (*shape), and all results too.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl import gauss, special
from bedl.dispatch import refusal
from bedl.moments import Moments, as_moments
from bedl.rules._marks import elementwise
from bedl.rules.rectified import rectified
from bedl.special import normal_cdf, normal_pdf, standardize, std


@elementwise()
def relu(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return rectified(m, v, alone=True)


@elementwise()
def leaky_relu(m: Tensor, v: Tensor, negative_slope: float | Tensor = 0.01) -> tuple[Tensor, Tensor]:
    # x₊ − a·(−x)₊; the two halves never act together, so E[product] = 0 and their covariance is −M₊M₋.
    above, variance_above = rectified(m, v, added=True)
    below, variance_below = rectified(-m, v, added=True)
    a = negative_slope
    # the product of both first: one of them is 0 where the other is huge; and in the tails rounding is all that is left
    return above - a * below, (variance_above + a * a * variance_below + 2 * a * (above * below)).clamp_min(0)


@elementwise()
def absolute(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    above, variance_above = rectified(m, v)
    below, variance_below = rectified(-m, v)
    return above + below, (variance_above + variance_below - 2 * (above * below)).clamp_min(0)


def prelu(input: Moments, weight: Tensor) -> Moments:
    if isinstance(weight, Moments):
        raise refusal(F.prelu, "its slope is random; keep PReLU's own weight a plain tensor")
    if weight.numel() > 1 and input.dim() > 1:
        weight = weight.view(1, -1, *[1] * (input.dim() - 2))
    return leaky_relu(input, weight)


def _variance_of_exp(m: Tensor, v: Tensor) -> Tensor:
    """e^{2m + v}(e^v − 1), in an order in which nothing overflows that does not in the end."""
    high = torch.exp(m + v)
    return high * (high * -special.expm1(-v))


@elementwise(torch.exp)
def exp(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return torch.exp(m + 0.5 * v), _variance_of_exp(m, v)


@elementwise(torch.expm1)
def expm1(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return special.expm1(m + 0.5 * v), _variance_of_exp(m, v)


@elementwise(torch.sin)
def sin(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    # ½(1 − e⁻ᵛ)(1 + e⁻ᵛ cos 2m), the last factor as a sum of non-negative terms
    gone = -special.expm1(-v)
    return torch.exp(-0.5 * v) * torch.sin(m), 0.5 * gone * (gone + 2 * torch.exp(-v) * torch.cos(m).square())


@elementwise(torch.cos)
def cos(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    gone = -special.expm1(-v)
    return torch.exp(-0.5 * v) * torch.cos(m), 0.5 * gone * (gone + 2 * torch.exp(-v) * torch.sin(m).square())


@elementwise(torch.square)
def square(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return m * m + v, 2 * v * v + 4 * m * (m * v)  # m² may overflow where m²v does not


@elementwise(lambda m: m**3)
def _cube(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    m2v = m * (m * v)
    return m * (m * m + 3 * v), 9 * m * (m * m2v) + v * (36 * m2v + 15 * v * v)


@elementwise(lambda m: m**4)
def _fourth(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    m2, m2v, m3s = m * m, m * (m * v), m * (m * (m * std(v)))
    return m2 * m2 + 6 * m2v + 3 * v * v, 16 * m3s * m3s + 168 * m2v * m2v + v * v * (384 * m2v + 96 * v * v)


def _copied(x: Moments) -> Moments:
    """The same values, which a later in-place operation on one of the two changes for itself."""
    return Moments(x.loc, x.variance)


def small_power(input: Moments, exponent: int) -> Moments:
    """Of exponents from 1 to 4; `positive.power` has the others."""
    return _copied(input) if exponent == 1 else {2: square, 3: _cube, 4: _fourth}[exponent](input)


_LEGENDRE = gauss.legendre(12)


def _clipped(m: Tensor, v: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Moments of min(max(x, low), high), seen from the end that is nearer, where nothing cancels.

    σ ≤ half the width: two rectifications. σ above: they would cancel, but the density is then so flat between
    the ends that a Gauss–Legendre rule is exact to rounding.
    """
    width = high - low
    mirrored = m > 0.5 * (low + high)
    height = torch.where(mirrored, high - m, m - low)  # of the mean over the nearer end; at most half the width
    # narrow
    first, variance_first = rectified(height, v)
    second, variance_second = rectified(height - width, v)
    narrow = v <= 0.25 * width * width
    variance_narrow = variance_first - variance_second - 2 * second * (width - first + second)
    # wide
    sigma = torch.where(narrow, 0.5 * width, std(v))
    top = normal_cdf((height - width) / sigma)
    u, weight = gauss.tensors(_LEGENDRE, m)
    x = 0.5 * width * (1 + u)  # over the nearer end
    density = normal_pdf((x - height.unsqueeze(-1)) / sigma.unsqueeze(-1)) / sigma.unsqueeze(-1)  # (*, nodes)
    inner = density @ (0.5 * width * weight.unsqueeze(-1) * torch.stack([x, x * x], -1))
    one, two = width * top + inner[..., 0], width * width * top + inner[..., 1]
    above = torch.where(narrow, first - second, one)
    mean = torch.where(mirrored, high - above, low + above)
    # Between the ends and narrow, the mean hardly moves: what is cut off below and above, added to m, keeps its digits.
    below = rectified(-height, v)[0]
    inside = narrow & (height >= 0)
    mean = torch.where(inside, m + torch.where(mirrored, second - below, below - second), mean)
    return mean, torch.where(narrow, variance_narrow, two - one * one)


@elementwise(F.hardtanh)
def hardtanh(m: Tensor, v: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> tuple[Tensor, Tensor]:
    return _clipped(m, v, min_val, max_val)


def relu6(input: Moments) -> Moments:
    return hardtanh(input, 0.0, 6.0)


@elementwise(F.hardsigmoid)
def hardsigmoid(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    mean, variance = _clipped(m, v, -3.0, 3.0)
    return mean / 6 + 0.5, variance / 36


def clamp(input: Moments, min: float | None = None, max: float | None = None) -> Moments:
    if any(isinstance(bound, (Tensor, Moments)) for bound in (min, max)):
        raise refusal(torch.clamp, "its bounds must be numbers")
    if max is None:
        return threshold(input, min, min) if min is not None else input
    if min is None:
        return _negative(threshold(_negative(input), -max, -max))
    return hardtanh(input, min, max)


def threshold(input: Moments, threshold: float, value: float) -> Moments:
    if threshold != value:
        raise refusal(F.threshold, "it jumps: only value == threshold is defined")
    return _floor(input, threshold)


@elementwise(torch.clamp_min)
def _floor(m: Tensor, v: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    above, variance = rectified(m - floor, v)
    below, _ = rectified(floor - m, v)
    return torch.where(m > floor, m + below, floor + above), variance  # the form that keeps m's own digits


def _negative(x: Moments) -> Moments:
    return Moments(-x.loc, x.variance)


def maximum(input: Moments | Tensor, other: Moments | Tensor) -> Moments:
    """max(a, b) = b + (a − b)₊ for independent a, b, with b the larger mean.

    V = v_b·(1 − 2Φ(α)) + V₊ with α = (m_a − m_b)/√(v_a + v_b) ≤ 0.
    """
    if input is other and isinstance(input, Moments):
        return _copied(input)
    a, b = _pair(input, other)
    swap = a.loc > b.loc
    m_low, v_low = torch.where(swap, b.loc, a.loc), torch.where(swap, b.variance, a.variance)
    m_high, v_high = torch.where(swap, a.loc, b.loc), torch.where(swap, a.variance, b.variance)
    spread = v_low + v_high
    gap = (m_low - m_high).to(spread.dtype)
    excess, variance = rectified(gap, spread)
    alpha = standardize(gap, std(spread))
    return Moments(m_high + excess.to(m_high.dtype), v_high * torch.erf(-alpha * math.sqrt(0.5)) + variance)


def minimum(input: Moments | Tensor, other: Moments | Tensor) -> Moments:
    if input is other and isinstance(input, Moments):
        return _copied(input)
    a, b = _pair(input, other)
    return _negative(maximum(_negative(a), _negative(b)))


def _pair(a: Moments | Tensor, b: Moments | Tensor) -> tuple[Moments, Moments]:
    a, b = as_moments(a), as_moments(b)
    shape = torch.broadcast_shapes(a.shape, b.shape)
    return tuple(Moments(x.loc.expand(shape), x.variance.expand(shape)) for x in (a, b))  # type: ignore[return-value]
