"""Moments of smooth activations from a table: quadrature, done once for all numbers.

The mean and variance of f(x), x ~ N(m, v), are functions of two numbers. In single precision they are polynomials,
piece by piece, through what quadrature gives in double precision; a table is made when its function is first called.
With σ = √v (or scale·√v and scale·m, where f bends on a scale other than 1), u = m/(1 + σ) and t = σ/(1 + σ), it holds

    mean    (E f − f(m))/v for σ < 1, so that small variances keep f's own digits; E f in units of its size else
    slope   D = dE f/dm = E f'
    rest    Q of V = v(D² + t²Q), the part of the variance that is not linear: two terms ≥ 0, in which nothing cancels

over |u| < 24, beyond which f is a straight line. D and Q are in units of 1 where f grows as x does, of 1/(1 + σ) where
it is bounded. Standard deviations are within 5e-5 of quadrature's. `_kernels/table.c` is the same in C.
Shapes: all tensors of moments are (*shape), and all results too.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from bedl import _kernels
from bedl._utils.autograd import apply
from bedl.moments.numerics import std

Form = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

# as in table.c
_ROWS_ABOVE, _ROWS_PER_UNIT, _COLUMNS, _POWERS_OF_T, _POWERS_OF_U, _KINDS = 48, 2, 32, 4, 8, 4
_TABLES: dict[str, _Table] = {}


class _Table:
    """What is known of one function.

    Args:
        plain: f.
        form: mean and variance of f(x), of m and v, in double precision.
        grows: whether f grows as x does; else it is bounded. Far from 0 its slope is 0 or 1.
        scale: f(x/scale) bends on the scale of 1.
        narrow: whether the table holds σ < 1 too.
    """

    def __init__(self, plain: Callable[[Tensor], Tensor], form: Form, grows: bool, scale: float, narrow: bool):
        self.plain, self.form, self.grows, self.scale, self.narrow = plain, form, grows, scale, narrow
        self.lock = threading.Lock()
        self.known: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """Coefficients. shape: (cells, powers of t, powers of u, kinds)"""
        with self.lock:
            if device not in self.known:
                # in a thread of its own, where none of this one's modes and transforms hold
                thread = threading.Thread(target=self._make, args=(device,))
                thread.start()
                thread.join()
            return self.known[device]

    def _make(self, device: torch.device) -> None:
        rows = [self._row(row) for row in range(-_ROWS_ABOVE, _ROWS_ABOVE + 1)]
        self.known[device] = torch.cat(rows).float().to(device)

    def _row(self, row: int) -> Tensor:
        """Coefficients around one u. shape: (columns, powers of t, powers of u, kinds)"""
        u, t = _nodes(_POWERS_OF_U), _nodes(_POWERS_OF_T)
        first = 0 if self.narrow else _COLUMNS // 2
        columns = torch.arange(first, _COLUMNS, dtype=torch.float64)[:, None, None] + 0.5
        at_u, at_t = torch.broadcast_tensors((row + u) / _ROWS_PER_UNIT, (columns + t[:, None]) / _COLUMNS)
        size = 1 / (1 - at_t)  # 1 + σ
        v, m = (at_t * size / self.scale).square(), (at_u * size / self.scale).requires_grad_()
        mean, variance = self.form(m, v)
        (slope,) = torch.autograd.grad(mean.sum(), m)
        m, mean, variance = m.detach(), mean.detach(), variance.detach()
        unit = 1.0 if self.grows else 1 / size
        rest = (variance / v - slope.square()) / (unit * at_t).square()
        mean = torch.where(at_t < 0.5, (mean - self.plain(m)) / v, mean / (unit * size))
        values = torch.stack([mean, slope / unit, rest, torch.zeros_like(rest)], -1)  # (columns, t, u, kinds)
        to_u, to_t = (torch.linalg.inv(torch.linalg.vander(nodes)) for nodes in (u, t))
        found = torch.einsum("pt,qu,ctuk->cpqk", to_t, to_u, values)
        return torch.cat([found.new_zeros(first, *found.shape[1:]), found])


def _nodes(count: int) -> Tensor:
    """Chebyshev's nodes in [−½, ½]. shape: (count,)"""
    return torch.from_numpy(np.cos(np.pi * (np.arange(count) + 0.5) / count) / 2)


def _coefficients(name: str, device: torch.device) -> Tensor:
    return _TABLES[name].on(device)


# As `torch.compiler.assume_constant_result` does, which imports the compiler: a second that most programs never need.
_coefficients._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _looked_up(m: Tensor, v: Tensor, name: str) -> tuple[Tensor, ...]:
    """σ, 1/(1 + σ), whether it is within the table, and what the table holds there, with the derivatives by u and t.

    Returns:
        shapes: 3 × (*), 3 × (*, kinds)
    """
    table = _TABLES[name]
    sigma = table.scale * std(v)
    inverse = 1 / (1 + sigma)
    u, t = _ROWS_PER_UNIT * table.scale * m * inverse, _COLUMNS * sigma * inverse
    within = u.abs() < _ROWS_ABOVE
    u = torch.where(within, u, _ROWS_ABOVE * m.sign()).nan_to_num()
    row, column = u.detach().round(), t.detach().nan_to_num().floor().clamp(0, _COLUMNS - 1)
    x, y = (u - row)[..., None], (t.nan_to_num() - column - 0.5)[..., None, None]
    cell = ((row + _ROWS_ABOVE) * _COLUMNS + column).long() * _POWERS_OF_T
    parts = _coefficients(name, m.device).flatten(0, 1)
    q = d = parts[cell + _POWERS_OF_T - 1]  # (*, powers of u, kinds)
    for power in range(_POWERS_OF_T - 2, -1, -1):
        d = q if power == _POWERS_OF_T - 2 else d * y + q
        q = q * y + parts[cell + power]
    found, by_t = q[..., -1, :], d[..., -1, :]
    by_u = torch.zeros_like(found)
    for power in range(_POWERS_OF_U - 2, -1, -1):
        by_u = by_u * x + found
        found, by_t = found * x + q[..., power, :], by_t * x + d[..., power, :]
    return sigma, inverse, within, found, _ROWS_PER_UNIT * by_u, _COLUMNS * by_t


