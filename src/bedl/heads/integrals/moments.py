"""How softmax(f) varies, f ~ N(m, diag v): variance per class and expected entropy, on the nodes of the race.

With the hazards H = D/L and the survival P = prod_k L_k of `probabilities` (all integrals over u):

    E[softmax_c (1 - softmax_c)] = int H_c (sum_{k != c} H_k) P du          two events at the same time
    E[entropy] = sum_c int H_c P (-gamma - E[log a_c | c rings at u]) du,   a_c = exp(f_c + u)
    E[log a_c | c rings at u] = m_c + u + v_c D_c'/D_c                      (Stein)

because softmax_c log(sum_k e^{f_k}) = int e^{f_c} exp(-t sum_k e^{f_k}) (-log t - gamma) dt.

Largest errors against float64 quadrature, C = 2, 10, 60, stds equal or spread over a factor of 20. (32 nodes and eight
components: nothing is trained through these, so they may cost three times the training race.)

    s                     0.03    0.1     0.3     1       3       10      20
    variance per class    1e-7    1e-5    1e-5    1e-5    7e-6    4e-6    2e-6
    expected entropy      4e-5    1e-4    1e-4    1e-4    7e-5    6e-4    2e-4

Below a largest variance of 0.01 the delta method answers: its relative error (about the variance) is smaller there than
the race's absolute one, so mutual information keeps its meaning for very certain models.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bedl import _kernels
from bedl.heads.integrals import nodes as mixtures
from bedl.heads.integrals.kl import EULER, gamma_terms
from bedl.heads.integrals.nodes import log_survival_and_density, quadrature_nodes
from bedl.moments import numerics

COUNT, COMPONENTS = 32, 8
SMALL_VARIANCE = 1e-2
HARDLY = 0.01  # Var(log A) below which A, the sum of the exp f, is taken for log-normal: more accurate than the race


def softmax_spread(m: Tensor, v: Tensor, log_p: Tensor) -> tuple[Tensor, Tensor]:
    """Variance of softmax(f) per class, and expected entropy in nats.

    Args:
        m: means. shape: (*batch, C)
        v: variances. shape: (*batch, C)
        log_p: log E[softmax(f)]; the answers respect its bounds, 0 <= variance <= p (1 - p), 0 <= entropy <= that of p.
            shape: (*batch, C)

    Returns:
        shapes: (*batch, C), (*batch)
    """
    return settled(v, log_p, *_by_race(m - m.detach().amax(-1, keepdim=True), v))


def settled(v: Tensor, log_p: Tensor, variance: Tensor, conditional: Tensor) -> tuple[Tensor, Tensor]:
    """What the race says, or the delta method where it is better, within its bounds. shapes: as for `softmax_spread`"""
    p = log_p.exp()
    entropy = -(p * log_p.clamp_min(-1e4)).sum(-1)
    small = (v < SMALL_VARIANCE).all(-1, keepdim=True)
    bend = p * ((1 - 2 * p) * v + (p.square() * v).sum(-1, keepdim=True))
    information = 0.5 * bend.sum(-1)
    variance = torch.where(small, p * bend, variance)
    conditional = torch.where(small[..., 0], entropy - information, conditional)
    bound = (p * -torch.expm1(log_p)).clamp_min(0.0)
    zero = torch.zeros_like(bound)
    return variance.clamp(zero, bound), conditional.clamp(zero[..., 0], entropy.clamp_min(0.0))


def _by_race(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    nodes, log_weight = quadrature_nodes(m, v, COUNT, after=2.5, before=10.0)
    log_l, log_d, slope, _ = log_survival_and_density(m, v, nodes, COMPONENTS)
    log_hazard = log_d - log_l  # shape: (*batch, C, T)
    log_density = log_l.sum(-2) + log_weight + torch.logsumexp(log_hazard, -2)
    # of (class rings, at this time); a share by itself, because hazards may all underflow
    weight = torch.softmax(log_density, -1)[..., None, :] * torch.softmax(log_hazard, -2)
    p, hazard = weight.sum(-1), log_hazard.exp()
    aleatoric = (weight * (hazard.sum(-2, keepdim=True) - hazard)).sum(-1)
    rings = (weight * (m[..., None] + v[..., None] * slope)).sum((-1, -2))  # E[f_c], c the class that rings
    log_mean, log_spread = log_normal_total(m, v)
    by_race = -EULER - (weight.sum(-2) * nodes).sum(-1)
    log_total = torch.where(log_spread < HARDLY, log_mean - 0.5 * log_spread, by_race)
    return p * (1 - p) - aleatoric, log_total - rings


def log_normal_total(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """For A = sum_c exp(f_c): log E[A], and log(1 + Var(A) / E[A]^2), the variance of log A were A log-normal.

    shapes: (*batch, C), (*batch, C) -> (*batch), (*batch)
    """
    log_mean = torch.logsumexp(m + 0.5 * v, -1)
    share = torch.exp(m + 0.5 * v - log_mean[..., None])
    return log_mean, torch.log1p((share.square() * torch.expm1(v.clamp(max=80.0))).sum(-1))


# E_f E_lambda H[Cat(lambda)] for lambda ~ Dir(exp f), f ~ N(m, diag v): the entropy that knowing lambda would leave.
#
#     E_lambda H = psi(A + 1) - sum_c (a_c / A) psi(a_c + 1),   a = exp f,  A = sum_c a_c
#
# *The first term.* The race (`probabilities`) is decided at a time t ~ Exp(A), and psi(A + 1) is an average over its
# nodes, -gamma - E log(1 - exp(-t)). Where A hardly varies (many classes), to take it for log-normal is more
# accurate.
#
# *The second term.* a_c / A is the probability that c rings first, so the term is the mean of psi(a_c + 1) over who
# rings and when. Given that c rings at log time u, f_c has the log-concave density  N(x; m, v) exp(x + u - exp(x + u)):
# Gauss-Hermite nodes around its mode (Wright's omega function), weighed by the density itself, and moved so that their
# mean is the exact one, m + v D'/D (Stein).
#
# Largest errors in nats against 10^6 samples, C = 2, 3, 10, 100, 1000, stds up to s in any ratio, mean evidence -3 to
# 4: 3e-4 for s <= 1, 1e-3 up to 10. Points whose stds exceed 1.25 are computed on more nodes.


ENTROPY_COMPONENTS = 8
COARSE, FINE = (32, 7), (64, 21)  # nodes of the race, nodes around each mode
WIDE = 1.25**2  # variances from which the fine rule is needed: the coarse one is off by 1e-4 from a std of 1.4 on
LIMIT, MAX_VARIANCE = 40.0, 1e3
HERMITE = {count: numerics.hermite(count) for count in (7, COARSE[1], FINE[1])}  # here, as compilers see no caches
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
    v = v.clamp(max=MAX_VARIANCE)
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(m):
        return _entropy(m, v, *FINE)  # nothing can be asked of a point here, and the fine rule is right everywhere
    if _kernels.supported(m, v):
        return _kernels.data_entropy(m, v, mixtures.NUMBERS[ENTROPY_COMPONENTS], COARSE, FINE, WIDE, NUMBERS)
    result, wide = _entropy(m, v, *COARSE), (v > WIDE).any(-1)
    if bool(wide.any()):
        result = result.index_put((wide,), _entropy(m[wide], v[wide], *FINE))
    return result


def _entropy(m: Tensor, v: Tensor, count: int, around: int) -> Tensor:
    nodes, log_weight = quadrature_nodes(m, v, count, after=2.5, before=10.0)
    log_l, log_d, slope, _ = log_survival_and_density(m, v, nodes, ENTROPY_COMPONENTS)
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
    zeta, weight = numerics.tensors(HERMITE[7], m)
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
    zeta, weight = numerics.tensors(HERMITE[around], w)
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
