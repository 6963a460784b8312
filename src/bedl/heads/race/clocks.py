"""One clock of the race: survival, density and their derivatives, as sums over a mixture of normals."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bedl import native
from bedl.heads.race.mixtures import LOG_EXPONENTIAL, NUMBERS

__all__ = ["clocks", "erf"]

# erf(x) = x P(x^2) / Q(x^2) on [-4, 4], the float32 form of Eigen and XLA; error 3e-7
ERF_P: tuple[float, ...] = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05)
ERF_P += (-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)
ERF_Q: tuple[float, ...] = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03)
ERF_Q += (-7.37332916720468e-03, -1.42647390514189e-02)

FARTHEST = 30.0  # standard deviations (times √2) of the widest component at which clocks are evaluated


def erf(x: Tensor) -> Tensor:
    """erf; when compiled, in a form five times as fast as the one inductor calls on CPUs. shape: (*shape)"""
    if not torch.compiler.is_dynamo_compiling() or x.dtype == torch.float64:  # exported graphs keep their one node
        return torch.erf(x)
    x = x.clamp(-4.0, 4.0)
    square = x * x
    p, q = torch.full_like(x, ERF_P[0]), torch.full_like(x, ERF_Q[0])
    for c in ERF_P[1:]:
        p = p * square + c
    for c in ERF_Q[1:]:
        q = q * square + c
    return x * p / q


def clocks(m: Tensor, v: Tensor, nodes: Tensor, components: int, slopes: bool = True) -> tuple[Tensor, ...]:
    """Logarithms of a clock's survival and density, and the derivatives of the latter.

    Args:
        m: means of the classes. shape: (*batch, C)
        v: variances of the classes. shape: (*batch, C)
        nodes: log times. shape: (*batch, T)
        components: normals in the mixture for log Exp(1): 4, 6 or 8.
        slopes: whether the derivatives are needed.

    Returns:
        log L, log D and, with slopes, d(log D)/dm, d(log D)/dv. shapes: (*batch, C, T)
    """
    if native.suits(m, v, nodes):
        kernel = native.clocks_and_slopes if slopes else native.clocks
        return kernel(m, v, nodes, NUMBERS[components])
    return _clocks(m[..., None] + nodes[..., None, :], v[..., None], components, slopes)


def _clocks(w: Tensor, v: Tensor, components: int, slopes: bool) -> tuple[Tensor, ...]:
    """The same in PyTorch, given w = m + log time. shapes: (*batch, C, T), (*batch, C, 1) -> 2 or 4 × (*batch, C, T)"""
    early = w + v < 0.5 + 3 * v.sqrt() * v / (v + 12)  # where the identity is the more accurate one, by v
    shift = torch.where(early, v, torch.zeros_like(v))
    # relative to the widest component, the first, nothing underflows; farther out squares would lose their digits, and
    # there everything is known: early, the identity holds without correction, and late the logarithm goes on straight
    _, mu, variance = LOG_EXPONENTIAL[components][0]
    inverse = torch.rsqrt(2 * (variance + v))
    middle, reach = mu - shift, FARTHEST / inverse
    near = torch.minimum(torch.maximum(w, middle - reach), middle + reach)
    distance = (middle - near) * inverse
    reference = distance.square()
    sums = _sums_over_components(near, v, shift, reference, components, slopes)
    survival, shifted, density = 0.5 + sums[0], 0.5 + sums[1], sums[2]  # density: times exp(reference), as its slopes
    log_survival = survival.clamp_min(torch.finfo(w.dtype).eps ** 2).log()
    shifted = shifted.clamp_min(1e-4)  # above that wherever it is used
    late = density.log() - reference + 2 * distance * inverse * (w - near)
    log_density = torch.where(early, w + 0.5 * v + shifted.log(), late)
    if not slopes:
        return log_survival, log_density
    slope, curve = sums[3:]
    ratio = torch.exp(-reference) / shifted
    return (
        log_survival,
        log_density,
        torch.where(early, 1 - density * ratio, slope / density),
        torch.where(early, 0.5 - (density + 0.5 * slope) * ratio, 0.5 * curve / density),
    )


def _sums_over_components(
    w: Tensor, v: Tensor, shift: Tensor, reference: Tensor, components: int, slopes: bool
) -> list[Tensor]:
    """What `_terms` gives, summed over the mixture: one by one, so that little memory is needed at a time; or all at
    once, in a graph to be exported, where each operation has its price. shapes: as for `_terms`"""
    mixture = LOG_EXPONENTIAL[components]
    if torch.compiler.is_dynamo_compiling() or not torch.compiler.is_exporting():
        sums = list(_terms(w, v, shift, reference, *mixture[0], slopes))
        for component in mixture[1:]:
            terms = _terms(w, v, shift, reference, *component, slopes)
            sums = [total + term for total, term in zip(sums, terms, strict=True)]
        return sums
    numbers = torch.tensor(mixture, dtype=w.dtype, device=w.device)
    p, mu, variance = numbers.view(-1, 3, *[1] * w.dim()).unbind(1)
    return [term.sum(0) for term in _terms(w, v, shift, reference, p, mu, variance, slopes)]


def _terms(
    w: Tensor, v: Tensor, shift: Tensor, reference: Tensor, p: Any, mu: Any, variance: Any, slopes: bool
) -> tuple[Tensor, ...]:
    """A component's part of the survival, of the shifted clock's survival and density, and of the latter's derivatives.

    Args:
        w, shift, reference: shapes (*batch, C, T)
        v: shape (*batch, C, 1)
        p, mu, variance: of one component, or of all. shape: (), or (components, *1, 1, 1)

    Returns:
        shapes: (*batch, C, T), or (components, *batch, C, T)
    """
    inverse = torch.rsqrt(2 * (variance + v))
    d = (mu - w) * inverse
    g = d - shift * inverse
    e = (p / math.sqrt(math.pi)) * inverse * torch.exp(reference - g * g)
    survivals = (0.5 * p) * erf(d), (0.5 * p) * erf(g)
    if not slopes:
        return *survivals, e
    e1 = 2 * g * inverse * e
    return *survivals, e, e1, 2 * inverse * (g * e1 - inverse * e)
