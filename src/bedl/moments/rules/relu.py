"""Moments of max(x, 0), x ~ N(m, v): what ReLU costs is what most networks cost, so there are several ways to them.

`relu_moments` chooses: a kernel in C, few passes over memory where PyTorch runs uncompiled, or the formula as it stands
where compilers see it; and where digits next to 0 matter (not `alone`), a form that keeps them, as the kernel does to
ten standard deviations (`added`).
Shapes: all tensors here are (*shape), and all results too.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bedl import _kernels
from bedl._utils.autograd import apply
from bedl.moments import numerics
from bedl.moments.numerics import FAR, NEGLIGIBLE, normal_cdf, normal_pdf, tail_moments

_SMALLEST_STD = 1e-19  # its inverse is finite in float32
# Numbers from which compiled code calls a kernel. In predictions it is faster, if slower to compile, to make ReLU one
# with what follows; in training that would be done twice, as the backward pass computes it again. Formulas that keep
# digits are so long that training calls the kernel for any number.
MIN_NUMEL, MANY_TO_PREDICT = 1 << 14, 1 << 20


def _relu_moments_eager(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """What `_ReluMoments` gives, each number written to memory as few times as uncompiled code can: a third the time.

    V = v·(Φ(r) − T1(T1 + |r|)) with T1 = φ(r) + rΦ(r) − r₊. Its error is 1e-6 v. Far below zero that is no longer small
    beside the variance itself: 3e-5 of it at r = −3, 1e-2 at −9. shapes: (*), (*) -> (*), (*)
    """
    sigma = v.clamp_min(0).sqrt_()
    inverse = sigma.clamp_min(_SMALLEST_STD).reciprocal_()
    # vmap has no rules for clamp_, addcmul_ and square_
    r = torch.clamp(m * inverse, -NEGLIGIBLE[m.dtype], NEGLIGIBLE[m.dtype])
    del inverse
    probability = (r * -numerics.SQRT_HALF).erfc_().mul_(0.5)
    pdf = r.square().mul_(-0.5).exp_().mul_(numerics.INV_SQRT_2PI)
    t1 = torch.addcmul(pdf, r, probability)
    del pdf
    t1.sub_(r.clamp_min(0))
    mean = torch.addcmul(m.clamp_min(0), sigma, t1)
    return mean, r.abs_().add_(t1).mul_(t1).neg_().add_(probability).mul_(v)


def _relu_moments_traced(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The same in operations that exported graphs have, where each is a pass over memory: a third of them.

    With h = r/√2, E = erf(h) and G = exp(−h²)/√π + hE:  M = m₊ + σ/√2·(G − |h|),  V = v/2·(1 + E − (G − |h|)(G + |h|)).
    shapes: (*), (*) -> (*), (*)
    """
    sigma = (2 * v).clamp_min(2 * _SMALLEST_STD**2).sqrt()
    far = NEGLIGIBLE[m.dtype] * numerics.SQRT_HALF
    h = (m / sigma).clamp(-far, far)
    erf, distance = torch.erf(h), h.abs()
    total = torch.exp(-0.5 * math.log(math.pi) - h * h) + h * erf
    beyond = total - distance
    # rounding must not make it negative
    share = (erf - beyond * (total + distance) + 1).clamp_min(0)
    return torch.relu(m) + 0.5 * (sigma * beyond), 0.5 * v * share


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


def _relu_moments_backward(
    m: Tensor, v: Tensor, mean: Tensor, grad_mean: Tensor, grad_variance: Tensor, alone: bool
) -> tuple[Tensor, Tensor]:
    """What `_ReluMoments.backward` gives, in as little memory as uncompiled code can. shapes: (*)"""
    limit = NEGLIGIBLE[m.dtype] if alone else FAR
    known = v <= 0
    inverse = torch.clamp(v.clamp_min(0).rsqrt_(), max=1 / _SMALLEST_STD)
    r = torch.clamp(m * inverse, -limit, limit)
    probability = (r * -numerics.SQRT_HALF).erfc_().mul_(0.5)
    density = r.mul_(r).mul_(-0.5).exp_().mul_(numerics.INV_SQRT_2PI).mul_(inverse).masked_fill_(known, 0.0)
    del inverse
    grad_m = torch.addcmul(mean, mean, probability, value=-1).mul_(grad_variance).mul_(2)
    grad_m = torch.addcmul(grad_m, grad_mean, probability)
    grad_v = torch.addcmul(probability, mean, density, value=-1).mul_(grad_variance)
    del probability
    return grad_m, torch.addcmul(grad_v, grad_mean, density, value=0.5)


