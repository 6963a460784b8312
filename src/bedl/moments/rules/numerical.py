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
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from bedl import _kernels
from bedl._utils.autograd import apply, differentiated
from bedl.moments import Moments, numerics
from bedl.moments.numerics import FAR, NEGLIGIBLE, normal_cdf, normal_pdf, standardize, std
from bedl.moments.rules._base import approximate, elementwise
from bedl.moments.rules.activations import _pair
from bedl.moments.rules.arithmetic import mul
from bedl.moments.rules.relu import relu_moments

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
        >>> rule = bedl.rules.quadrature(torch.asinh)
        >>> with bedl.use_rules({torch.asinh: rule}):
        ...     torch.asinh(bedl.Moments(torch.tensor([1.0]), 0.25)).loc
        tensor([0.8404])
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
@elementwise()
@tabulated(torch.sigmoid, "sigmoid", grows=False)
def sigmoid(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _split(torch.sigmoid, _step, _step_moments, m, v)


@approximate(_SPLIT)
@elementwise()
@tabulated(torch.tanh, "tanh", grows=False, scale=2.0)
def tanh(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    def scaled(x: Tensor) -> Tensor:  # so that the remainder dies out within the rule's reach
        return torch.tanh(0.5 * x)

    def sign_moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        _, variance = _step_moments(m, v)
        return torch.erf(standardize(m, std(v)) * 0.5**0.5), 4 * variance

    return _split(scaled, torch.sign, sign_moments, 2 * m, 4 * v)


@approximate(_SPLIT)
@elementwise()
@tabulated(F.silu, "silu", grows=True)
def silu(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _like_relu(F.silu, m, v)


@approximate(_SPLIT)
@elementwise()
@tabulated(F.mish, "mish", grows=True)
def mish(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _like_relu(F.mish, m, v)


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def _gelu_with_tanh(x: Tensor) -> Tensor:
    """Its slope would be NaN from |x| = 1e13 on, where x³ overflows."""
    return torch.where(x > 30, x, F.gelu(x.clamp(-30, 30), approximate="tanh"))


@tabulated(_gelu, "gelu", grows=True)
def _exact_gelu(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _like_relu(_gelu, m, v)


@tabulated(_gelu_with_tanh, "gelu tanh", grows=True)
def _fast_gelu(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _like_relu(_gelu_with_tanh, m, v)


@approximate(_SPLIT)
@elementwise()
def gelu(m: Tensor, v: Tensor, approximate: str = "none") -> tuple[Tensor, Tensor]:
    return (_exact_gelu if approximate == "none" else _fast_gelu)(m, v)


def _hardswish(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    def narrow(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return expectation(F.hardswish, m, v, numerics.legendre(20), kinks=(-3.0, 3.0))

    return _split(F.hardswish, torch.relu, relu_moments, m, v, _HARD, gone=3.0, narrow=narrow)


class _Hardswish(torch.autograd.Function):
    """The same by a kernel, in which pieces and the tails of the law beyond their kinks make the moments."""

    generate_vmap_rule = True

    @staticmethod
    def forward(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if _kernels.supported(m, v):
            return _kernels.hardswish_moments(m, v, *numerics.HALF_LINE, NEGLIGIBLE[m.dtype])
        return _hardswish(m, v)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, by_mean: Tensor, by_variance: Tensor) -> Any:
        m, v = ctx.saved_tensors
        if _kernels.supported(m, v, by_mean, by_variance):
            law = *numerics.HALF_LINE, NEGLIGIBLE[m.dtype]
            return _kernels.hardswish_moments_backward(m, v, by_mean, by_variance, *law)
        return differentiated(_hardswish, (m, v), (by_mean, by_variance))


register_table("hardswish", F.hardswish, _hardswish, grows=True, narrow=False)


@approximate(_SPLIT)
@elementwise(F.hardswish)
def hardswish(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return apply(_Hardswish, m, v) if _kernels.serve(m) else _hardswish(m, v)


@tabulated(F.softplus, "softplus", grows=True)
def _softplus(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _like_relu(F.softplus, m, v)


@approximate(_SPLIT)
@elementwise(F.softplus)
def softplus(m: Tensor, v: Tensor, beta: float = 1.0, threshold: float = 20.0) -> tuple[Tensor, Tensor]:
    def unit(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return _softplus(m, v) if threshold == 20 else _like_relu(lambda x: F.softplus(x, threshold=threshold), m, v)

    if beta == 1:
        return unit(m, v)
    if beta < 1:
        mean, variance = unit(beta * m, beta * beta * v)
        return mean / beta, variance / (beta * beta)
    huge = (m.abs() > 1e30) | (v > 1e30)  # there it is ReLU, and in its own scale would overflow
    mean, variance = unit(beta * torch.where(huge, 0.0, m), beta * beta * torch.where(huge, 0.0, v))
    mean_huge, variance_huge = relu_moments(m, v)
    return torch.where(huge, mean_huge, mean / beta), torch.where(huge, variance_huge, variance / (beta * beta))


@approximate(_SPLIT)
@elementwise(F.logsigmoid)
def logsigmoid(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    mean, variance = _softplus(-m, v)
    return -mean, variance


@approximate(_SPLIT)
def logaddexp(input: Moments | Tensor, other: Moments | Tensor) -> Moments:
    """log(eᵃ + eᵇ) = b + softplus(d), d = a − b, with b the larger mean: V = v_b (1 − 2 E sigmoid(d)) + V_softplus."""
    a, b = _pair(input, other)
    if input is other:
        return Moments(a.loc + math.log(2), a.variance)
    swap = a.loc > b.loc
    high = Moments(torch.where(swap, a.loc, b.loc), torch.where(swap, a.variance, b.variance))
    below = Moments(torch.minimum(a.loc - b.loc, b.loc - a.loc), a.variance + b.variance)
    more, share = softplus(below), sigmoid(below).loc.to(below.variance.dtype)
    return Moments(high.loc + more.loc, high.variance * (1 - 2 * share).clamp_min(0) + more.variance)


@approximate(_SPLIT)
def glu(input: Moments, dim: int = -1) -> Moments:
    """The first half times the sigmoid of the second, which is independent of it."""
    if input.shape[dim] % 2:
        raise ValueError(f"glu: axis {dim} has odd length {input.shape[dim]}, so it has no halves")
    (loc, gate), (variance, gate_variance) = input.loc.chunk(2, dim), input.variance.chunk(2, dim)
    return mul(Moments(loc, variance), sigmoid(Moments(gate, gate_variance)))


# The error function: a step, seen from afar.


_SCALE = 2.5  # erf(x/2.5) bends on the scale of 1, as the rule wants it


def _sign_moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    _, variance = _step_moments(m, v)
    return torch.erf(standardize(m, std(v)) * 0.5**0.5), 4 * variance


@approximate(_SPLIT)
@elementwise()
@tabulated(torch.erf, "erf", grows=False, scale=_SCALE)
def erf(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The mean is erf(m/√(1 + 2v)), exactly."""
    _, variance = _split(lambda x: torch.erf(x / _SCALE), torch.sign, _sign_moments, _SCALE * m, _SCALE * _SCALE * v)
    return torch.erf(m * torch.rsqrt(1 + 2 * v)), variance


@approximate(_SPLIT)
def erfc(input: Moments) -> Moments:
    y = erf(input)
    return Moments(torch.where(input.variance != 0, 1 - y.loc, torch.erfc(input.loc)), y.variance)


# Functions that bend near 0 and creep on far from it: pieces from 0 outwards, each eight times as long.

_CREEPING = (-64.0, -8.0, -1.0, 0.0, 1.0, 8.0, 64.0)
softsign: Callable[..., Moments] = quadrature(F.softsign, 24, _CREEPING)
atan: Callable[..., Moments] = quadrature(torch.atan, 24, _CREEPING)
