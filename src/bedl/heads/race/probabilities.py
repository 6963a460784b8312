"""E[softmax(f)] for f ~ N(m, diag v), without sampling: a race of clocks.

Class k's clock rings at time t_k = E_k exp(-f_k), E_k ~ Exp(1); the first to ring is class c with probability
softmax(f)_c. On the axis u = log t, with w = m_k + u,

    survival  L_k(u) = E exp(-exp(f_k + u)),      density  D_k(u) = -dL_k/du,
    p_c = integral of D_c(u) prod_{k != c} L_k(u) du.

log E ~ sum_r p_r N(mu_r, tau_r^2) (`mixtures`), and f_k only widens the components, so L and D are sums of erf and exp
and every derivative is closed too:  dL/dm = -D, dL/dv = -D'/2, dD/dm = D', dD/dv = D''/2.

*Left tail.* Normals underflow where D does not; the identity D(w) = exp(w + v/2) L(w + v), exact for the law itself,
replaces them there. So log-probabilities of hopeless classes are right too, as are their gradients.

*Nodes.* Everything is decided by the time u_hi at which some class has surely rung. A class that matters at distance d
before u_hi and is still silent there has a std of at least about d/8: the scale of the integrand grows linearly with d.
So the nodes sit on an exponential map whose finest spacing, at u_hi, fits the class that decides there, and sixteen of
them serve any mix of stds. Uniform nodes are off by 1e-2 to 0.5 as soon as stds differ by more than 4x.

Largest error of a probability, float32, against float64 quadrature; C = 2, 5, 10, 100; stds s, or spread below s by
factors of 4, 20 and more:

    s                           0.1     0.5     1       2       5       10      20
    16 nodes, 4 components      2e-4    2e-4    2e-4    6e-4    6e-4    5e-4    8e-4
    16 nodes, 6 components      3e-5    3e-5    4e-5    6e-5    1e-4    7e-5    3e-4    (the default)
    32 nodes, 8 components      4e-6    4e-6    4e-6    5e-6    1e-5    1e-5    1e-5

and over thousands of random cases with stds log-uniform from 0.01 to the s named (against 160 nodes, 8 components):

    s                           2       8       20      60      200     1000
    16 nodes, 6 components      1e-4    1e-4    3e-4    1e-3    9e-3    3e-2
    32 nodes, 8 components      1e-5    2e-5    2e-5    3e-5    5e-5    5e-4

C = 1000: 3e-4 with 6 components, 4e-5 with 8.

Monte Carlo with 5 samples has errors of 0.1 to 0.8. Cost is linear in C; docs/speed.md has it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bedl import native
from bedl.autograd import apply, first_order_only
from bedl.heads.race.clocks import clocks
from bedl.heads.race.mixtures import NUMBERS

__all__ = [
    "Race",
    "log_mean_softmax",
    "pull_back",
    "race",
    "race_nodes",
    "run",
    "second_order",
    "settle_small",
    "small_variances",
]

SMALL_VARIANCE = 1e-4  # below this the second-order expansion is better than the race (error O(v^2))


def race_nodes(m: Tensor, v: Tensor, count: int, after: float = 1.9, before: float = 5.5) -> tuple[Tensor, Tensor]:
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
        log_survival: of all clocks together. shape: (*batch, T)
        log_rate: hazard of all clocks together. shape: (*batch, T)
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
    log_l, log_d, d_mean, d_variance = clocks(m, v, nodes, components)
    total = log_l.sum(-2)
    log_h = log_d - log_l
    joint = log_h + (total + log_weight)[..., None, :]
    unnormalised = torch.logsumexp(joint, -1)
    log_p = unnormalised - torch.logsumexp(unnormalised, -1, keepdim=True)
    when = torch.exp(joint - unnormalised[..., None])
    return Race(log_p, total, torch.logsumexp(log_h, -2), when, log_h.exp(), d_mean, d_variance)


def _log_chances(m: Tensor, v: Tensor, nodes: Tensor, log_weight: Tensor, components: int) -> Tensor:
    """log p alone, where no derivative is asked for; arguments as for `race`. shape: (*batch, C)"""
    log_l, log_d = clocks(m, v, nodes, components, slopes=False)
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
    """log p and the log survival of all clocks; the backward needs reductions over nodes and classes only."""

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
    """Log of the winning probabilities, and log survival and log hazard rate of all clocks together at the nodes.

    Differentiable once in ``m`` and ``v``; the nodes count as constants.

    Args:
        m: means. shape: (*batch, C)
        v: variances. shape: (*batch, C)
        nodes: log times, and
        log_weight: the logarithms of their weights, from `race_nodes`. shapes: (*batch, T)
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
    if count <= native.MOST_NODES and not torch.compiler.is_compiling() and native.suits(m, v):
        return native.log_mean_softmax(m, v, count, NUMBERS[components])
    m = m - m.detach().amax(-1, keepdim=True)  # the answer does not change, the nodes keep their digits
    nodes, log_weight = race_nodes(m, v, count)
    if torch.is_grad_enabled() and (m.requires_grad or v.requires_grad):
        log_p, _, _ = race(m, v, nodes, log_weight, components)
    else:
        log_p = _log_chances(m, v, nodes, log_weight, components)
    return settle_small(m, v, log_p)