def _relu_moments(m: Tensor, v: Tensor, alone: bool, added: bool, many: int) -> tuple[Tensor, Tensor]:
    """What `relu_moments` gives, without derivatives; `many` as for `native.supported`. shapes: (*), (*) -> (*), (*)"""
    if (alone or added) and _kernels.supported(m, v, many=many):
        return _kernels.relu_moments(m, v, *numerics.HALF_LINE, NEGLIGIBLE[m.dtype])
    if alone and not torch.compiler.is_compiling():
        return _relu_moments_eager(m, v)
    if alone and torch.compiler.is_exporting():
        return _relu_moments_traced(m, v)
    sigma = v.clamp_min(0).sqrt()
    x = (m / sigma.clamp_min(_SMALLEST_STD)).abs().clamp_max(NEGLIGIBLE[m.dtype] if alone else FAR)
    _, _, t1, t2 = tail_moments(x)
    variance = v * torch.where(m < 0, t2 - t1 * t1, 1 - t2 - t1 * (t1 + 2 * x))
    return m.clamp_min(0) + sigma * t1, variance


class _ReluMoments(torch.autograd.Function):
    """Moments of max(x, 0), with the derivatives written out: half the work of recorded ones, a third the memory.

    With r = m/σ, x = |r|:  M = m₊ + σT1(x),  V = v·(T2 − T1²) for r < 0, v·(1 − T2 − T1(T1 + 2x)) for r ≥ 0.
    dM/dm = Φ(r), dM/dv = φ/2σ, dV/dm = 2M Φ(−r), dV/dv = Φ(r) − Mφ/σ.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(m: Tensor, v: Tensor, alone: bool, added: bool) -> tuple[Tensor, Tensor]:
        return _relu_moments(m, v, alone, added, 0 if added else MIN_NUMEL)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        *moments, ctx.alone, ctx.added = inputs
        ctx.save_for_backward(*moments, output[0])

    @staticmethod
    def backward(ctx: Any, grad_mean: Tensor, grad_variance: Tensor) -> tuple[Tensor, Tensor, None, None]:
        m, v, mean = ctx.saved_tensors
        return *relu_moments_backward(m, v, mean, grad_mean, grad_variance, ctx.alone, ctx.added), None, None


def relu_moments_backward(
    m: Tensor, v: Tensor, mean: Tensor, grad_mean: Tensor, grad_variance: Tensor, alone: bool = False,
    added: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Derivatives by m and v, of those by the results of `relu_moments`, of which `mean` is one. shapes: (*)"""
    if (alone or added) and _kernels.supported(m, v, mean, grad_mean, grad_variance, many=0 if added else MIN_NUMEL):
        far = NEGLIGIBLE[m.dtype]
        return _kernels.relu_moments_backward(m, v, mean, grad_mean, grad_variance, *numerics.HALF_LINE, far)
    if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return _relu_moments_backward(m, v, mean, grad_mean, grad_variance, alone)
    probability, density = _slopes(m, v, alone)
    above = torch.addcmul(mean, mean, probability, value=-1)
    grad_m = torch.addcmul(grad_mean * probability, grad_variance, above, value=2)
    within = torch.addcmul(probability, mean, density, value=-1)
    return grad_m, torch.addcmul(grad_variance * within, grad_mean, density, value=0.5)


def relu_moments(m: Tensor, v: Tensor, alone: bool = False, added: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and variance of max(x, 0). shapes: (*), (*) -> (*), (*)

    Args:
        alone: nothing will be subtracted from the result, so digits of values next to 0 do not matter: faster.
        added: digits next to 0 matter, but something larger is added to what is less than 1e-20 of the variance.
    """
    compiled = torch.compiler.is_compiling()
    if compiled and not torch.is_grad_enabled():
        return _relu_moments(m, v, alone, added, MANY_TO_PREDICT)
    if (alone or added) and not compiled and _kernels.supported(m, v):  # nothing is recorded
        return _kernels.relu_moments(m, v, *numerics.HALF_LINE, NEGLIGIBLE[m.dtype])
    if torch.is_grad_enabled() or forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack():
        return apply(_ReluMoments, m, v, alone, added)
    return _relu_moments(m, v, alone, added, 0)
