"""E_f E_lambda H[Cat(lambda)] for lambda ~ Dir(exp f), f ~ N(m, diag v): the entropy that knowing lambda would leave.

    E_lambda H = psi(A + 1) - sum_c (a_c / A) psi(a_c + 1),   a = exp f,  A = sum_c a_c

*The first term.* The race (`probabilities`) is decided at a time t ~ Exp(A), and psi(A + 1) is an average over its
nodes, -gamma - E log(1 - exp(-t)). Where A hardly varies (many classes), to take it for log-normal is more accurate.

*The second term.* a_c / A is the probability that c rings first, so the term is the mean of psi(a_c + 1) over who
rings and when. Given that c rings at log time u, f_c has the log-concave density  N(x; m, v) exp(x + u - exp(x + u)):
Gauss-Hermite nodes around its mode (Wright's omega function), weighed by the density itself, and moved so that their
mean is the exact one, m + v D'/D (Stein).

Largest errors in nats against 10^6 samples, C = 2, 3, 10, 100, 1000, stds up to s in any ratio, mean evidence -3 to 4:
3e-4 for s <= 1, 1e-3 up to 10. Points whose stds exceed 1.25 are computed on more nodes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bedl import gauss, native
from bedl.heads.race import mixtures
from bedl.heads.race.clocks import clocks
from bedl.heads.race.divergence import EULER, gamma_terms
from bedl.heads.race.probabilities import race_nodes
from bedl.heads.race.spread import HARDLY, log_normal_total

__all__ = ["COMPONENTS", "LIMIT", "expected_data_entropy"]

COMPONENTS = 8
COARSE, FINE = (32, 7), (64, 21)  # nodes of the race, nodes around each mode
WIDE = 1.25**2  # variances from which the fine rule is needed: the coarse one is off by 1e-4 from a std of 1.4 on
LIMIT, MOST_VARIANCE = 40.0, 1e3
HERMITE = {count: gauss.hermite(count) for count in (7, COARSE[1], FINE[1])}  # here, as compilers see no caches
NUMBERS = [x for count in (7, COARSE[1], FINE[1]) for part in HERMITE[count] for x in part]  # as the kernel reads them


def expected_data_entropy(m: Tensor, v: Tensor) -> Tensor:
    """Expected entropy of the label once the class probabilities are known, in nats.

    Args:
        m: means of the log evidence. shape: (*batch, C)
        v: their variances. shape: (*batch, C)

    Returns:
        shape: (*batch)

    Example:
        >>> import torch
        >>> expected_data_entropy(torch.zeros(1, 2), torch.zeros(1, 2))  # Dir(1, 1): a uniform probability
        tensor([0.5000])
    """
    top = m.amax(-1, keepdim=True)
    # beyond these limits nothing changes: with exp(40) observations lambda is known, with exp(-40) it is 0 or 1
    m = (m - top + top.clamp(-LIMIT, LIMIT)).clamp_min(-3 * LIMIT)
    v = v.clamp(max=MOST_VARIANCE)
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(m):
        return _entropy(m, v, *FINE)  # nothing can be asked of a point here, and the fine rule is right everywhere
    if native.suits(m, v):
        return native.data_entropy(m, v, mixtures.NUMBERS[COMPONENTS], COARSE, FINE, WIDE, NUMBERS)
    result, wide = _entropy(m, v, *COARSE), (v > WIDE).any(-1)
    if bool(wide.any()):
        result = result.index_put((wide,), _entropy(m[wide], v[wide], *FINE))
    return result


def _entropy(m: Tensor, v: Tensor, count: int, around: int) -> Tensor:
    nodes, log_weight = race_nodes(m, v, count, after=2.5, before=10.0)
    log_l, log_d, slope, _ = clocks(m, v, nodes, COMPONENTS)
    hazard = torch.exp(log_d - log_l)  # shape: (*batch, C, T)
    rate = hazard.sum(-2, keepdim=True)
    when = torch.softmax(log_l.sum(-2) + log_weight + rate[..., 0, :].log(), -1)  # shape: (*batch, T)
    first = when[..., None, :] * (hazard / rate)  # probability that c rings first, at this time
    digamma = _given_ringing(m[..., None] + nodes[..., None, :], v[..., None], nodes[..., None, :], slope, around)
    return (_total(m, v, nodes, log_weight, when) - (first * digamma).sum((-1, -2))).clamp_min(0.0)


def _total(m: Tensor, v: Tensor, nodes: Tensor, log_weight: Tensor, when: Tensor) -> Tensor:
    """E psi(A + 1). shapes: (*batch, C), (*batch, C), (*batch, T), (*batch, T), (*batch, T) -> (*batch)"""
    t = torch.exp(nodes.clamp(max=60.0))
    series = nodes - 0.5 * t + t.clamp(max=0.5).square() / 24
    log_silent = torch.where(t < 0.5, series, torch.log1p(-torch.exp(-t.clamp_min(0.5))))
    # left of the first node the kernel is a line of slope -1, and the first weight holds a mass of 1 there
    tail = torch.exp(-log_weight[..., :1])
    kernel = torch.cat([tail - log_silent[..., :1], -log_silent[..., 1:]], -1) - EULER
    by_race = (when * kernel).sum(-1)
    log_mean, spread = log_normal_total(m, v)
    zeta, weight = gauss.tensors(HERMITE[7], m)
    calm = spread < HARDLY
    safe = torch.where(calm, spread, 0.0).clamp_min(torch.finfo(m.dtype).tiny)
    log_total = (log_mean - 0.5 * safe)[..., None] + safe.sqrt()[..., None] * zeta
    return torch.where(calm, (weight * gamma_terms(log_total)[1]).sum(-1), by_race)


def _given_ringing(w: Tensor, v: Tensor, u: Tensor, slope: Tensor, around: int) -> Tensor:
    """E[psi(a_c + 1) | c rings at u], w = m + u.

    shapes: (*batch, C, T), (*batch, C, 1), (*batch, 1, T), (*batch, C, T) -> (*batch, C, T)
    """
    v = v.clamp_min(1e-10)
    omega = wright_omega(w + v + v.log())
    mode = w + v - omega  # of x + u
    std = torch.sqrt(v / (1 + omega))
    zeta, weight = gauss.tensors(HERMITE[around], w)
    step = std[..., None] * zeta
    # log density less its parabola: (step² / 2 + 1 + step - exp(step)) exp(mode), by its series near 0
    near = -step.square() * step * (1 / 6 + step / 24)
    far = 0.5 * step.square() + 1 + step - torch.exp(step.clamp(max=30.0))
    excess = torch.exp(mode.clamp(max=30.0))[..., None] * torch.where(step.abs() < 0.05, near, far)
    p = torch.softmax(weight.log() + excess.clamp_min(-1e4), -1)
    x = (mode - u)[..., None] + step
    value, by_x = _digamma_after(x)
    missing = w - u + v * slope - (p * x).sum(-1)
    return (p * value).sum(-1) + missing * (p * by_x).sum(-1)


def _digamma_after(x: Tensor) -> tuple[Tensor, Tensor]:
    """psi(exp(x) + 1) and its derivative by x. shapes: (*shape)"""
    _, value = gamma_terms(x)
    a = torch.exp(x.clamp(max=30.0))
    q = 1 / (a + 6)
    trigamma = q + 0.5 * q * q + q * q * q / 6
    for j in range(1, 6):
        trigamma = trigamma + (1 / (a + j)).square()
    return value, a * trigamma


def wright_omega(c: Tensor) -> Tensor:
    """The solution x > 0 of x + log x = c. shape: (*shape)

    Example:
        >>> import torch
        >>> wright_omega(torch.tensor([1.0, 10.0, -20.0]))
        tensor([1.0000e+00, 7.9294e+00, 2.0612e-09])
    """
    near = c.clamp_min(-8.0)  # farther down Newton's steps would divide 0 by 0, and so would their gradients
    x = torch.where(near > 1, near - torch.log(near.clamp_min(1.0)), torch.sigmoid(near))
    for _ in range(4):
        x = x * (1 + near - torch.log(x)) / (1 + x)
    return torch.where(c < -8, torch.exp(c.clamp(max=0.0)), x)
