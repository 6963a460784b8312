"""Two laws written as sums of normals, so that adding a normal variable only widens each component.

`LOG_EXPONENTIAL[R]`: X = log E with E ~ Exp(1), as  sum_r p_r N(mu_r, tau_r^2).  The largest error of the survival
function is 8e-4 for R = 4, 1.2e-4 for R = 6 and 2e-5 for R = 8 (minimax fits; the tests hold them to the exact law).
`LOGISTIC`: the logistic cdf as  sum_r p_r Phi(x / scale_r), largest error 5e-6.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bedl import _kernels
from bedl._utils.autograd import apply, first_order_only

# (probability, mean, variance), the widest component first: `log_survival_and_density` scales by that one
LOG_EXPONENTIAL: dict[int, tuple[tuple[float, float, float], ...]] = {
    4: (
        (0.07739102736, -2.86996895466, 2.42672389874),
        (0.305187088677, -1.2828670277, 0.945565716643),
        (0.420164622327, -0.202356385571, 0.465045811539),
        (0.197257261636, 0.62511998392, 0.258460877226),
    ),
    6: (
        (0.0194135425628, -3.97136100857, 3.17560116225),
        (0.10920606994, -2.32559035915, 1.37840035766),
        (0.252012080161, -1.17609097404, 0.720961000231),
        (0.326471003362, -0.310473893799, 0.417978187703),
        (0.229513791023, 0.388139402193, 0.259629066962),
        (0.0633835129503, 0.990399257959, 0.168386908307),
    ),
    8: (
        (0.00541877658657, -4.91228383616, 4.00582296965),
        (0.039138449249, -3.24144521087, 1.87962129128),
        (0.118092054808, -2.02784744256, 1.03425120645),
        (0.219005524094, -1.10509752879, 0.61898902948),
        (0.272128703986, -0.371109044878, 0.392304532321),
        (0.22135482356, 0.239024751957, 0.259849137576),
        (0.104572819195, 0.769321146097, 0.178193439183),
        (0.0202888485205, 1.25358003283, 0.124777151196),
    ),
}

# the same as kernels read them: one number after the other
NUMBERS = {count: [number for component in LOG_EXPONENTIAL[count] for number in component] for count in LOG_EXPONENTIAL}

# (probability, variance)
LOGISTIC: tuple[tuple[float, float], ...] = (
    (0.061030312051, 9.69801567215),
    (0.374417478289, 4.42794422173),
    (0.45825470861, 2.04696364288),
    (0.10629750105, 0.954795296021),
)


# One clock of the race: survival, density and their derivatives, as sums over a mixture of normals.


# erf(x) = x P(x^2) / Q(x^2) on [-4, 4], the float32 form of Eigen and XLA; error 3e-7
ERF_P: tuple[float, ...] = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05)
ERF_P += (-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)
ERF_Q: tuple[float, ...] = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03)
ERF_Q += (-7.37332916720468e-03, -1.42647390514189e-02)

MAX_STDS = 30.0  # standard deviations (times √2) of the widest component at which rates are evaluated


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


def log_survival_and_density(
    m: Tensor, v: Tensor, nodes: Tensor, components: int, slopes: bool = True
) -> tuple[Tensor, ...]:
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
    if _kernels.supported(m, v, nodes):
        kernel = _kernels.log_survival_density_and_slopes if slopes else _kernels.log_survival_and_density
        return kernel(m, v, nodes, NUMBERS[components])
    return _log_survival_and_density(m[..., None] + nodes[..., None, :], v[..., None], components, slopes)


def _log_survival_and_density(w: Tensor, v: Tensor, components: int, slopes: bool) -> tuple[Tensor, ...]:
    """The same in PyTorch, given w = m + log time. shapes: (*batch, C, T), (*batch, C, 1) -> 2 or 4 × (*batch, C, T)"""
    early = w + v < 0.5 + 3 * v.sqrt() * v / (v + 12)  # where the identity is the more accurate one, by v
    shift = torch.where(early, v, torch.zeros_like(v))
    # relative to the widest component, the first, nothing underflows; farther out squares would lose their digits, and
    # there everything is known: early, the identity holds without correction, and late the logarithm goes on straight
    _, mu, variance = LOG_EXPONENTIAL[components][0]
    inverse = torch.rsqrt(2 * (variance + v))
    middle, reach = mu - shift, MAX_STDS / inverse
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
    once, in a graph to be exported, where each operation has its price. shapes: as for `_terms`
    """
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


