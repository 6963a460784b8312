"""Gauss's quadrature rules: nodes and weights as plain numbers, which torch.compile takes as constants.

They are made when a module is imported or a rule is made, never while a network runs.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

Rule = tuple[tuple[float, ...], tuple[float, ...]]  # nodes and weights


@functools.lru_cache
def hermite(count: int) -> Rule:
    """Nodes z and weights w such that Σ w g(z) is E[g(z)] for z ~ N(0, 1)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return tuple(nodes.tolist()), tuple((weights / weights.sum()).tolist())


@functools.lru_cache
def legendre(count: int, low: float = -1.0, high: float = 1.0) -> Rule:
    """Nodes u and weights w such that Σ w g(u) is ∫g(u)du from `low` to `high`."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    half = (high - low) / 2
    return tuple((low + half * (nodes + 1)).tolist()), tuple((half * weights).tolist())


def joined(first: Rule, second: Rule) -> Rule:
    """Both rules as one: the sum of two integrals."""
    return first[0] + second[0], first[1] + second[1]


def tensors(rule: Rule, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights in the precision and on the device of a tensor. shapes: (count,), (count,)"""
    nodes, weights = (torch.tensor(t, dtype=like.dtype, device=like.device) for t in rule)
    return nodes, weights


# Scalar functions of the normal law that survive float32.
#
# Notation: φ the standard normal density, Φ its distribution function, Q = 1 − Φ, R = Q/φ the Mills ratio. The
# tail moments of z ~ N(0, 1) beyond x are
#
#     T1(x) = E[(z − x)₊]  = φ(x) q1(x),   q1 = 1 − x R
#     T2(x) = E[(z − x)₊²] = φ(x) q2(x),   q2 = (1 + x²) R − x
#
# Written with erfc they cancel: in float32 T2 has lost all digits at x = 5. A rational fit of q2, which is smooth and
# positive, gives all three without cancellation: q1 = (1 − x q2)/(1 + x²), R = (x + q2)/(1 + x²); and as R' = −q1, R''
# = q2, small differences of R (which ELU needs) are integrals of it.


SQRT_HALF = math.sqrt(0.5)
INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
# Beyond this many standard deviations φ is 0 in float64 too; clipping there keeps squares finite.
FAR = 60.0
# Beyond this many, φ need not be told from what it is here: 1e-22, or 1e-282 in float64. Farther out there are denormal
# numbers and underflows, on which processors are a hundred times slower.
NEGLIGIBLE = {torch.float32: 10.0, torch.float64: 36.0}


class _Fit:
    """q2(x) ≈ t³ Σ c_i τ^i with t = 1/(x + shift), τ = t·(start + shift), on x ≥ start. From tools/fit_mills.py."""

    def __init__(self, start: float, shift: float, coefficients: tuple[float, ...]):
        self.shift, self.unit = shift, start + shift
        self.coefficients = tuple(c / self.unit**3 for c in coefficients)

    def at(self, t: Tensor) -> Tensor:
        """q2, given t. shape: (*) -> (*)"""
        tau = self.unit * t
        value = torch.full_like(tau, self.coefficients[-1])
        for c in self.coefficients[-2::-1]:
            value = value * tau + c
        return value * (tau * tau * tau)


# fmt: off
_HALF_LINE_32 = _Fit(  # relative error 6.6e-08
    0.0,
    3.0,
    (
        2.00000011, 5.99996401, 10.6684927, 13.30081, 11.3522865, 2.68082238, -12.2781457, 25.2520234,
        -136.048014, 247.750878, -210.410661, 88.7859857, -15.2149607,
    ),
)
_HALF_LINE_64 = _Fit(  # relative error 6.5e-14
    0.0,
    4.0,
    (
        2.0000000000001323, 5.9999999998602052, 11.250000024371152, 16.249998323637165, 19.101623147188384,
        18.209604233326033, 13.158069538342325, 4.9883156220227862, -1.3039243068190871, -15.246505789558919,
        25.757482663179918, -99.34712999453204, 221.67920435165959, -314.4932247455946, 221.44758372228225,
        268.25520111129481, -1025.7712600256705, 1490.6007770062686, -1309.0281112712967, 747.08310609533464,
        -273.56010421072904, 58.881381032831463, -5.6999817392068159,
    ),
)
_WIDER_32 = _Fit(  # relative error 2.3e-07
    -1.0,
    4.0,
    (
        2.00000048, 7.99978325, 20.015914, 38.0642645, 67.036744, 19.241314, 386.576953, -1068.57192,
        2517.16988, -3683.28534, 2368.34531, 224.391708, -1243.52375, 688.221023, -128.921088,
    ),
)
_WIDER_64 = _Fit(  # relative error 8.3e-13
    -1.0,
    5.0,
    (
        2.0000000000017399, 7.4999999981514636, 18.000000332142683, 34.374975891957241, 56.016566535820637,
        79.957626743259723, 100.99976372617493, 105.90967736946845, 139.79026867345368, -181.84225547904171,
        1319.7850867612426, -5252.6787772101752, 16558.369929974317, -41981.263217718071, 83557.040793805165,
        -130747.80101182364, 158549.93921818316, -145498.22402906156, 98444.571353619787, -47492.663758574308,
        15463.909519314853, -3050.5259198873068, 275.89682072322739,
    ),
)
# fmt: on
HALF_LINE = (
    _HALF_LINE_32.coefficients,
    _HALF_LINE_32.unit,
)  # what a kernel needs of it; there start = 0, so unit = shift


