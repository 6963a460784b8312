"""Average and maximum over windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bedl.moments import Moments, numerics
from bedl.moments.dispatch import refusal
from bedl.moments.numerics import std
from bedl.moments.rules._base import approximate
from bedl.moments.rules.activations import maximum

Size = int | Sequence[int]


def _tuple(value: Any, dims: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value) * dims if len(value) == 1 else tuple(value)


# -- averages: linear, so the variance takes the squared weights ---------------------------------
def average(pool: Callable[..., Tensor], dims: int) -> Callable[..., Moments]:
    """The rule of `avg_pool{dims}d`: an output that averages over a divisor d has variance avg(v)/d."""

    def rule(input: Moments, kernel_size: Size, stride: Any = None, padding: Size = 0, ceil_mode: bool = False,
             count_include_pad: bool = True, divisor_override: int | None = None) -> Moments:  # fmt: skip
        arguments = (kernel_size, stride if stride else None, padding, ceil_mode, count_include_pad)
        extra = () if dims == 1 else (divisor_override,)
        divisor: Any = divisor_override or math.prod(_tuple(kernel_size, dims))
        if not divisor_override and (ceil_mode or any(_tuple(padding, dims))):
            # At the border the divisor varies. Averaging ones gives (entries in the window)/divisor.
            ones = torch.ones_like(input.variance[:1, :1] if input.dim() == dims + 2 else input.variance[:1])
            counts = _window_counts(ones, arguments, dims)
            divisor = counts / pool(ones, *arguments, *extra)
        return Moments(pool(input.loc, *arguments, *extra), pool(input.variance, *arguments, *extra) / divisor)

    rule.__name__ = f"avg_pool{dims}d"
    return rule


def _window_counts(ones: Tensor, arguments: tuple, dims: int) -> Tensor:
    """How many real entries each window holds."""
    kernel_size, stride, padding, ceil_mode, _ = arguments
    if dims == 3:
        return F.avg_pool3d(ones, kernel_size, stride, padding, ceil_mode, True, 1)
    if dims == 2:
        return F.avg_pool2d(ones, kernel_size, stride, padding, ceil_mode, True, 1)
    kernel, step, border = ((_tuple(t, 1)[0] if t is not None else None) for t in (kernel_size, stride, padding))
    flat = F.avg_pool2d(ones.unsqueeze(-2), (1, kernel), (1, step or kernel), (0, border), ceil_mode, True, 1)  # type: ignore[arg-type]
    return flat.squeeze(-2)


def adaptive_average(pool: Callable[..., Tensor], dims: int) -> Callable[..., Moments]:
    """The rule of `adaptive_avg_pool{dims}d`, whose windows may differ in size by one."""

    def rule(input: Moments, output_size: Any) -> Moments:
        loc, variance = pool(input.loc, output_size), pool(input.variance, output_size)
        for axis in range(-dims, 0):
            lengths = _adaptive_lengths(input.shape[axis], loc.shape[axis])
            if len(lengths) == 1:
                variance = variance / lengths[0]
            else:
                counts = torch.tensor(lengths, dtype=variance.dtype, device=variance.device)
                variance = variance / counts.view(-1, *[1] * (-1 - axis))
        return Moments(loc, variance)

    rule.__name__ = f"adaptive_avg_pool{dims}d"
    return rule


def _adaptive_lengths(length: int, outputs: int) -> list[int]:
    """The sizes of the windows; one for all where they fit."""
    if length % outputs == 0:
        return [length // outputs]
    return [-(-(i + 1) * length // outputs) - i * length // outputs for i in range(outputs)]


# -- maxima ----------------------------------------------------------------------------------------
_REACH = 4.5  # standard deviations at which a distribution function counts as 0 or 1
_ROWS = 4096  # that are worked on at once: what 24 nodes take for them stays in a core's cache, and is 3 times as fast
_SMALLEST_STD = 1e-18  # the square of its inverse is finite in float32


def _legendre() -> tuple[tuple, tuple, list]:
    """Gauss–Legendre nodes and weights on [0, 1], and the matrix of integrals from 0 to each node."""
    x, (u, w) = np.array(numerics.legendre(24)[0]), numerics.legendre(24, 0.0, 1.0)
    basis = np.polynomial.legendre.legvander(x, 23)
    antiderivative = [np.polynomial.legendre.legint(row, lbnd=-1) for row in np.eye(24)]
    integrals = np.stack([np.polynomial.legendre.legval(x, c) for c in antiderivative], 1)
    return u, w, (integrals @ np.linalg.inv(basis) / 2).tolist()


_LEGENDRE = _legendre()


def maximum_of(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the largest of K independent normals. shapes: (*, K), (*, K) -> (*), (*)

    With F = ΠΦ((t − m_i)/σ_i), and everything below `low` or above `high` cut off:
        E = low + ∫(1 − F) dt          Var = 2∫(1 − F(t)) ∫_low^t F(s) ds dt ≥ 0
    24 Gauss–Legendre nodes on a logarithmic scale from `low`, because at a distance d only entries with σ ≥ d/2κ still
    change. Error relative to the standard deviation: 1e-4 where the σ differ by less than tenfold, 2e-3 where by 1000.
    """
    rows = m.reshape(-1, m.shape[-1]), v.reshape(-1, m.shape[-1])
    blocks = [rows] if torch.compiler.is_compiling() else zip(*(t.split(_ROWS) for t in rows), strict=True)
    moments = zip(*(_maximum_of_rows(*block) for block in blocks), strict=True)
    mean, variance = (torch.cat(t).reshape(m.shape[:-1]) for t in moments)
    return mean, variance


