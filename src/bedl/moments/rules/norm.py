"""Batch, layer, group, instance and RMS normalisation.

*Batch norm* in eval mode is affine: exact. In training mode the batch's statistics are those of the mixture that the
batch is: mean of the means, and mean of the variances plus variance of the means. They enter as constants (their
own randomness shrinks with the batch), and the running statistics follow them.

*Layer, group and instance norm* divide by a statistic of few entries, which is itself random. With the statistics at
their expected values (μ = mean of m, s² = variance of m + (1 − 1/D)·mean of v + eps) and y = (x − μ)/s, a step in x_j
moves y_i by (δ_ij − a_ij)/s, a_ij = (1 + y_i·y_j)/D: first order in the fluctuation, and a sum of squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl.moments import Moments, as_moments
from bedl.moments.dispatch import refusal
from bedl.moments.rules import positive, shape
from bedl.moments.rules._base import approximate

Parameter = Tensor | None


def _no_random_scale(func: object, *parameters: object) -> None:
    if any(isinstance(p, Moments) for p in parameters):
        raise refusal(func, "its scale or shift is random; keep them plain tensors")  # type: ignore[arg-type]


def _along_channels(t: Tensor, x: Moments) -> Tensor:
    return t.view(1, -1, *[1] * (x.dim() - 2))


@approximate("exact in eval; in training the batch's own statistics enter as constants")
def batch_norm(input: Moments, running_mean: Parameter, running_var: Parameter, weight: Parameter = None,
               bias: Parameter = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5
               ) -> Moments:  # fmt: skip
    _no_random_scale(F.batch_norm, weight, bias)
    if not training and running_mean is not None and running_var is not None:
        mean, variance = running_mean, running_var
        loc = F.batch_norm(input.loc, mean, variance, weight, bias, False, momentum, eps)
        scale = (variance.to(input.variance.dtype) + eps).reciprocal()
    else:
        mean, variance = _batch_statistics(input)
        if training and running_mean is not None and running_var is not None:
            _follow(running_mean, running_var, mean, variance, momentum, input.numel() // max(input.shape[1], 1))
        scale = (variance + eps).reciprocal()
        y = (input.loc.to(mean.dtype) - _along_channels(mean, input)) * _along_channels(scale.sqrt(), input)
        loc = (y if weight is None else y * _along_channels(weight, input)).to(input.dtype)
        loc = loc if bias is None else loc + _along_channels(bias, input)
    if weight is not None:
        scale = scale * weight.to(scale.dtype).square()
    return Moments(loc, input.variance * _along_channels(scale, input))


def _batch_statistics(x: Moments) -> tuple[Tensor, Tensor]:
    """Mean and variance per channel of the mixture over the batch. shape: (N, C, *) -> (C,), (C,)"""
    if x.numel() // max(x.shape[1], 1) <= 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
    dims = [d for d in range(x.dim()) if d != 1]
    loc = x.loc.to(x.variance.dtype)
    mean = loc.mean(dims)
    return mean, (loc - _along_channels(mean, x)).square().mean(dims) + x.variance.mean(dims)


def _follow(running_mean: Tensor, running_var: Tensor, mean: Tensor, variance: Tensor, momentum: float, n: int) -> None:
    """As torch does: the running variance takes the unbiased estimate."""
    with torch.no_grad():
        running_mean.lerp_(mean.detach().to(running_mean.dtype), momentum)
        running_var.lerp_((variance.detach() * (n / (n - 1))).to(running_var.dtype), momentum)


def _normalised(m: Tensor, v: Tensor, eps: float, centred: bool = True) -> tuple[Tensor, Tensor]:
    """Normalise over the last axis, to first order. shapes: (*, D), (*, D) -> (*, D), (*, D)"""
    count = m.shape[-1]
    shift = 1.0 if centred else 0.0
    if centred:
        m = m - m.mean(-1, keepdim=True)
    s2 = (m.square() + (1 - shift / count) * v).mean(-1, keepdim=True) + eps
    y = m * s2.rsqrt()
    u = v / s2
    yu = y * u
    own = (y * y + shift) / count  # a_ii
    # Σ_j a_ij² u_j, and within it the term j = i, which is replaced by (1 − a_ii)² u_i
    s_0, s_1, s_2 = (t.sum(-1, keepdim=True) / count**2 for t in (shift * u, shift * yu, y * yu))
    others = torch.addcmul(torch.addcmul(s_0, y, torch.addcmul(2 * s_1, y, s_2)), own * own, u, value=-1)
    # `others` is a sum of squares over j ≠ i; what rounding leaves below 0 is 0.
    return y, torch.addcmul(others.clamp_min(0), (1 - own).square(), u)


def _scaled(y: Tensor, u: Tensor, weight: Parameter, bias: Parameter) -> tuple[Tensor, Tensor]:
    if weight is not None:
        y, u = y * weight, u * weight.to(u.dtype).square()
    return (y if bias is None else y + bias), u


def _over_last(input: Moments, k: int, plain: Tensor, weight: Parameter, bias: Parameter, eps: float, centred: bool
               ) -> Moments:  # fmt: skip
    """Normalise over the last k axes; the plain function's own result where nothing it sees is random."""
    v = input.variance
    y, u = _normalised(input.loc.to(v.dtype).flatten(-k), v.flatten(-k), eps, centred)
    y, u = _scaled(y.view(v.shape), u.view(v.shape), weight, bias)
    random = (v > 0).flatten(-k).any(-1).view(*v.shape[:-k], *[1] * k)
    return Moments(torch.where(random, y.to(plain.dtype), plain), u)