# E[softmax(f)] for f ~ N(m, diag v), without sampling: an exponential race.
#
# Class k's clock rings at time t_k = E_k exp(-f_k), E_k ~ Exp(1); the first to ring is class c with probability
# softmax(f)_c. On the axis u = log t, with w = m_k + u,
#
#     survival  L_k(u) = E exp(-exp(f_k + u)),      density  D_k(u) = -dL_k/du,
#     p_c = integral of D_c(u) prod_{k != c} L_k(u) du.
#
# log E ~ sum_r p_r N(mu_r, tau_r^2) (`mixtures`), and f_k only widens the components, so L and D are sums of erf and
# exp and every derivative is closed too:  dL/dm = -D, dL/dv = -D'/2, dD/dm = D', dD/dv = D''/2.
#
# *Left tail.* Normals underflow where D does not; the identity D(w) = exp(w + v/2) L(w + v), exact for the law itself,
# replaces them there. So log-probabilities of hopeless classes are right too, as are their gradients.
#
# *Nodes.* Everything is decided by the time u_hi at which some class has surely rung. A class that matters at distance
# d before u_hi and is still silent there has a std of at least about d/8: the scale of the integrand grows linearly
# with d. So the nodes sit on an exponential map whose finest spacing, at u_hi, fits the class that decides there, and
# sixteen of them serve any mix of stds. Uniform nodes are off by 1e-2 to 0.5 as soon as stds differ by more than 4x.
#
# Largest error of a probability, float32, against float64 quadrature; C = 2, 5, 10, 100; stds s, or spread below s by
# factors of 4, 20 and more:
#
#     s                           0.1     0.5     1       2       5       10      20
#     16 nodes, 4 components      2e-4    2e-4    2e-4    6e-4    6e-4    5e-4    8e-4
#     16 nodes, 6 components      3e-5    3e-5    4e-5    6e-5    1e-4    7e-5    3e-4    (the default)
#     32 nodes, 8 components      4e-6    4e-6    4e-6    5e-6    1e-5    1e-5    1e-5
#
# and over thousands of random cases with stds log-uniform from 0.01 to the s named (against 160 nodes, 8 components):
#
#     s                           2       8       20      60      200     1000
#     16 nodes, 6 components      1e-4    1e-4    3e-4    1e-3    9e-3    3e-2
#     32 nodes, 8 components      1e-5    2e-5    2e-5    3e-5    5e-5    5e-4
#
# C = 1000: 3e-4 with 6 components, 4e-5 with 8.
#
# Monte Carlo with 5 samples has errors of 0.1 to 0.8. Cost is linear in C; docs/speed.md has it.


SMALL_VARIANCE = 1e-4  # below this the second-order expansion is better than the race (error O(v^2))


def quadrature_nodes(
    m: Tensor, v: Tensor, count: int, after: float = 1.9, before: float = 5.5
) -> tuple[Tensor, Tensor]:
    """Nodes on the axis of log time, and the logarithms of their weights.

    Args:
        m: means. shape: (*batch, C)
        v: variances. shape: (*batch, C)
        count: how many nodes, T.
        after: how far the nodes reach behind the time at which some class has surely rung, and
        before: in front of the time at which none has. There the density of the first ringing grows like exp(u); its
            mass left of the first node is part of that node's weight.

    Returns:
        nodes, ascending, and log weights. shapes: (*batch, T)
    """
    m, v = m.detach(), v.detach()
    s = v.sqrt()
    more = min((count - 16) / 16, 1.0)  # with many nodes the ends, not the spacing, would limit the accuracy
    slowest = m - (3.2 + 1.0 * more) * s
    start = -torch.logsumexp(m + (3.55 + 0.65 * more) * s, -1, keepdim=True) - before
    stop = -torch.logsumexp(slowest, -1, keepdim=True) + after
    width = (torch.softmax(slowest, -1) * (1.8 + v).sqrt()).sum(-1, keepdim=True)  # of the integrand's edge at `stop`
    # spacing at the edge = 0.39 widths: solve expm1(k) / k = stretch by the fixed point k = log(1 + k * stretch)
    stretch = ((stop - start) / ((count - 1) * 0.39 * width)).clamp_min(1.02)
    k = 2 * stretch.log()
    for _ in range(4):
        k = torch.log1p(k * stretch)
    back = k * torch.linspace(1, 0, count, dtype=m.dtype, device=m.device)
    scale = (stop - start) / torch.expm1(k)
    weight = scale * k / (count - 1) * torch.exp(back)
    first = torch.cat([0.5 * weight[..., :1] + 1, weight[..., 1:]], -1)
    return stop - scale * torch.expm1(back), first.log()