def _moments(m: Tensor, v: Tensor, plain: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """What `bedl_tabulated` gives. shapes: (*), (*), (*) -> (*), (*)"""
    table = _TABLES[name]
    sigma, inverse, within, found, _, _ = _looked_up(m, v, name)
    mean, slope, rest, _ = found.unbind(-1)
    root = sigma / table.scale * (1.0 if table.grows else inverse)
    here = torch.where(sigma < 1, plain + v * mean, mean * (1 + sigma) if table.grows else mean)
    linear = root * torch.where(within, slope, (slope > 0.5).to(slope.dtype))
    bend = root * sigma * inverse
    variance = linear.square() + bend.square() * torch.where(within, rest, 0.0).relu()
    unknown = m.isnan() | v.isnan()
    return torch.where(within, here, plain + 0 * v), torch.where(unknown, torch.nan, variance)


def _gradients(m: Tensor, v: Tensor, by_mean: Tensor, by_variance: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """What `bedl_tabulated_gradients` gives: dM/dm = D, dM/dv = D'/2, and those of V. shapes: (*)"""
    table = _TABLES[name]
    sigma, inverse, within, *looked_up = _looked_up(m, v, name)
    (_, slope, rest, _), (_, slope_u, rest_u, _), (_, slope_t, rest_t, _) = (part.unbind(-1) for part in looked_up)
    size, t = 1.0 if table.grows else inverse, sigma * inverse
    slope = torch.where(within, slope, (slope > 0.5).to(slope.dtype))
    rest, slope_u, rest_u, slope_t, rest_t, u = (
        torch.where(within, part, 0.0) for part in (rest, slope_u, rest_u, slope_t, rest_t, table.scale * m * inverse)
    )
    g, g_u = slope.square() + t * t * rest, 2 * slope * slope_u + t * t * rest_u
    g_t = 2 * slope * slope_t + 2 * t * rest + t * t * rest_t
    by_sigma = inverse * (inverse * g_t - u * g_u - (0.0 if table.grows else 2 * g))
    step = table.scale * inverse * size
    by_m = by_mean * (size * slope) + by_variance * ((v * size) * (step * g_u))
    by_v = by_mean * (0.5 * step * slope_u) + by_variance * (size * size * (g + 0.5 * sigma * by_sigma))
    return by_m, by_v


class _Tabulated(torch.autograd.Function):
    """Mean and variance, by a kernel where there is one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(m: Tensor, v: Tensor, plain: Tensor, name: str) -> tuple[Tensor, Tensor]:
        table = _TABLES[name]
        if _kernels.supported(m, v, plain):
            return _kernels.tabulated_moments(m, v, plain, name, table.scale, table.grows)
        return _moments(m, v, plain, name)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        m, v, _, ctx.name = inputs
        ctx.save_for_backward(m, v)

    @staticmethod
    def backward(ctx: Any, by_mean: Tensor, by_variance: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (m, v), table = ctx.saved_tensors, _TABLES[ctx.name]
        if _kernels.supported(m, v, by_mean, by_variance):
            return (
                *_kernels.tabulated_moments_backward(m, v, by_mean, by_variance, ctx.name, table.scale, table.grows),
                None,
                None,
            )
        return *_gradients(m, v, by_mean, by_variance, ctx.name), None, None


def looks_up(m: Tensor) -> bool:
    """Whether moments of these means are looked up: exported graphs and forward-mode derivatives have quadrature."""
    return m.dtype == torch.float32 and not torch.compiler.is_exporting() and forward_ad._current_level < 0


def register_table(
    name: str, plain: Callable[[Tensor], Tensor], form: Form, grows: bool, scale: float = 1.0, narrow: bool = True
) -> None:
    """Make a table known by its name, to be made when it is first asked for; see `_Table`."""
    table = _TABLES[name] = _Table(plain, form, grows, scale, narrow)
    _kernels.TABLES[name] = functools.partial(table.on, torch.device("cpu"))


def tabulated(plain: Callable[[Tensor], Tensor], name: str, grows: bool, scale: float = 1.0) -> Callable[[Form], Form]:
    """Turn quadrature into a form that looks up its results in single precision, and computes them in double.

    The form gives the plain function's own values where the variance is 0.
    """

    def make(form: Form) -> Form:
        register_table(name, plain, form, grows, scale)

        @functools.wraps(form)
        def moments_of(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            if looks_up(m):
                with torch.no_grad():
                    at_mean = plain(m)
                return apply(_Tabulated, m, v, at_mean, name)
            mean, variance = form(m, v)
            mean = torch.where(v != 0, mean, plain(m))  # `v != 0`, so that a NaN stays one
            return mean, torch.where(v != 0, variance, 0.0)

        return moments_of

    return make