_FIRST_ORDER = "first order in the fluctuation of the statistics"


@approximate(_FIRST_ORDER)
def layer_norm(input: Moments, normalized_shape: Sequence[int], weight: Parameter = None, bias: Parameter = None,
               eps: float = 1e-5) -> Moments:  # fmt: skip
    _no_random_scale(F.layer_norm, weight, bias)
    plain = F.layer_norm(input.loc, normalized_shape, weight, bias, eps)
    return _over_last(input, len(normalized_shape), plain, weight, bias, eps, centred=True)


@approximate(_FIRST_ORDER)
def rms_norm(input: Moments, normalized_shape: Sequence[int], weight: Parameter = None,
             eps: float | None = None) -> Moments:  # fmt: skip
    _no_random_scale(F.rms_norm, weight)
    plain = F.rms_norm(input.loc, normalized_shape, weight, eps)
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    return _over_last(input, len(normalized_shape), plain, weight, None, eps, centred=False)


@approximate(_FIRST_ORDER)
def unit_length(input: Moments, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Moments:
    """F.normalize: RMS normalisation along an axis, over the root of its length."""
    if p != 2 or not isinstance(dim, int) or out is not None:
        raise refusal(F.normalize, "only p=2 along one axis is defined")
    count, v = input.shape[dim], input.variance
    y, u = _normalised(input.loc.to(v.dtype).movedim(dim, -1), v.movedim(dim, -1), eps * eps / count, centred=False)
    random = (v > 0).any(dim, keepdim=True)
    loc = (y / math.sqrt(count)).movedim(-1, dim).to(input.dtype)
    return Moments(torch.where(random, loc, F.normalize(input.loc, p, dim, eps)), (u / count).movedim(-1, dim))


@approximate(_FIRST_ORDER)
def group_norm(input: Moments, num_groups: int, weight: Parameter = None, bias: Parameter = None,
               eps: float = 1e-5) -> Moments:  # fmt: skip
    _no_random_scale(F.group_norm, weight, bias)
    plain = F.group_norm(input.loc, num_groups, weight, bias, eps)
    v = input.variance
    grouped = (v.shape[0], num_groups, v.shape[1] // num_groups * math.prod(v.shape[2:]))
    y, u = _normalised(input.loc.to(v.dtype).reshape(grouped), v.reshape(grouped), eps)
    scale, shift = (None if p is None else _along_channels(p, input) for p in (weight, bias))
    y, u = _scaled(y.view(v.shape), u.view(v.shape), scale, shift)
    random = (v.reshape(grouped) > 0).any(-1, keepdim=True).expand(grouped).reshape(v.shape)
    return Moments(torch.where(random, y.to(plain.dtype), plain), u)


@approximate(_FIRST_ORDER)
def instance_norm(input: Moments, running_mean: Parameter = None, running_var: Parameter = None,
                  weight: Parameter = None, bias: Parameter = None, use_input_stats: bool = True,
                  momentum: float = 0.1, eps: float = 1e-5) -> Moments:  # fmt: skip
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None:
        raise refusal(F.instance_norm, "track_running_stats=True is not defined while training")
    if math.prod(input.shape[2:]) == 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {tuple(input.shape)}")
    # not F.instance_norm: of one image, if the gradient's channels are innermost in memory, its own gradient is wrong
    plain = F.group_norm(input.loc, input.shape[1], weight, bias, eps)
    scale, shift = (None if p is None else _along_channels(p, input) for p in (weight, bias))
    return _over_last(input, input.dim() - 2, plain, scale, shift, eps, centred=True)


# Variances, lengths and soft maxima of entries: what hand-written norms and losses compute.
#
# A sample variance and a sum of squares are quadratic forms x'Ax of independent Gaussians, whose moments are known:
# E = tr(AV) + m'Am, Var = 2 tr(AVAV) + 4 m'AVAm with V = diag(v). Roots of them are those of `positive`.


Axes = int | Sequence[int] | None


def _axes(dim: Axes, n_dims: int) -> list[int]:
    return list(range(n_dims)) if dim is None else [dim] if isinstance(dim, int) else list(dim) or list(range(n_dims))


def var(input: Moments, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *,
        correction: float | None = None) -> Moments:  # fmt: skip
    """A = (I − 11'/n)/(n − c): Σ_ij A_ij² v_i v_j = ((1 − 2/n) Σ v² + (Σ v/n)²)/(n − c)²."""
    if isinstance(dim, bool):  # var(x, unbiased)
        dim, unbiased = None, dim
    less = (1 if unbiased else 0) if correction is None else correction
    v, axes = input.variance, _axes(dim, input.dim())
    n = torch.Size([input.shape[axis] for axis in axes]).numel()
    m = input.loc.to(v.dtype)
    off = (m - m.mean(axes, keepdim=True)).square()

    def total(t: Tensor) -> Tensor:
        return t.sum(axes, keepdim=keepdim)

    twice = (1 - 2 / n) * total(v.square()) + (total(v) / n).square()
    mean = (total(off) + (1 - 1 / n) * total(v)) / (n - less)
    return Moments(mean.to(input.dtype), (4 * total(v * off) + 2 * twice) / (n - less) ** 2)


@approximate("the root of the variance, which is exact, as if log-normal")
def std(input: Moments, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *,
        correction: float | None = None) -> Moments:  # fmt: skip
    return positive.sqrt(var(input, dim, unbiased, keepdim, correction=correction))


def var_mean(input: Moments, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *,
             correction: float | None = None) -> tuple[Moments, Moments]:  # fmt: skip
    """Each exact by itself; that the two vary together is not kept."""
    if isinstance(dim, bool):  # var_mean(x, unbiased)
        dim, unbiased = None, dim
    return var(input, dim, unbiased, keepdim, correction=correction), shape.mean(input, dim, keepdim)


@approximate("the root of the variance, which is exact, as if log-normal")
def std_mean(input: Moments, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *,
             correction: float | None = None) -> tuple[Moments, Moments]:  # fmt: skip
    spread, mean = var_mean(input, dim, unbiased, keepdim, correction=correction)
    return positive.sqrt(spread), mean


@approximate("the root of a sum of squares, which is exact, as if log-normal")
def norm(input: Moments, p: Any = 2, dim: Axes = None, keepdim: bool = False, out: None = None,
         dtype: Any = None) -> Moments:  # fmt: skip
    """Euclidean length. Var Σ x² = Σ 2v² + 4m²v."""
    if p not in (None, 2, "fro") or out is not None or dtype is not None:
        raise refusal(torch.norm, "only the Euclidean length, p=2, is defined")
    v, axes = input.variance, _axes(dim, input.dim())
    squares = input.loc.to(v.dtype).square()
    mean = (squares + v).sum(axes, keepdim=keepdim)
    return positive.sqrt(Moments(mean.to(input.dtype), (2 * v * (v + 2 * squares)).sum(axes, keepdim=keepdim)))


@approximate("a sum of log-normal variables as if log-normal, by its mean and variance")
def logsumexp(input: Moments, dim: Axes, keepdim: bool = False) -> Moments:
    """L. Fenton, "The sum of log-normal probability distributions in scatter transmission systems", 1960."""
    v, axes = input.variance, _axes(dim, input.dim())
    m = input.loc.to(v.dtype)
    random = v > 0
    spread = torch.where(random, v, 1.0)
    # log Var e^x = 2m + 2v + log(1 − e^{−v}); of what does not vary e^{−10000}
    log_variance = torch.where(random, 2 * m + 2 * spread + torch.log(-torch.expm1(-spread)), -1e4)
    log_mean = torch.logsumexp(m + v / 2, axes, keepdim)
    s2 = F.softplus(torch.logsumexp(log_variance, axes, keepdim) - 2 * log_mean)
    s2 = s2.masked_fill(~random.any(tuple(axes), keepdim), 0.0)
    return Moments((log_mean - s2 / 2).to(input.dtype), s2)


@approximate("first order in the fluctuation of the lengths")
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Moments:
    """c = Σ y z for directions y, z: a step in x1_j moves c by (z_j − c y_j)/|x1|, of a length as it is expected."""
    (y, u), (z, w) = (_direction(as_moments(x), dim, eps) for x in (x1, x2))
    c = (y * z).sum(dim, keepdim=True)
    variance = (u * (z - c * y).square() + w * (y - c * z).square() + u * w).sum(dim)
    plain = F.cosine_similarity(as_moments(x1).loc, as_moments(x2).loc, dim, eps)
    return Moments(torch.where(variance > 0, c.squeeze(dim).to(plain.dtype), plain), variance)


def _direction(x: Moments, dim: int, eps: float) -> tuple[Tensor, Tensor]:
    """Means and variances over the length, whose square is the expected one. shapes: as x"""
    m, v = x.loc.to(x.variance.dtype), x.variance
    square = (m.square() + v).sum(dim, keepdim=True).clamp_min(eps * eps)
    return m * square.rsqrt(), v / square


def asks(function: Callable[[Tensor], Tensor], either: bool) -> Callable[[Moments], Tensor]:
    """Whether moments are finite, or NaN: plain answers, as the values drawn have no more of either."""

    def rule(input: Moments) -> Tensor:
        one, other = function(input.loc), function(input.variance)
        return one | other if either else one & other

    return rule
