"""How softmax(f) varies, f ~ N(m, diag v): variance per class and expected entropy, on the nodes of the race.

With the hazards H = D/L and the survival P = prod_k L_k of `probabilities` (all integrals over u):

    E[softmax_c (1 - softmax_c)] = int H_c (sum_{k != c} H_k) P du          two clocks that ring together
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

from bedl.heads.race.clocks import clocks
from bedl.heads.race.probabilities import race_nodes

__all__ = ["COUNT", "EULER", "HARDLY", "log_normal_total", "settled", "softmax_spread"]

EULER = 0.5772156649015329
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
    delta = p.square() * ((1 - 2 * p) * v + (p.square() * v).sum(-1, keepdim=True))
    information = 0.5 * (p * ((1 - 2 * p) * v + (p.square() * v).sum(-1, keepdim=True))).sum(-1)
    variance = torch.where(small, delta, variance)
    conditional = torch.where(small[..., 0], entropy - information, conditional)
    bound = (p * -torch.expm1(log_p)).clamp_min(0.0)
    zero = torch.zeros_like(bound)
    return variance.clamp(zero, bound), conditional.clamp(zero[..., 0], entropy.clamp_min(0.0))


def _by_race(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    nodes, log_weight = race_nodes(m, v, COUNT, after=2.5, before=10.0)
    log_l, log_d, slope, _ = clocks(m, v, nodes, COMPONENTS)
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
