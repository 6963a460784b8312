"""Activations in closed form: mean and variance of g(x) for x ~ N(m, v), entry by entry.

Every form is arranged so that no variance can turn negative by cancellation; `numerics` explains the tails.
Shapes: all tensors here are (*shape), and all results too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl import _kernels
from bedl._utils.autograd import apply, differentiated
from bedl.moments import Moments, as_moments, numerics
from bedl.moments.dispatch import refusal
from bedl.moments.numerics import FAR, NEGLIGIBLE, mills, mills_differences, normal_cdf, normal_pdf, standardize, std
from bedl.moments.rules._base import approximate, elementwise
from bedl.moments.rules.relu import relu_moments


@elementwise()
def relu(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return relu_moments(m, v, alone=True)


@elementwise()
def leaky_relu(m: Tensor, v: Tensor, negative_slope: float | Tensor = 0.01) -> tuple[Tensor, Tensor]:
    # x₊ − a·(−x)₊; the two halves never act together, so E[product] = 0 and their covariance is −M₊M₋.
    above, variance_above = relu_moments(m, v, added=True)
    below, variance_below = relu_moments(-m, v, added=True)
    a = negative_slope
    # the product of both first: one of them is 0 where the other is huge; and in the tails rounding is all that is left
    return above - a * below, (variance_above + a * a * variance_below + 2 * a * (above * below)).clamp_min(0)


@elementwise()
def softshrink(m: Tensor, v: Tensor, lambd: float = 0.5) -> tuple[Tensor, Tensor]:
    # (x − λ)₊ − (−x − λ)₊, of which one is always 0: their covariance is −M₊M₋
    above, variance_above = relu_moments(m - lambd, v)
    below, variance_below = relu_moments(-m - lambd, v)
    return above - below, variance_above + variance_below + 2 * (above * below)


@elementwise()
def absolute(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    above, variance_above = relu_moments(m, v)
    below, variance_below = relu_moments(-m, v)
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
    return high * (high * -numerics.expm1(-v))


@elementwise(torch.exp)
def exp(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return torch.exp(m + 0.5 * v), _variance_of_exp(m, v)


@elementwise(torch.expm1)
def expm1(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return numerics.expm1(m + 0.5 * v), _variance_of_exp(m, v)


@elementwise(torch.sin)
def sin(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    # ½(1 − e⁻ᵛ)(1 + e⁻ᵛ cos 2m), the last factor as a sum of non-negative terms
    gone = -numerics.expm1(-v)
    return torch.exp(-0.5 * v) * torch.sin(m), 0.5 * gone * (gone + 2 * torch.exp(-v) * torch.cos(m).square())


@elementwise(torch.cos)
def cos(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    gone = -numerics.expm1(-v)
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


_LEGENDRE = numerics.legendre(12)
_NODES = [x for pair in zip(*_LEGENDRE, strict=True) for x in pair]  # as a kernel reads them


def _clipped(m: Tensor, v: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Moments of min(max(x, low), high), seen from the end that is nearer, where nothing cancels.

    σ ≤ half the width: two rectifications. σ above: they would cancel, but the density is then so flat between
    the ends that a Gauss–Legendre rule is exact to rounding.
    """
    width = high - low
    mirrored = m > 0.5 * (low + high)
    height = torch.where(mirrored, high - m, m - low)  # of the mean over the nearer end; at most half the width
    # narrow
    first, variance_first = relu_moments(height, v)
    second, variance_second = relu_moments(height - width, v)
    narrow = v <= 0.25 * width * width
    variance_narrow = variance_first - variance_second - 2 * second * (width - first + second)
    # wide
    sigma = torch.where(narrow, 0.5 * width, std(v))
    top = normal_cdf((height - width) / sigma)
    u, weight = numerics.tensors(_LEGENDRE, m)
    x = 0.5 * width * (1 + u)  # over the nearer end
    density = normal_pdf((x - height.unsqueeze(-1)) / sigma.unsqueeze(-1)) / sigma.unsqueeze(-1)  # (*, nodes)
    inner = density @ (0.5 * width * weight.unsqueeze(-1) * torch.stack([x, x * x], -1))
    one, two = width * top + inner[..., 0], width * width * top + inner[..., 1]
    above = torch.where(narrow, first - second, one)
    mean = torch.where(mirrored, high - above, low + above)
    # Between the ends and narrow, the mean hardly moves: what is cut off below and above, added to m, keeps its digits.
    below = relu_moments(-height, v)[0]
    inside = narrow & (height >= 0)
    mean = torch.where(inside, m + torch.where(mirrored, second - below, below - second), mean)
    return mean, torch.where(narrow, variance_narrow, two - one * one)


def _law(m: Tensor) -> tuple[Any, ...]:
    """What kernels need to know of it."""
    return _NODES, *numerics.HALF_LINE, NEGLIGIBLE[m.dtype]