def _maximum_of_rows(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """shapes: (rows, K), (rows, K) -> (rows,), (rows,)"""
    sigma = std(v)
    with torch.no_grad():
        low, first = (m - _REACH * sigma).max(-1, keepdim=True)
        width = (m + _REACH * sigma).amax(-1, keepdim=True) - low
        unit = 8 * sigma.gather(-1, first) + 1e-3 * width
        unit = torch.where(unit > 0, unit, 1.0)
        u, w, integrals = (torch.tensor(t, dtype=m.dtype, device=m.device) for t in _LEGENDRE)
        scale = torch.log1p(width / unit)
        grown = torch.expm1(u * scale)
        t = low + unit * grown  # (rows, nodes)
        dt = unit * scale * (grown + 1)
    below = torch.ones_like(t)
    slopes = numerics.SQRT_HALF / sigma.clamp_min(_SMALLEST_STD)
    for m_i, slope in zip(m.split(1, -1), slopes.split(1, -1), strict=True):
        below = below * (0.5 * torch.erfc((m_i - t) * slope))
    above = (1 - below) * dt
    inner = ((below * dt) @ integrals.T).clamp_min(0)  # an interpolant of F ≥ 0 may undershoot between nodes
    return low.squeeze(-1) + above @ w, 2 * ((above * inner) @ w)


MAX = "one-dimensional quadrature, error ≤ 2e-3 of the standard deviation"


def _windows(x: Tensor, fill: float, kernel: tuple, stride: tuple, border: tuple, dilation: tuple, out: Sequence[int]
             ) -> Tensor:  # fmt: skip
    """The entries of each pooling window. shape: (*, L1, …) -> (*, out1, …, K)"""
    dims, pads = len(kernel), []
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    for axis in range(dims):
        needed = (out[axis] - 1) * stride[axis] + spans[axis] - x.shape[axis - dims] - border[axis]
        pads.append((border[axis], needed))
    x = F.pad(x, [p for pair in reversed(pads) for p in pair], value=fill)
    for axis in range(dims):
        x = x.unfold(axis - dims - axis, spans[axis], stride[axis])[..., :: dilation[axis]]
    return x.flatten(-dims)


def max_pool(pool: Callable[..., Tensor], dims: int) -> Callable[..., Moments]:
    """The rule of `max_pool{dims}d`."""

    @approximate(MAX)
    def rule(input: Moments, kernel_size: Size, stride: Any = None, padding: Size = 0, dilation: Size = 1,
             ceil_mode: bool = False, return_indices: bool = False) -> Moments:  # fmt: skip
        if return_indices:
            raise refusal(pool, "which entry is the largest is random; use return_indices=False")
        kernel, border, spread = (_tuple(t, dims) for t in (kernel_size, padding, dilation))
        step = _tuple(stride, dims) if stride else kernel
        plain = pool(input.loc, kernel, step, border, spread, ceil_mode)
        out = plain.shape[-dims:]
        wide = input.variance.dtype
        # Padding never wins: far below everything, and without variance.
        m = _windows(input.loc.to(wide), torch.finfo(wide).min / 4, kernel, step, border, spread, out)
        v = _windows(input.variance, 0.0, kernel, step, border, spread, out)
        return largest(m, v, plain)

    rule.__name__ = f"max_pool{dims}d"
    return rule


def largest(m: Tensor, v: Tensor, plain: Tensor) -> Moments:
    if m.shape[-1] == 2:  # closed form
        pair = maximum(Moments(m[..., 0], v[..., 0]), Moments(m[..., 1], v[..., 1]))
        return Moments(pair.loc.to(plain.dtype), pair.variance)
    mean, variance = maximum_of(m, v)
    return Moments(torch.where((v > 0).any(-1), mean.to(plain.dtype), plain), variance)


def adaptive_max_pool(pool: Callable[..., Tensor], dims: int) -> Callable[..., Moments]:
    @approximate(MAX)
    def rule(input: Moments, output_size: Any, return_indices: bool = False) -> Moments:
        lengths = input.shape[-dims:]
        sizes = [n if n is not None else full for n, full in zip(_tuple(output_size, dims), lengths, strict=True)]
        if any(full % n for full, n in zip(lengths, sizes, strict=True)):
            raise refusal(pool, f"windows of unequal size ({tuple(lengths)} to {tuple(sizes)}) are not defined")
        kernel = tuple(full // n for full, n in zip(lengths, sizes, strict=True))
        plain_pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]
        return max_pool(plain_pool, dims)(input, kernel, return_indices=return_indices)

    rule.__name__ = f"adaptive_max_pool{dims}d"
    return rule


@approximate(MAX)
def amax(input: Moments, dim: Any = (), keepdim: bool = False) -> Moments:
    dims = [dim] if isinstance(dim, int) else list(dim) or list(range(input.dim()))
    dims = [d % input.dim() for d in dims]
    ends = list(range(-len(dims), 0))
    wide = input.variance.dtype
    m = input.loc.to(wide).movedim(dims, ends).flatten(-len(dims))
    v = input.variance.movedim(dims, ends).flatten(-len(dims))
    plain = input.loc.amax(dims, keepdim)
    result = largest(m, v, plain.reshape(m.shape[:-1]))
    return Moments(result.loc.reshape(plain.shape), result.variance.reshape(plain.shape))


@approximate(MAX)
def amin(input: Moments, dim: Any = (), keepdim: bool = False) -> Moments:
    result = amax(Moments(-input.loc, input.variance), dim, keepdim)
    return Moments(-result.loc, result.variance)


def chosen_max(input: Moments, *args: Any, **kwargs: Any) -> Moments:
    """`torch.max`: of two, or of all; with `dim` it also asks which entry it was, and that is random."""
    if len(args) == 1 and isinstance(args[0], (Moments, Tensor)):
        return maximum(input, args[0])
    if args or kwargs:
        raise refusal(torch.max, "which entry is the largest is random; torch.amax gives the largest value alone")
    return amax(input)


chosen_max.approximation = MAX  # type: ignore[attr-defined]
