"""Activations in closed form: mean and variance of g(x) for x ~ N(m, v), entry by entry.

Every form is arranged so that no variance can turn negative by cancellation; `bedl.special` explains the tails.
Shapes: all tensors here are (*shape), and all results too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bedl import native, special
from bedl.dispatch import refusal
from bedl.moments import Moments, as_moments
from bedl.rules._marks import elementwise
from bedl.special import FAR, NEGLIGIBLE, normal_cdf, normal_pdf, standardize, std, tail_moments

_SMALLEST_STD = 1e-19  # its inverse is finite in float32
# Numbers from which compiled code calls a kernel. In predictions it is faster, if slower to compile, to make ReLU one
# with what follows; in training that would be done twice, as the backward pass computes it again.
MANY, MANY_TO_PREDICT = 1 << 14, 1 << 20


def _rectified_in_passing(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """What `_Rectified` gives, each number written to memory as few times as uncompiled code can: a third the time.

    V = v·(Φ(r) − T1(T1 + |r|)) with T1 = φ(r) + rΦ(r) − r₊. Its error is 1e-6 v. Far below zero that is no longer small
    beside the variance itself: 3e-5 of it at r = −3, 1e-2 at −9. shapes: (*), (*) -> (*), (*)
    """
    sigma = v.clamp_min(0).sqrt_()
    inverse = sigma.clamp_min(_SMALLEST_STD).reciprocal_()
    # vmap has no rules for clamp_, addcmul_ and square_
    r = torch.clamp(m * inverse, -NEGLIGIBLE[m.dtype], NEGLIGIBLE[m.dtype])
    del inverse
    probability = (r * -special.SQRT_HALF).erfc_().mul_(0.5)
    pdf = r.square().mul_(-0.5).exp_().mul_(special.INV_SQRT_2PI)
    t1 = torch.addcmul(pdf, r, probability)
    del pdf
    t1.sub_(r.clamp_min(0))
    mean = torch.addcmul(m.clamp_min(0), sigma, t1)
    return mean, r.abs_().add_(t1).mul_(t1).neg_().add_(probability).mul_(v)


def _slopes(m: Tensor, v: Tensor, alone: bool) -> tuple[Tensor, Tensor]:
    """Φ(r) and φ(r)/σ, r = m/σ; where σ = 0, a step and 0 (see `special.std`). shapes: (*), (*) -> 2 × (*)"""
    known = v <= 0
    sigma = v.masked_fill(known, 1.0).sqrt()
    limit = NEGLIGIBLE[m.dtype] if alone else FAR
    r = torch.clamp(m.masked_fill(known, 0.0) / sigma, -limit, limit)
    if torch.compiler.is_compiling():
        pdf, upper, _, _ = tail_moments(r.abs())
        probability = torch.where(r < 0, upper, 1 - upper)
    else:
        pdf, probability = normal_pdf(r), normal_cdf(r)
    return torch.where(known, 0.5 + 0.5 * m.sign(), probability), (pdf / sigma).masked_fill(known, 0.0)


def _rectified_gradients(
    m: Tensor, v: Tensor, mean: Tensor, grad_mean: Tensor, grad_variance: Tensor, alone: bool
) -> tuple[Tensor, Tensor]:
    """What `_Rectified.backward` gives, in as little memory as uncompiled code can. shapes: (*)"""
    limit = NEGLIGIBLE[m.dtype] if alone else FAR
    known = v <= 0
    inverse = torch.clamp(v.clamp_min(0).rsqrt_(), max=1 / _SMALLEST_STD)
    r = torch.clamp(m * inverse, -limit, limit)
    probability = (r * -special.SQRT_HALF).erfc_().mul_(0.5)
    density = r.mul_(r).mul_(-0.5).exp_().mul_(special.INV_SQRT_2PI).mul_(inverse).masked_fill_(known, 0.0)
    del inverse
    grad_m = torch.addcmul(mean, mean, probability, value=-1).mul_(grad_variance).mul_(2)
    grad_m = torch.addcmul(grad_m, grad_mean, probability)
    grad_v = torch.addcmul(probability, mean, density, value=-1).mul_(grad_variance)
    del probability
    return grad_m, torch.addcmul(grad_v, grad_mean, density, value=0.5)


def _rectified(m: Tensor, v: Tensor, alone: bool, many: int) -> tuple[Tensor, Tensor]:
    """What `rectified` gives, without derivatives; `many` as for `native.suits`. shapes: (*), (*) -> (*), (*)"""
    if alone and native.suits(m, v, many=many):
        return native.rectified(m, v, *special.HALF_LINE, NEGLIGIBLE[m.dtype])
    if alone and not torch.compiler.is_compiling():
        return _rectified_in_passing(m, v)
    sigma = v.clamp_min(0).sqrt()
    x = (m / sigma.clamp_min(_SMALLEST_STD)).abs().clamp_max(NEGLIGIBLE[m.dtype] if alone else FAR)
    _, _, t1, t2 = tail_moments(x)
    variance = v * torch.where(m < 0, t2 - t1 * t1, 1 - t2 - t1 * (t1 + 2 * x))
    return m.clamp_min(0) + sigma * t1, variance


class _Rectified(torch.autograd.Function):
    """Moments of max(x, 0), with the derivatives written out: half the work of recorded ones, a third the memory.

    With r = m/σ, x = |r|:  M = m₊ + σT1(x),  V = v·(T2 − T1²) for r < 0, v·(1 − T2 − T1(T1 + 2x)) for r ≥ 0.
    dM/dm = Φ(r), dM/dv = φ/2σ, dV/dm = 2M Φ(−r), dV/dv = Φ(r) − Mφ/σ.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(m: Tensor, v: Tensor, alone: bool) -> tuple[Tensor, Tensor]:
        return _rectified(m, v, alone, MANY)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        *moments, ctx.alone = inputs
        ctx.save_for_backward(*moments, output[0])

    @staticmethod
    def backward(ctx: Any, grad_mean: Tensor, grad_variance: Tensor) -> tuple[Tensor, Tensor, None]:
        m, v, mean = ctx.saved_tensors
        if ctx.alone and native.suits(m, v, mean, grad_mean, grad_variance, many=MANY):
            far = NEGLIGIBLE[m.dtype]
            return *native.rectified_gradients(m, v, mean, grad_mean, grad_variance, *special.HALF_LINE, far), None
        if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return *_rectified_gradients(m, v, mean, grad_mean, grad_variance, ctx.alone), None
        probability, density = _slopes(m, v, ctx.alone)
        above = torch.addcmul(mean, mean, probability, value=-1)
        grad_m = torch.addcmul(grad_mean * probability, grad_variance, above, value=2)
        within = torch.addcmul(probability, mean, density, value=-1)
        grad_v = torch.addcmul(grad_variance * within, grad_mean, density, value=0.5)
        return grad_m, grad_v, None


