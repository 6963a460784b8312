"""Integrals over f1, f2 ~ N of a negative binomial of mean mu(f1) and shape k(f2), without sampling.

*Mean.* mu = exp(f1) up to a knee, its tangent beyond: where the network knows nothing, E exp(f1) = exp(m + v/2) would
grow beyond all counts; this grows like the standard deviation. Its first two moments are closed forms.

*Shape.* k = exp(f2) + 1e-3, the floor of the evidence of `bedl.heads.race`; above exp(20) it is a Poisson.

*Likelihood.* For a count of 1e5 the likelihood as a function of f1 is a thousand times narrower than the prior, and may
lie fifty standard deviations away from its centre. So the nodes follow the product of the two: in f2 they cover what
matters of its profile, and for each of these they lie in f1 around the mode given f2, on a scale that the curvature
says, with spacings that grow outwards (sinh). Where an analytic function vanishes at both ends the trapezoidal rule
converges exponentially. In float64, relative errors of the log-likelihood are below 1e-4 for counts up to 1e5 and stds
up to 3; gradients are those of the integral, through nodes that stay where they are relative to the prior.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl import gauss
from bedl.heads.race import LOG_FLOOR
from bedl.heads.race.divergence import expected_inverse, gamma_terms
from bedl.predictive.labels import can_look
from bedl.special import mills, normal_cdf, normal_pdf, standardize, std

__all__ = ["Outputs", "expected_shape_terms", "log_expected_pmf", "log_mean", "log_pmf", "log_shape", "rate_moments"]

LARGEST_LOG_SHAPE = 20.0
OUTER = 41  # nodes for f2
INNER, REACH, GROWTH = 35, 6.0, 0.3  # nodes for f1
ZOOMS, GRID = 5, 17  # of the search for what matters in f2
DEPTH, SIDES = 18.0, 6.0  # what is exp(-18) of the largest value does not matter: it lies six standard deviations away
STEPS, FEWER = 8, 4  # of Newton's method for f1; fewer where its mode is needed roughly
TOGETHER = 2**11  # counts that are computed at a time: each takes some thousand numbers
LOWEST = -25.0  # below this f2 the shape is its floor


class Outputs(NamedTuple):
    """What is known of the network's outputs for a target, and the knee of its mean. shapes: (*shape)

    Attributes:
        m1, v1: mean and variance of f1, the logarithm of the mean.
        m2, v2: mean and variance of f2, the logarithm of the shape.
        knee: where exp(f1) goes on as its tangent.
    """

    m1: Tensor
    v1: Tensor
    m2: Tensor
    v2: Tensor
    knee: Tensor


# -- known outputs -----------------------------------------------------------------------------------
def log_mean(f: Tensor, knee: Tensor) -> Tensor:
    """log mu. shapes: (*shape)"""
    return torch.minimum(f, knee) + torch.log1p((f - knee).clamp_min(0.0))


def log_shape(f: Tensor) -> Tensor:
    """log k. shape: (*shape)"""
    return torch.logaddexp(f, f.new_tensor(LOG_FLOOR)).clamp(max=LARGEST_LOG_SHAPE)


def log_pmf(y: Tensor, log_mu: Tensor, log_k: Tensor) -> Tensor:
    """log P(y) of a negative binomial; needs float64 for large counts. shapes: (*shape)"""
    return _choices(y, log_k) + _rest(y, log_mu, log_k)


def _choices(y: Tensor, log_k: Tensor) -> Tensor:
    k = log_k.exp()
    return torch.lgamma(y + k) - torch.lgamma(k) - torch.lgamma(y + 1)


def _rest(y: Tensor, log_mu: Tensor, log_k: Tensor) -> Tensor:
    """The part of log P(y) that depends on the mean."""
    odds = log_mu - log_k
    return -log_k.exp() * F.softplus(odds) - y * F.softplus(-odds)


# -- moments -----------------------------------------------------------------------------------------
def rate_moments(f: Outputs) -> tuple[Tensor, Tensor, Tensor]:
    """E mu, Var mu and E[mu² / k]: noise, model and distributional part of the variance. shapes: (*shape)"""
    m, v, c = f.m1, f.v1, f.knee
    s, a = std(v), f.m1 - f.knee
    z = standardize(-a, s)  # of the knee
    beyond, density = normal_cdf(-z), normal_pdf(z)
    mean = torch.exp(c) * ((1 + a) * beyond + s * density) + _below(m, v, s, z, c, 1)
    square = torch.exp(2 * c) * (((1 + a).square() + v) * beyond + s * density * (2 + a)) + _below(m, v, s, z, c, 2)
    # three forms of the variance: all below the knee; hardly any variance; the difference of moments
    free = z - 2 * s > 6
    low = torch.minimum(m, c)
    log_normal = torch.exp(torch.where(free, 2 * m + v, 2 * low)) * torch.expm1(torch.where(free, v, 0.0))
    little = torch.exp(2 * low) * v
    variance = torch.where(free, log_normal, torch.where(v < 1e-3, little, (square - mean.square()).clamp_min(0.0)))
    inverse_shape, _, _ = expected_inverse(f.m2, f.v2)
    return mean, variance, (variance + mean.square()) * inverse_shape


def _below(m: Tensor, v: Tensor, s: Tensor, z: Tensor, c: Tensor, n: int) -> Tensor:
    """E[exp(n f); f < c] = exp(n m + n² v/2) Φ(z - n s), in the tail by Mills' ratio. shapes: (*shape)"""
    x = n * s - z
    tail = x > 0
    exponent = torch.where(tail, n * c, n * m + 0.5 * n * n * v)
    return torch.exp(exponent) * torch.where(tail, normal_pdf(z) * mills(x.clamp_min(0.0)), normal_cdf(-x))