class _ClippedByKernel(torch.autograd.Function):
    """The same by a kernel, with its derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(m: Tensor, v: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
        if _kernels.supported(m, v):
            return _kernels.clipped_moments(m, v, low, high, *_law(m))
        return _clipped(m, v, low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        *moments, ctx.low, ctx.high = inputs
        ctx.save_for_backward(*moments, output[0])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        m, v, mean = ctx.saved_tensors
        if _kernels.supported(m, v, mean, *grads):
            by_mean, by_variance = grads
            ends = ctx.low, ctx.high
            return *_kernels.clipped_moments_backward(m, v, mean, by_mean, by_variance, *ends, *_law(m)), None, None
        return *differentiated(lambda m, v: _clipped(m, v, ctx.low, ctx.high), (m, v), grads), None, None


def _between_ends(m: Tensor, v: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    if _kernels.serve(m):
        return apply(_ClippedByKernel, m, v, low, high)
    mean, variance = _clipped(m, v, low, high)
    return torch.where(v != 0, mean, F.hardtanh(m, low, high)), torch.where(v != 0, variance, 0.0)


@elementwise()
def hardtanh(m: Tensor, v: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> tuple[Tensor, Tensor]:
    return _between_ends(m, v, float(min_val), float(max_val))


def relu6(input: Moments) -> Moments:
    return hardtanh(input, 0.0, 6.0)


@elementwise(F.hardsigmoid)
def hardsigmoid(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    mean, variance = _between_ends(m, v, -3.0, 3.0)
    return mean / 6 + 0.5, variance / 36


def clamp_to_numbers(input: Moments, min: float | None = None, max: float | None = None) -> Moments:
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
    above, variance = relu_moments(m - floor, v)
    below, _ = relu_moments(floor - m, v)
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
    excess, variance = relu_moments(gap, spread)
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


# ELU and its relatives in closed form. Shapes: all tensors here are (*shape), and all results too.


def _elu_forward(m: Tensor, v: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """x₊ − α·y with y = (1 − eˣ)₊: M = M₊ − αB, V = V₊ + α²V_y + 2αM₊B, all terms non-negative.

    With A_n = E[e^{nx}; x < 0]: B = A0 − A1 and V_y = A0 − 2A1 + A2 − B². For σ ≥ ½ they are computed so, or through
    Var[e^{min(x, 0)}] where A0 is near 1. For small σ they would cancel: then from differences of the Mills ratio,
    since A_n = φ(r)·R(r + nσ), or as corrections to the log-normal law where r < −1.
    """
    sigma = std(v)
    r = standardize(m, sigma)
    pdf, upper, lower = normal_pdf(r), normal_cdf(r), normal_cdf(-r)
    above, variance_above = relu_moments(m, v)
    near, small = r >= -1.0, sigma < 0.5
    # σ ≥ ½
    first, second = (_negative_exponential(m, v, sigma, r, pdf, n) for n in (1, 2))
    mean_wide = lower - first
    variance_wide = torch.where(
        near, lower - 2 * first + second - mean_wide.square(), second + upper - (first + upper).square()
    )
    # σ < ½, each case with the others' values clipped into its domain, so that no branch makes inf·0
    s, w, m_down = sigma.clamp_max(0.5), v.clamp_max(0.25), m.clamp_max(0.0)
    start = torch.where(near, r, (-r).clamp_min(1.0) - 2 * s)
    drop, next_drop, bend = (pdf * t for t in mills_differences(start, s))
    log_normal = -numerics.expm1((m_down + 0.5 * w).clamp_max(0.0))
    mean_small = torch.where(near, drop, log_normal + next_drop)
    below = torch.exp(2 * m_down + w) * numerics.expm1(w) - bend - next_drop * (next_drop + 2 * log_normal)
    variance_small = torch.where(near, bend - drop * drop, below)

    mean = torch.where(small, mean_small, mean_wide)
    variance = torch.where(small, variance_small, variance_wide)
    return above - alpha * mean, variance_above + alpha * alpha * variance + 2 * alpha * (above * mean)


def _negative_exponential(m: Tensor, v: Tensor, sigma: Tensor, r: Tensor, pdf: Tensor, n: int) -> Tensor:
    """E[e^{nx}; x < 0], the exponent never above 0 on the branch that is taken."""
    shifted = r + n * sigma
    far = shifted < -1.0
    high = pdf * mills(shifted.clamp_min(-1.0))
    low = torch.exp(torch.where(far, n * m + 0.5 * n * n * v, -1.0)) * normal_cdf(-shifted.clamp(-FAR, -1.0))
    return torch.where(far, low, high)


class _Elu(torch.autograd.Function):
    """Moments of ELU. The recurrences of the forward would make a long backward; the derivatives are short:

    dM/dm = E g' = Φ(r) + αA1               dM/dv = ½E g'' = ½(αA1 + (1 − α)φ/σ)
    dV/dm = 2(M₊ + α²(A2 − A1) − M·dM/dm)   dV/dv = Φ(r) + α²(2A2 − A1) − 2M·dM/dv
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(m: Tensor, v: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
        if _kernels.supported(m, v):
            return _kernels.elu_moments(m, v, alpha, *numerics.HALF_LINE, NEGLIGIBLE[m.dtype])
        return _elu_forward(m, v, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.alpha = inputs[2]
        ctx.save_for_backward(inputs[0], inputs[1], output[0])

    @staticmethod
    def backward(ctx: Any, grad_mean: Tensor, grad_variance: Tensor) -> tuple[Tensor, Tensor, None]:
        m, v, mean = ctx.saved_tensors
        alpha = ctx.alpha
        if _kernels.supported(m, v, mean, grad_mean, grad_variance):
            law = *numerics.HALF_LINE, NEGLIGIBLE[m.dtype]
            return *_kernels.elu_moments_backward(m, v, mean, grad_mean, grad_variance, alpha, *law), None
        sigma = std(v)
        r = standardize(m, sigma)
        pdf, probability = normal_pdf(r), normal_cdf(r)
        density = torch.where(v > 0, pdf / torch.where(v > 0, sigma, 1.0), 0.0)
        first, second = (_negative_exponential(m, v, sigma, r, pdf, n) for n in (1, 2))
        mean_m = probability + alpha * first
        mean_v = 0.5 * (alpha * first + (1 - alpha) * density)
        variance_m = 2 * (relu_moments(m, v)[0] + alpha * alpha * (second - first) - mean * mean_m)
        variance_v = probability + alpha * alpha * (2 * second - first) - 2 * mean * mean_v
        return grad_mean * mean_m + grad_variance * variance_m, grad_mean * mean_v + grad_variance * variance_v, None


def _elu(m: Tensor, v: Tensor, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    return apply(_Elu, m, v, alpha)


elu: Callable[..., Moments] = elementwise(F.elu)(_elu)


@elementwise(F.selu)
def selu(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    mean, variance = _elu(m, v, alpha)
    return scale * mean, scale * scale * variance


@elementwise(F.celu)
def celu(m: Tensor, v: Tensor, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    mean, variance = _elu(m / alpha, v / (alpha * alpha))
    return alpha * mean, alpha * alpha * variance


# Choosing among values: bounds that differ from entry to entry, the largest k, an order.


_ORDER = "the order of the means decides; each value keeps its own moments"


def clamp(input: Moments, min: Any = None, max: Any = None) -> Moments:
    """`torch.clamp` with numbers or plain tensors as bounds; exact."""
    if not isinstance(input, Moments) or isinstance(min, Moments) or isinstance(max, Moments):
        raise refusal(torch.clamp, "its bounds are random; torch.maximum and torch.minimum take random operands")
    if not isinstance(min, Tensor) and not isinstance(max, Tensor):
        return clamp_to_numbers(input, min, max)
    if max is None:
        return maximum(input, min)
    if min is None:
        return minimum(input, max)
    low, high = (torch.as_tensor(t, dtype=input.variance.dtype, device=input.device) for t in (min, max))
    return _between(input, low, high)


def _between(input: Moments, low: Tensor, high: Tensor) -> Moments:
    """The interval is moved to [0, 1] and back. Well inside it, what is cut off, added to m, keeps m's digits."""
    m, v, width = input.loc.to(low.dtype), input.variance, high - low
    unit = torch.where(width > 0, width, 1.0)
    moved = hardtanh(Moments((m - low) / unit, v / unit.square()), 0.0, 1.0)
    inside = (m >= low) & (m <= high) & (v <= 0.25 * width.square())
    cut_off = relu_moments(low - m, v)[0] - relu_moments(m - high, v)[0]
    mean = torch.where(inside, m + cut_off, low + unit * moved.loc)
    # torch takes the upper bound where the two cross
    mean = torch.where((v != 0) & (width > 0), mean, torch.minimum(torch.maximum(m, low), high))
    return Moments(mean.to(input.dtype), torch.where(width > 0, unit.square() * moved.variance, 0.0))


def _picked(input: Moments, dim: int, indices: Tensor) -> Moments:
    return Moments(input.loc.gather(dim, indices), input.variance.gather(dim, indices))


@approximate(_ORDER)
def topk(input: Moments, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    indices = torch.topk(input.loc, k, dim, largest, sorted).indices
    return torch.return_types.topk((_picked(input, dim, indices), indices))  # type: ignore[arg-type]


@approximate(_ORDER)
def sort(input: Moments, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Any:
    indices = torch.sort(input.loc, dim=dim, descending=descending, stable=stable).indices
    return torch.return_types.sort((_picked(input, dim, indices), indices))  # type: ignore[arg-type]


@approximate("the order of the means, a plain tensor")
def argsort(input: Moments, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Tensor:
    return torch.sort(input.loc, dim=dim, descending=descending, stable=stable).indices
