"""The race in exported graphs, where nothing can be asked of a point and each operation is a pass over memory.

One race gives the spread of the class probabilities, the entropy given f and the one given lambda; the first axis is
that of the mixture, the second that of the nodes, so that passes are long, and sums over the mixture are products.
The formulas are those of `probabilities`, `spread` and `evidence`, up to one:

*Given that c rings at u*, f_c has the density N(x; m, v) exp(x + u - exp(x + u)). `evidence` puts up to 21 nodes around
its mode; here it is Edgeworth's series, and expectations of psi(exp(f) + 1) are sums over nine nodes. Its mean and
variance are exact, v and v² times derivatives of log D. The next cumulants are polynomials in b = 1 - σ²/v and σ²/(σ² +
4) times -σ⁴b, σ⁶b and -σ⁸b, their order of size by Laplace's method; fits (`CUMULANTS`), within 1, 4 and 10 %.

*Between nodes.* Where stds are large nodes are far apart, while psi(exp(x) + 1) bends within a unit. So it is averaged
over each node's cell, by a kernel whose second moment is 0 so that smooth functions stay as they are, N(0, h²) times
(3 - z²)/2. As the mean of f_c moves by -b while u moves by 1, that is one more term of the series.

Largest errors of the data part in nats, against 160 nodes and 31 around each mode in float64, C = 3, 10 (`evidence`):
1e-5 for stds up to 0.1 (1e-5), 4e-5 up to 1 (4e-5), 4e-4 up to 5 (2e-4), 9e-4 up to 10 (4e-4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bedl.heads.integrals.moments import COUNT, ENTROPY_COMPONENTS, EULER, HARDLY, LIMIT, log_normal_total, settled
from bedl.heads.integrals.nodes import LOG_EXPONENTIAL, MAX_STDS, quadrature_nodes, settle_small
from bedl.moments import numerics

MAX_VARIANCE = 1e6
# Of the variance of a class's log evidence, given that and when it rings; beyond, rounding is all there is
MAX_LOG_EVIDENCE_VARIANCE = 16.0
# of the third cumulant over -σ⁴b, the fourth over σ⁶b, the fifth over -σ⁸b: coefficients of b^i t^j, t = σ²/(σ² + 4)
CUMULANTS = (
    (
        (1.029188, -0.594417, 0.08354),
        (-0.247848, 0.840636, -2.83645),
        (0.452243, -4.843384, 9.425059),
        (-0.222706, 4.398049, -7.472983),
    ),
    (
        (-1.087789, -0.390043, 2.592801),
        (3.961105, 10.515789, -23.979154),
        (-2.624109, -34.208767, 59.042467),
        (1.906517, 21.782532, -38.297698),
    ),
    # 0.6 of it, as the series ends here: then errors are least
    ((2.423783, -4.018577, 0.0), (-13.039284, 21.398105, 0.0), (14.201056, -23.360661, 0.0), (0.0, 0.0, 0.0)),
)
# psi(a + 1) = log(a + 1/2 + (a + p) / (24 (a² + q a + r))), error 8e-6
DIGAMMA = (1.26843995, 1.74605845, 0.85994831)
HERMITE, _AROUND = numerics.hermite(9), numerics.hermite(7)
# nodes, weights, and weights of the kernel that stands for a node's cell, negative: those of -log(1 - exp(-t))
AROUND = [*_AROUND, [w * (0.5 * z * z - 1.5) for z, w in zip(*_AROUND, strict=True)]]
# Hermite's polynomials 0, 2, 3, 4, 5, 6, 7 and 9 at the nodes, times weights and the factors of Edgeworth's series
SERIES = [
    [w / factor * float(np.polynomial.hermite_e.hermeval(z, [0] * order + [1])) for z, w in zip(*HERMITE, strict=True)]
    for order, factor in ((0, 1), (2, 2), (3, 6), (4, 24), (5, 120), (6, 72), (7, 144), (9, 1296))
]
CELL = 0.4  # std of the kernel that stands for a node's cell, over the distance of nodes


def log_mean_softmax(m: Tensor, v: Tensor, count: int, components: int) -> Tensor:
    """`probabilities.log_mean_softmax`. shapes: (*batch, C), (*batch, C) -> (*batch, C)"""
    m = m - m.amax(-1, keepdim=True)
    nodes, log_weight = quadrature_nodes(m, v, count)
    log_l, log_d = _log_survival_and_density(m, v, nodes, components, slopes=False)
    joint = log_d - log_l + (log_l.sum(-1) + log_weight.movedim(-1, 0))[..., None]
    unnormalised = torch.logsumexp(joint, 0)
    return settle_small(m, v, unnormalised - torch.logsumexp(unnormalised, -1, keepdim=True))


def parts(m: Tensor, v: Tensor, log_p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`spread.softmax_spread` and `evidence.expected_data_entropy`. shapes: (*batch, C) -> (*batch, C), (*batch) × 2"""
    top = m.amax(-1, keepdim=True)
    m, v = (m - top).clamp_min(-3 * LIMIT), v.clamp(max=MAX_VARIANCE)
    nodes, log_weight = quadrature_nodes(m, v, COUNT, after=2.5, before=10.0)
    log_l, log_d, slope, curve = _log_survival_and_density(m, v, nodes, ENTROPY_COMPONENTS, slopes=True)
    hazard = torch.exp(log_d - log_l)  # shape: (T, *batch, C)
    rate = hazard.sum(-1).clamp_min(torch.finfo(m.dtype).tiny)
    when = torch.softmax(log_l.sum(-1) + log_weight.movedim(-1, 0) + rate.log(), 0)  # shape: (T, *batch)
    first = hazard * (when / rate)[..., None]  # probability that c rings first, at this time
    p = first.sum(0)
    aleatoric = (first * (rate[..., None] - hazard)).sum(0)
    given = m + v * slope  # E[f_c], if c rings then
    log_mean, spread = log_normal_total(m, v)
    by_race = -EULER - (when.movedim(0, -1) * nodes).sum(-1)
    log_total = torch.where(spread < HARDLY, log_mean - 0.5 * spread, by_race)
    variance, entropy = settled(v, log_p, p * (1 - p) - aleatoric, log_total - (first * given).sum((0, -1)))
    raised = top.clamp(-LIMIT, LIMIT)  # beyond nothing changes
    # the first weight is more than the width of the cell, which is about that of the next
    width = CELL * torch.exp(torch.cat([log_weight[..., 1:2], log_weight[..., 1:]], -1)).movedim(-1, 0)
    total = _total(log_mean + raised[..., 0], spread, nodes - raised, log_weight, width, when)
    digamma = _digamma_given(given + raised, v, slope, curve, width[..., None])
    return variance, entropy, torch.minimum((total - (first * digamma).sum((0, -1))).clamp_min(0.0), entropy)