class Race(NamedTuple):
    """A race that was run: what was asked for, and what its derivatives need.

    Attributes:
        log_p: of winning. shape: (*batch, C)
        log_survival: of all classes together. shape: (*batch, T)
        log_rate: hazard of all classes together. shape: (*batch, T)
        when: weights of the nodes, given that class c wins. shape: (*batch, C, T)
        hazard: D/L of each clock. shape: (*batch, C, T)
        d_mean, d_variance: derivatives of log D. shape: (*batch, C, T)
    """

    log_p: Tensor
    log_survival: Tensor
    log_rate: Tensor
    when: Tensor
    hazard: Tensor
    d_mean: Tensor
    d_variance: Tensor


def run(m: Tensor, v: Tensor, nodes: Tensor, log_weight: Tensor, components: int) -> Race:
    """The race; arguments as for `race`."""
    log_l, log_d, d_mean, d_variance = log_survival_and_density(m, v, nodes, components)
    total = log_l.sum(-2)
    log_h = log_d - log_l
    joint = log_h + (total + log_weight)[..., None, :]
    unnormalised = torch.logsumexp(joint, -1)
    log_p = unnormalised - torch.logsumexp(unnormalised, -1, keepdim=True)
    when = torch.exp(joint - unnormalised[..., None])
    return Race(log_p, total, torch.logsumexp(log_h, -2), when, log_h.exp(), d_mean, d_variance)


def _log_chances(m: Tensor, v: Tensor, nodes: Tensor, log_weight: Tensor, components: int) -> Tensor:
    """log p alone, where no derivative is asked for; arguments as for `race`. shape: (*batch, C)"""
    log_l, log_d = log_survival_and_density(m, v, nodes, components, slopes=False)
    unnormalised = torch.logsumexp(log_d - log_l + (log_l.sum(-2) + log_weight)[..., None, :], -1)
    return unnormalised - torch.logsumexp(unnormalised, -1, keepdim=True)