def expected_shape_terms(m: Tensor, v: Tensor) -> Tensor:
    """E[k psi(k) - log Gamma(k) - k - psi(k) + log k]: what the shape adds to the divergence. shapes: (*shape)"""
    z, weight = gauss.tensors(gauss.hermite(32), m)
    log_k = torch.logaddexp(m[..., None] + std(v)[..., None] * z, m.new_tensor(LOG_FLOOR))
    total, digamma_after = gamma_terms(log_k)
    return ((total - digamma_after + torch.exp(-log_k) + log_k) * weight).sum(-1)


# -- likelihood --------------------------------------------------------------------------------------
def log_expected_pmf(y: Tensor, outputs: Outputs) -> Tensor:
    """log E P(y | f), in float64 inside. shapes: (*shape) -> (*shape)"""
    if can_look(y) and y.numel() > TOGETHER:
        parts = zip(*(x.reshape(-1).split(TOGETHER) for x in (y, *outputs)), strict=True)
        return torch.cat([_log_expected_pmf(first, Outputs(*rest)) for first, *rest in parts]).reshape(y.shape)
    return _log_expected_pmf(y, outputs)


def _log_expected_pmf(y: Tensor, outputs: Outputs) -> Tensor:
    dtype = outputs.m1.dtype
    y, f = y.double(), Outputs(*(x.double() for x in outputs))
    s1, s2 = std(f.v1), std(f.v2)
    with torch.no_grad():
        fixed = _Problem(y.detach(), *(x.detach() for x in (f.m1, s1, f.m2, s2, f.knee)))
        t2, log_weight2 = _outer_nodes(*_outer_window(fixed))  # shapes: (*shape, A)
        t1, log_weight1 = _inner_nodes(*_inner_mode(_expanded(fixed), t2, STEPS))  # shapes: (*shape, A, B)
    log_k = log_shape(f.m2[..., None] + s2[..., None] * t2)
    log_mu = log_mean(f.m1[..., None, None] + s1[..., None, None] * t1, f.knee[..., None, None])
    inner = torch.logsumexp(_rest(y[..., None, None], log_mu, log_k[..., None]) + log_weight1, -1)
    return torch.logsumexp(_choices(y[..., None], log_k) + inner + log_weight2, -1).to(dtype)


def _weights(t: Tensor, spacing: Tensor) -> Tensor:
    """Logarithms of the weights of nodes t, in stds, times the prior's density. shapes: (*shape)"""
    return spacing.log() - 0.5 * t.square() - 0.5 * math.log(2 * math.pi)


