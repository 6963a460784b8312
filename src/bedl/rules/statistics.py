"""Variances, lengths and soft maxima of entries: what hand-written norms and losses compute.

A sample variance and a sum of squares are quadratic forms x'Ax of independent Gaussians, whose moments are known:
E = tr(AV) + m'Am, Var = 2 tr(AVAV) + 4 m'AVAm with V = diag(v). Roots of them are those of `positive`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl.dispatch import refusal
from bedl.moments import Moments, as_moments
from bedl.rules import positive
from bedl.rules._marks import approximate

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