def pull_back(
    race: Race, by_p: Tensor | None, by_survival: Tensor | None = None, by_rate: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Derivatives by m and v of a function of log p, log survival and log rate, from its derivatives by those.

    It takes dL/dm = -D with the same D as the race, that is, with the left-tail identity: nearer to the derivative of
    the integral than that of the mixture would be, and apart from it by the mixture's error.

    Args:
        by_p: shape (*batch, C); at least one of this and the next is there
        by_survival: shape (*batch, T)
        by_rate: shape (*batch, T)

    Returns:
        shapes: (*batch, C), (*batch, C)
    """
    own: Tensor | None = None  # what reaches log D_k - log L_k ...
    through_l = by_survival
    if by_p is not None:  # ... by way of log p
        by_unnormalised = by_p - race.log_p.exp() * by_p.sum(-1, keepdim=True)
        own = by_unnormalised[..., None] * race.when
        through_l = own.sum(-2) if by_survival is None else own.sum(-2) + by_survival
    if by_rate is not None:  # ... and of the rate
        # a rate below e^-80 decides nothing, and its inverse would be infinite
        of_rate = (by_rate * torch.exp(-race.log_rate.clamp_min(-80.0)))[..., None, :] * race.hazard
        own = of_rate if own is None else own + of_rate
    assert own is not None
    assert through_l is not None
    lost = (through_l[..., None, :] - own) * race.hazard  # dL/dm = -D, dL/dv = -D'/2
    by_m = (own * race.d_mean - lost).sum(-1)
    by_v = (own * race.d_variance - 0.5 * lost * race.d_mean).sum(-1)
    return by_m, by_v


class _Race(torch.autograd.Function):
    """log p and the log survival of all classes; the backward needs reductions over nodes and classes only."""

    generate_vmap_rule = True

    @staticmethod
    def forward(m: Tensor, v: Tensor, nodes: Tensor, log_weight: Tensor, components: int) -> tuple[Tensor, ...]:
        return tuple(run(m, v, nodes, log_weight, components))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.mark_non_differentiable(*output[3:])
        ctx.save_for_backward(*inputs[:2], *output)

    @staticmethod
    def backward(ctx: Any, by_p: Tensor, by_survival: Tensor, by_rate: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        m, v, *saved = ctx.saved_tensors
        by_m, by_v = pull_back(Race(*saved), by_p, by_survival, by_rate)
        return first_order_only(by_m, m, v), first_order_only(by_v, m, v), None, None, None


def race(m: Tensor, v: Tensor, nodes: Tensor, log_weight: Tensor, components: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Log of the winning probabilities, and log survival and log hazard rate of all classes together at the nodes.

    Differentiable once in ``m`` and ``v``; the nodes count as constants.

    Args:
        m: means. shape: (*batch, C)
        v: variances. shape: (*batch, C)
        nodes: log times, and
        log_weight: the logarithms of their weights, from `quadrature_nodes`. shapes: (*batch, T)
        components: normals in the mixture for log Exp(1): 4, 6 or 8.

    Returns:
        log p, shape: (*batch, C), sum_k log L_k, shape: (*batch, T), log sum_k D_k/L_k, shape: (*batch, T)
    """
    log_p, log_survival, log_rate, *_ = apply(_Race, m, v, nodes, log_weight, components)
    return log_p, log_survival, log_rate


def second_order(m: Tensor, v: Tensor) -> Tensor:
    """log E[softmax(f)] to first order in the variances; exactly log_softmax(m) at v = 0.

    Args:
        m: means. shape: (*batch, C)
        v: variances. shape: (*batch, C)
    """
    log_p = torch.log_softmax(m, -1)
    p = log_p.exp()
    return log_p + 0.5 * (v * (1 - 2 * p) + (v * p * (2 * p - 1)).sum(-1, keepdim=True))


def small_variances(v: Tensor) -> Tensor:
    """Where all are so small that the expansion is better than the race. shape: (*batch, C) -> (*batch, 1)"""
    return (v < SMALL_VARIANCE).all(-1, keepdim=True)


def settle_small(m: Tensor, v: Tensor, log_p: Tensor) -> Tensor:
    """log_p of the race, or the expansion where all variances are so small that it is better. shape: (*batch, C)"""
    small = small_variances(v)
    return torch.where(small, second_order(m, torch.where(small, v, 0.0)), log_p)


def log_mean_softmax(m: Tensor, v: Tensor, count: int = 16, components: int = 6) -> Tensor:
    """log E[softmax(f)], f ~ N(m, diag v), by the race.

    Args:
        m: means. shape: (*batch, C)
        v: variances. shape: (*batch, C)
        count: nodes.
        components: normals in the mixture for log Exp(1): 4, 6 or 8.

    Returns:
        log-probabilities; their exponentials add up to 1. shape: (*batch, C)

    Example:
        >>> import torch
        >>> m, v = torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([[4.0, 1.0, 0.0]])
        >>> log_mean_softmax(m, v).exp()
        tensor([[0.5867, 0.3051, 0.1082]])
        >>> log_mean_softmax(m, 0 * v).exp()
        tensor([[0.6652, 0.2447, 0.0900]])
    """
    if count <= _kernels.MAX_NODES and not torch.compiler.is_compiling() and _kernels.supported(m, v):
        return _kernels.log_mean_softmax(m, v, count, NUMBERS[components])
    m = m - m.detach().amax(-1, keepdim=True)  # the answer does not change, the nodes keep their digits
    nodes, log_weight = quadrature_nodes(m, v, count)
    if torch.is_grad_enabled() and (m.requires_grad or v.requires_grad):
        log_p, _, _ = race(m, v, nodes, log_weight, components)
    else:
        log_p = _log_chances(m, v, nodes, log_weight, components)
    return settle_small(m, v, log_p)