def rectified(m: Tensor, v: Tensor, alone: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and variance of max(x, 0). shapes: (*), (*) -> (*), (*)

    Args:
        alone: nothing will be subtracted from the result, so digits of values next to 0 do not matter: faster.
    """
    compiled = torch.compiler.is_compiling()
    if compiled and not torch.is_grad_enabled():
        return _rectified(m, v, alone, MANY_TO_PREDICT)
    if alone and not compiled and native.suits(m, v):  # nothing is recorded
        return native.rectified(m, v, *special.HALF_LINE, NEGLIGIBLE[m.dtype])
    return native.apply(_Rectified, m, v, alone)


@elementwise()
def relu(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return rectified(m, v, alone=True)


@elementwise()
def leaky_relu(m: Tensor, v: Tensor, negative_slope: float | Tensor = 0.01) -> tuple[Tensor, Tensor]:
    # x₊ − a·(−x)₊; the two halves never act together, so E[product] = 0 and their covariance is −M₊M₋.
    above, variance_above = rectified(m, v)
    below, variance_below = rectified(-m, v)
    a = negative_slope
    return above - a * below, variance_above + a * a * variance_below + 2 * a * above * below


@elementwise()
def absolute(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    above, variance_above = rectified(m, v)
    below, variance_below = rectified(-m, v)
    return above + below, variance_above + variance_below - 2 * above * below


def prelu(input: Moments, weight: Tensor) -> Moments:
    if isinstance(weight, Moments):
        raise refusal(F.prelu, "its slope is random; keep PReLU's own weight a plain tensor")
    if weight.numel() > 1 and input.dim() > 1:
        weight = weight.view(1, -1, *[1] * (input.dim() - 2))
    return leaky_relu(input, weight)


@elementwise(torch.exp)
def exp(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return torch.exp(m + 0.5 * v), torch.exp(2 * m + v) * special.expm1(v)


@elementwise(torch.expm1)
def expm1(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return special.expm1(m + 0.5 * v), torch.exp(2 * m + v) * special.expm1(v)


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
    return m * m + v, 2 * v * (v + 2 * m * m)


@elementwise(lambda m: m**3)
def _cube(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    m2 = m * m
    return m * (m2 + 3 * v), v * (9 * m2 * m2 + 36 * m2 * v + 15 * v * v)


@elementwise(lambda m: m**4)
def _fourth(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    m2 = m * m
    return m2 * (m2 + 6 * v) + 3 * v * v, 8 * v * (2 * m2**3 + v * (21 * m2 * m2 + v * (48 * m2 + 12 * v)))


def small_power(input: Moments, exponent: int) -> Moments:
    """Of exponents from 1 to 4; `positive.power` has the others."""
    return input if exponent == 1 else {2: square, 3: _cube, 4: _fourth}[exponent](input)


_LEGENDRE = tuple(t.tolist() for t in np.polynomial.legendre.leggauss(12))  # nodes and weights on [−1, 1]


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
    u, weight = (torch.tensor(t, dtype=m.dtype, device=m.device) for t in _LEGENDRE)
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
        return input
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
        return input
    a, b = _pair(input, other)
    return _negative(maximum(_negative(a), _negative(b)))


def _pair(a: Moments | Tensor, b: Moments | Tensor) -> tuple[Moments, Moments]:
    a, b = as_moments(a), as_moments(b)
    shape = torch.broadcast_shapes(a.shape, b.shape)
    return tuple(Moments(x.loc.expand(shape), x.variance.expand(shape)) for x in (a, b))  # type: ignore[return-value]
