"""Scalar functions of the normal law that survive float32.

Notation: φ the standard normal density, Φ its distribution function, Q = 1 − Φ, R = Q/φ the Mills ratio. The
tail moments of z ~ N(0, 1) beyond x are

    T1(x) = E[(z − x)₊]  = φ(x) q1(x),   q1 = 1 − x R
    T2(x) = E[(z − x)₊²] = φ(x) q2(x),   q2 = (1 + x²) R − x

Written with erfc they cancel: in float32 T2 has lost all digits at x = 5. A rational fit of q2, which is smooth
and positive, gives all three without cancellation: q1 = (1 − x q2)/(1 + x²), R = (x + q2)/(1 + x²), and
R'' = q2, so differences of R (which ELU needs) come from the same coefficients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SQRT_HALF = math.sqrt(0.5)
INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
# Beyond this many standard deviations φ is 0 in float64 too; clipping there keeps squares finite.
FAR = 60.0


class _Fit:
    """q2(x) ≈ t³ Σ c_i τ^i with t = 1/(x + shift), τ = t·(start + shift), on x ≥ start. From tools/fit_mills.py."""

    def __init__(self, start: float, shift: float, coefficients: tuple[float, ...]):
        self.shift, self.unit = shift, start + shift
        self.q2 = tuple(c / self.unit**3 for c in coefficients)
        # R integrates q2 twice: R = (1/unit) Σ r_i τ^(i+1).
        self.mills = tuple(c / ((i + 1) * (i + 2)) for i, c in enumerate(coefficients))


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


def _horner(coefficients: tuple[float, ...], t: Tensor) -> Tensor:
    value = torch.full_like(t, coefficients[-1])
    for c in coefficients[-2::-1]:
        value = value * t + c
    return value


def std(variance: Tensor) -> Tensor:
    """√variance with slope 0, not infinity, where the variance is 0. shape: (*) -> (*)

    Pixels that are 0 have exactly zero variance behind a Gaussian layer; an infinite slope there, times the
    zero slope of the variance in the log-variance, would be NaN.
    """
    positive = variance > 0
    return torch.where(positive, torch.where(positive, variance, 1.0).sqrt(), variance * 0)


def standardize(loc: Tensor, sigma: Tensor) -> Tensor:
    """loc/sigma clipped to ±FAR, and 0 where both are 0; NaN stays NaN. shapes: (*), (*) -> (*)

    Clipped before the division: its slope in sigma, ratio/sigma, then stays finite for any sigma, and so does 0 times it.
    """
    positive = sigma > 0
    far = FAR * sigma.detach()
    ratio = torch.clamp(loc, -far, far) / torch.where(positive, sigma, 1.0)
    return torch.where(positive, ratio, loc.sign() * FAR + sigma * 0)


def normal_pdf(x: Tensor) -> Tensor:
    """φ(x). shape: (*) -> (*)"""
    return INV_SQRT_2PI * torch.exp(-0.5 * x * x)


def normal_cdf(x: Tensor) -> Tensor:
    """Φ(x), accurate in the lower tail. shape: (*) -> (*)"""
    return 0.5 * torch.erfc(-SQRT_HALF * x)


def tail_moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """φ(x), Q(x), T1(x) = E[(z − x)₊] and T2(x) = E[(z − x)₊²] for x ≥ 0. shape: (*) -> 4 × (*)"""
    fit = _HALF_LINE_64 if x.dtype == torch.float64 else _HALF_LINE_32
    tau = fit.unit / (x + fit.shift)
    pdf = normal_pdf(x)
    q2 = _horner(fit.q2, tau) * (tau * tau * tau)
    scaled = pdf / (1 + x * x)
    return pdf, scaled * (x + q2), scaled * (1 - x * q2), pdf * q2


def mills(x: Tensor) -> Tensor:
    """R(x) = Q(x)/φ(x) for x ≥ −1. shape: (*) -> (*)"""
    fit = _WIDER_64 if x.dtype == torch.float64 else _WIDER_32
    tau = fit.unit / (x + fit.shift)
    return _horner(fit.mills, tau) * (tau / fit.unit)


def mills_drop(x: Tensor, step: Tensor) -> Tensor:
    """R(x) − R(x + step) ≥ 0 for step ≥ 0, x ≥ −1, by a divided difference: no cancellation. shapes: (*), (*) -> (*)"""
    fit = _WIDER_64 if x.dtype == torch.float64 else _WIDER_32
    t0, t1 = fit.unit / (x + fit.shift), fit.unit / (x + step + fit.shift)
    value, slope = torch.full_like(t0, fit.mills[-1]), torch.zeros_like(t0)
    for c in (*fit.mills[-2::-1], 0.0):
        slope = slope * t1 + value
        value = value * t0 + c
    return step * t0 * t1 * slope / fit.unit**2


def mills_bend(x: Tensor, step: Tensor) -> Tensor:
    """R(x) − 2R(x + step) + R(x + 2 step) ≥ 0 for step ≥ 0, x ≥ −1, without cancellation. shapes: (*), (*) -> (*)"""
    fit = _WIDER_64 if x.dtype == torch.float64 else _WIDER_32
    t0, t1, t2 = (fit.unit / (x + i * step + fit.shift) for i in range(3))
    value, slope, bend = torch.full_like(t0, fit.mills[-1]), torch.zeros_like(t0), torch.zeros_like(t0)
    for c in (*fit.mills[-2::-1], 0.0):
        bend = bend * t2 + slope
        slope = slope * t1 + value
        value = value * t0 + c
    return 2 * step * step * t0 * t1 * t2 * (slope + t2 * bend) / fit.unit**3