def _fit_for(x: Tensor, single: _Fit, double: _Fit) -> _Fit:
    return double if x.dtype == torch.float64 else single


def _q2(x: Tensor, single: _Fit, double: _Fit) -> Tensor:
    fit = _fit_for(x, single, double)
    return fit.at(1 / (x + fit.shift))


def std(variance: Tensor) -> Tensor:
    """√variance with slope 0, not infinity, where the variance is 0. shape: (*) -> (*)

    Pixels that are 0 have exactly zero variance behind a Gaussian layer; an infinite slope there, times the
    zero slope of the variance in the log-variance, would be NaN.
    """
    positive = variance > 0
    return torch.where(positive, torch.where(positive, variance, 1.0).sqrt(), variance * 0)


def standardize(loc: Tensor, sigma: Tensor) -> Tensor:
    """loc/sigma clipped to ±FAR, and 0 where both are 0; NaN stays NaN. shapes: (*), (*) -> (*)

    Clipped before the division: its slope in sigma, ratio/sigma, then stays finite, and 0 times it is 0.
    """
    positive = sigma > 0
    far = FAR * sigma.detach()
    ratio = torch.clamp(loc, -far, far) / torch.where(positive, sigma, 1.0)
    return torch.where(positive, ratio, loc.sign() * FAR + sigma * 0)


def expm1(x: Tensor) -> Tensor:
    """e^x − 1, also for small x where it is computed as just that difference. shape: (*) -> (*)

    Compiled code and ONNX have no expm1: they subtract, and in float32 nothing is left of 1e-8. Hence the series.
    """
    if x.dtype == torch.float64 or not torch.compiler.is_compiling():
        return torch.expm1(x)
    small = x.abs() < 1 / 3
    near = torch.where(small, x, 0.0)
    series = torch.ones_like(near)
    for n in range(8, 1, -1):
        series = 1 + near / n * series
    return torch.where(small, near * series, torch.expm1(x))


def normal_pdf(x: Tensor) -> Tensor:
    """φ(x). shape: (*) -> (*)"""
    return INV_SQRT_2PI * torch.exp(-0.5 * x * x)


def normal_cdf(x: Tensor) -> Tensor:
    """Φ(x), accurate in the lower tail. shape: (*) -> (*)"""
    return 0.5 * torch.erfc(-SQRT_HALF * x)


def normal_log_density(y: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Log-density of a normal from its log variance. shapes: (*), (*), (*) -> (*)

    The distance is divided by the standard deviation before it is squared: far out the square alone would overflow.
    """
    distance = (y - mean) * torch.exp(-0.5 * log_variance)
    return -0.5 * (distance.square() + log_variance + math.log(2 * math.pi))


def tail_moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """φ(x), Q(x), T1(x) = E[(z − x)₊] and T2(x) = E[(z − x)₊²] for x ≥ 0. shape: (*) -> 4 × (*)"""
    pdf, fit = normal_pdf(x), _fit_for(x, _HALF_LINE_32, _HALF_LINE_64)
    square, shifted = 1 + x * x, x + fit.shift
    inverse = 1 / (square * shifted)  # of both at once: divisions are what compiled code spends its time on
    q2 = fit.at(square * inverse)
    scaled = pdf * (shifted * inverse)
    return pdf, scaled * (x + q2), scaled * (1 - x * q2), pdf * q2


def mills(x: Tensor) -> Tensor:
    """R(x) = Q(x)/φ(x) for x ≥ −1. shape: (*) -> (*)"""
    return (x + _q2(x, _WIDER_32, _WIDER_64)) / (1 + x * x)


def _unit_steps() -> tuple[list[float], list[list[float]], list[float]]:
    """Nodes u on [0, 2], six to each half; weights of the integrals over each half; and of the hat function."""
    u, w = (np.array(t) for t in joined(legendre(6, 0.0, 1.0), legendre(6, 1.0, 2.0)))
    halves = np.stack([w * (u < 1), w * (u > 1)], -1)
    return u.tolist(), halves.tolist(), (w * np.minimum(u, 2 - u)).tolist()


_UNIT_STEPS = _unit_steps()


def mills_differences(x: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """R(x) − R(x + h), R(x + h) − R(x + 2h) and their difference, all ≥ 0, for 0 ≤ h = step ≤ ½ and x ≥ −1.

    As the integrals h∫q1(x + uh)du and h²∫hat(u) q2(x + uh)du, in which nothing cancels. shapes: (*), (*) -> 3 × (*)
    """
    u, halves, hat = (torch.tensor(t, dtype=x.dtype, device=x.device) for t in _UNIT_STEPS)
    z = x.unsqueeze(-1) + step.unsqueeze(-1) * u  # (*, nodes)
    q2 = _q2(z, _WIDER_32, _WIDER_64)
    drop, next_drop = (((1 - z * q2) / (1 + z * z)) @ halves).unbind(-1)
    return step * drop, step * next_drop, step * step * (q2 @ hat)
