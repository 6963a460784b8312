"""ELU and its relatives in closed form. Shapes: all tensors here are (*shape), and all results too."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl.rules._marks import elementwise
from bedl.rules.rectified import rectified
from bedl.special import FAR, expm1, mills, mills_differences, normal_cdf, normal_pdf, standardize, std


def _elu_forward(m: Tensor, v: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """x₊ − α·y with y = (1 − eˣ)₊: M = M₊ − αB, V = V₊ + α²V_y + 2αM₊B, all terms non-negative.

    With A_n = E[e^{nx}; x < 0]: B = A0 − A1 and V_y = A0 − 2A1 + A2 − B². For σ ≥ ½ they are computed so, or through
    Var[e^{min(x, 0)}] where A0 is near 1. For small σ they would cancel: then from differences of the Mills ratio,
    since A_n = φ(r)·R(r + nσ), or as corrections to the log-normal law where r < −1.
    """
    sigma = std(v)
    r = standardize(m, sigma)
    pdf, upper, lower = normal_pdf(r), normal_cdf(r), normal_cdf(-r)
    above, variance_above = rectified(m, v)
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
    log_normal = -expm1((m_down + 0.5 * w).clamp_max(0.0))
    mean_small = torch.where(near, drop, log_normal + next_drop)
    below = torch.exp(2 * m_down + w) * expm1(w) - bend - next_drop * (next_drop + 2 * log_normal)
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
        return _elu_forward(m, v, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.alpha = inputs[2]
        ctx.save_for_backward(inputs[0], inputs[1], output[0])

    @staticmethod
    def backward(ctx: Any, grad_mean: Tensor, grad_variance: Tensor) -> tuple[Tensor, Tensor, None]:
        m, v, mean = ctx.saved_tensors
        alpha = ctx.alpha
        sigma = std(v)
        r = standardize(m, sigma)
        pdf, probability = normal_pdf(r), normal_cdf(r)
        density = torch.where(v > 0, pdf / torch.where(v > 0, sigma, 1.0), 0.0)
        first, second = (_negative_exponential(m, v, sigma, r, pdf, n) for n in (1, 2))
        mean_m = probability + alpha * first
        mean_v = 0.5 * (alpha * first + (1 - alpha) * density)
        variance_m = 2 * (rectified(m, v)[0] + alpha * alpha * (second - first) - mean * mean_m)
        variance_v = probability + alpha * alpha * (2 * second - first) - 2 * mean * mean_v
        return grad_mean * mean_m + grad_variance * variance_m, grad_mean * mean_v + grad_variance * variance_v, None


def _elu(m: Tensor, v: Tensor, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    mean, variance = _Elu.apply(m, v, alpha)
    return mean, variance


elu = elementwise(F.elu)(_elu)


@elementwise(F.selu)
def selu(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    mean, variance = _elu(m, v, alpha)
    return scale * mean, scale * scale * variance


@elementwise(F.celu)
def celu(m: Tensor, v: Tensor, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    mean, variance = _elu(m / alpha, v / (alpha * alpha))
    return alpha * mean, alpha * alpha * variance