def _total(log_mean: Tensor, spread: Tensor, nodes: Tensor, log_weight: Tensor, width: Tensor, when: Tensor) -> Tensor:
    """E psi(A + 1). shapes: (*batch), (*batch), (*batch, T), (*batch, T), (T, *batch), (T, *batch) -> (*batch)"""
    z, weight, kernel = nodes.new_tensor(AROUND).view(3, -1, *[1] * when.dim()).unbind(0)
    u = nodes.movedim(-1, 0) + width * z  # shape: (around, T, *batch)
    t = torch.exp(u.clamp(max=4.0))
    log_silent = torch.where(t < 0.01, u - 0.5 * t, torch.log(1 - torch.exp(-t)))
    averaged = (kernel * log_silent).sum(0)
    # left of the first node the kernel is a line of slope -1, and the first weight holds a mass of 1 there
    tail = torch.exp(-log_weight[..., 0]) * when[0]
    by_race = (when * averaged).sum(0) + tail - EULER
    calm = spread < HARDLY
    safe = torch.where(calm, spread, 0.0).clamp_min(torch.finfo(nodes.dtype).tiny)
    log_total = log_mean - 0.5 * safe + safe.sqrt() * z[:, 0]
    return torch.where(calm, (weight[:, 0] * _digamma_after(log_total)).sum(0), by_race)