def _inner_nodes(centre: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes around a mode, with spacings that grow outwards, and log weights. shapes: (*shape) -> (*shape, INNER)"""
    u = torch.linspace(-REACH, REACH, INNER, dtype=centre.dtype, device=centre.device)
    x, spacing = torch.sinh(GROWTH * u) / GROWTH, torch.cosh(GROWTH * u) * (2 * REACH / (INNER - 1))
    t = centre[..., None] + scale[..., None] * x
    return t, _weights(t, spacing * scale[..., None])


def _outer_nodes(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes between two ends, and log weights. shapes: (*shape) -> (*shape, OUTER)"""
    t = low[..., None] + (high - low)[..., None] * torch.linspace(0, 1, OUTER, dtype=low.dtype, device=low.device)
    return t, _weights(t, ((high - low) / (OUTER - 1))[..., None])


class _Problem(NamedTuple):
    """A count, and outputs as mean and standard deviation."""

    y: Tensor
    m1: Tensor
    s1: Tensor
    m2: Tensor
    s2: Tensor
    knee: Tensor


def _expanded(p: _Problem) -> _Problem:
    return _Problem(*(x[..., None] for x in p))


def _inner_mode(p: _Problem, t2: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Mode and scale in t1 given t2: Newton's method within a bracket. shapes: (*shape)"""
    log_k = log_shape(p.m2 + p.s2 * t2)
    k = log_k.exp()
    top = p.knee.exp()
    some = p.y.clamp_min(0.5)
    peak = torch.where(some < top, some.log(), p.knee + some / top - 1)  # where mu = y
    mu = log_mean(p.m1, p.knee).exp()
    to_peak = torch.where(p.s1 > 0, (peak - p.m1) / p.s1.clamp_min(1e-300), 0.0)
    end = torch.where(p.y > 0, to_peak, -p.s1 * k * mu / (k + mu)) + torch.zeros_like(t2)
    low, high = end.clamp(max=0.0), end.clamp_min(0.0)
    precision = p.s1.square() * some * k / (some + k)  # of the likelihood at its peak; the prior's is 1
    t = (to_peak * precision / (1 + precision)).clamp(low, high)
    curvature = torch.ones_like(end)
    for _ in range(steps):
        f = p.m1 + p.s1 * t
        mu = log_mean(f, p.knee).exp()
        slope = p.s1 / (1 + (f - p.knee).clamp_min(0.0))
        gradient = slope * k * (p.y - mu) / (k + mu) - t
        curvature = 1 + slope.square() * (p.y + k) * (mu / (k + mu)) * (k / (k + mu))
        low, high = torch.where(gradient > 0, t, low), torch.where(gradient > 0, high, t)
        newton = t + gradient / curvature
        t = torch.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
    return t, curvature.rsqrt()


def _profile(p: _Problem, t2: Tensor) -> Tensor:
    """log of the integral over t1, by Laplace's method, and the prior of t2; up to a constant. shapes: (*shape)"""
    t1, scale = _inner_mode(p, t2, FEWER)
    log_k = log_shape(p.m2 + p.s2 * t2)
    value = _choices(p.y, log_k) + _rest(p.y, log_mean(p.m1 + p.s1 * t1, p.knee), log_k)
    return value - 0.5 * t1.square() + scale.log() - 0.5 * t2.square()


def _outer_window(p: _Problem) -> tuple[Tensor, Tensor]:
    """Ends of what matters in t2, by grids that zoom in; there may be two modes. shapes: (*shape)"""
    many = _expanded(p)
    # The slope of the likelihood in f2 is at most 1; downwards it is bounded by the count, and ends at LOWEST.
    steepest = 20 * (p.y + 1) + log_shape(p.m2).exp() + log_mean(p.m1, p.knee).exp()
    lowest = torch.where(p.s2 > 0, (LOWEST - p.m2) / p.s2.clamp_min(1e-300), 0.0).clamp(max=0.0)
    low, high = torch.maximum(lowest, -p.s2 * steepest) - SIDES, p.s2 + SIDES
    steps = torch.linspace(0, 1, GRID, dtype=low.dtype, device=low.device)
    number = torch.arange(GRID, device=low.device)
    for _ in range(ZOOMS):
        values = _profile(many, low[..., None] + (high - low)[..., None] * steps)
        matters = values > values.amax(-1, keepdim=True) - DEPTH
        first = torch.where(matters, number, GRID).amin(-1) - 1
        last = torch.where(matters, number, -1).amax(-1) + 1
        width = (high - low) / (GRID - 1)
        low, high = low + width * first.clamp_min(0), low + width * last.clamp(max=GRID - 1)
    return low, high