def _digamma_given(mean: Tensor, v: Tensor, slope: Tensor, curve: Tensor, width: Tensor) -> Tensor:
    """E[psi(a_c + 1) | c rings at u]; `mean` is that of f_c, `width` that of the node's cell.

    shapes: (T, *batch, C), (*batch, C), (T, *batch, C), (T, *batch, C), (T, *batch, 1) -> (T, *batch, C)
    """
    v = v.clamp_min(1e-12)
    within = torch.minimum(
        (v * (1 + v * (curve - slope.square()))).clamp(1e-12, MAX_LOG_EVIDENCE_VARIANCE), v
    )  # the variance
    missing, share = 1 - within / v, within / (within + 4)
    third, fourth, fifth = _cumulants(missing, share)
    between = (missing * width).square()  # the mean moves by -b while u moves by 1
    variance = within + between
    std, ratio = variance.sqrt(), within / variance
    rest = missing * ratio.square() * std  # the cumulants, standardised: each has a factor of ratio·σ more
    skewness, excess = -rest * third, rest * ratio * std * fourth
    fifth = -rest * (ratio * std).square() * fifth
    z = mean.new_tensor(HERMITE[0])
    x = mean + std * z.view(-1, *[1] * mean.dim())
    terms = mean.new_tensor(SERIES) @ _digamma_after(x).flatten(1)  # shape: (8, T × batch × C)
    by = terms.view(len(SERIES), *mean.shape).unbind(0)
    by_skewness = by[2] + excess * by[6] + skewness * (by[5] + skewness * by[7])
    return by[0] - (1 - ratio) * by[1] + skewness * by_skewness + excess * by[3] + fifth * by[4]


def _cumulants(missing: Tensor, share: Tensor) -> Sequence[Tensor]:
    """The polynomials of `CUMULANTS`: of t, at once, and by Horner's scheme of b. shapes: (*shape) -> 3 × (*shape)"""
    powers = torch.stack([torch.ones_like(share), share, share.square()]).flatten(1)
    columns = missing.new_tensor(CUMULANTS).transpose(0, 1).flatten(0, 1) @ powers
    *others, value = columns.view(4, 3, *share.shape).unbind(0)
    for part in reversed(others):
        value = value * missing + part
    return value.unbind(0)


def _digamma_after(x: Tensor) -> Tensor:
    """psi(exp(x) + 1), error 8e-6. shape: (*shape)"""
    p, q, r = DIGAMMA
    a = torch.exp(x.clamp(max=30.0))
    return torch.maximum(torch.log(a + (0.5 + (a / 24 + p / 24) / ((a + q) * a + r))), x)  # it is above log a


def _log_survival_and_density(m: Tensor, v: Tensor, nodes: Tensor, components: int, slopes: bool) -> tuple[Tensor, ...]:
    """log L, log D and, with slopes, D'/D and D''/D: as `nodes.log_survival_and_density`, which explains them.

    shapes: (*batch, C), (*batch, C), (*batch, T) -> (T, *batch, C)
    """
    w = m + nodes.movedim(-1, 0)[..., None]
    early = w + v < 0.5 + 3 * v.sqrt() * v / (v + 12)
    shift = torch.where(early, v, 0.0)
    _, mu, variance = LOG_EXPONENTIAL[components][0]
    widest = torch.rsqrt(2 * (variance + v))
    middle, reach = mu - shift, MAX_STDS / widest
    near = torch.minimum(torch.maximum(w, middle - reach), middle + reach)
    distance = (middle - near) * widest
    reference = distance.square()
    shares, *others = zip(*LOG_EXPONENTIAL[components], strict=True)
    p = m.new_tensor([shares])
    mus, variances = m.new_tensor(others).view(2, -1, *[1] * w.dim()).unbind(0)

    def over_components(terms: Tensor) -> Tensor:
        return (p @ terms.flatten(1)).view(w.shape)

    inverse = torch.rsqrt(2 * (variances + v))  # shape: (R, 1, *batch, C)
    d = (mus - near) * inverse
    g = d - shift * inverse
    e = inverse * torch.exp(reference - g * g)
    survival = 0.5 + 0.5 * over_components(torch.erf(d))
    shifted = (0.5 + 0.5 * over_components(torch.erf(g))).clamp_min(1e-4)
    density = over_components(e) / math.sqrt(math.pi)
    log_survival = survival.clamp_min(torch.finfo(m.dtype).eps ** 2).log()
    late = density.log() - reference + 2 * distance * widest * (w - near)
    log_density = torch.where(early, w + 0.5 * v + shifted.log(), late)
    if not slopes:
        return log_survival, log_density
    across = g * inverse
    along = across * e
    slope = over_components(along) * (2 / math.sqrt(math.pi))
    curve = over_components(2 * across * along - inverse.square() * e) * (2 / math.sqrt(math.pi))
    ratio = torch.exp(-reference) / shifted
    by_density = 1 / density
    return (
        log_survival,
        log_density,
        torch.where(early, 1 - density * ratio, slope * by_density),
        torch.where(early, 1 - (2 * density + slope) * ratio, curve * by_density),
    )
