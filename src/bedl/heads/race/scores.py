"""What training asks of a race: log p of the true class, and the expected KL, on one set of nodes.

Both are one number per point, so their derivatives, 2C numbers each, are computed together with them: nothing of the
race is kept for the backward pass, nor computed again there, which is what compiled code would do.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bedl.autograd import apply, first_order_only
from bedl.heads.race.divergence import average_over_nodes, expected_terms, nodes_with_floors
from bedl.heads.race.probabilities import Race, pull_back, race_nodes, run, second_order, small_variances

__all__ = ["log_marginal", "log_marginal_and_expected_kl"]


def _true_class(race: Race, y: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """log p of each point's class, and its derivatives by m and v. y: shape (*batch)"""
    is_true = torch.arange(race.log_p.shape[-1], device=y.device) == y[..., None]
    log_p = torch.where(is_true, race.log_p, 0.0).sum(-1)
    return log_p, pull_back(race, is_true.to(race.log_p.dtype))


class _LogMarginal(torch.autograd.Function):
    """log p(y) by a race."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        m: Tensor, v: Tensor, y: Tensor, nodes: Tensor, log_weight: Tensor, components: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        log_p, derivatives = _true_class(run(m, v, nodes, log_weight, components), y)
        return log_p, *derivatives

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs[:2], *output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        m, v, by_m, by_v = ctx.saved_tensors
        grads = (first_order_only(grad[..., None] * by, m, v) for by in (by_m, by_v))
        return *grads, None, None, None, None


class _LogMarginalAndAverage(torch.autograd.Function):
    """log p(y), and the part of the KL that is an average over the nodes of the same race."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        m: Tensor, v: Tensor, y: Tensor, nodes: Tensor, log_weight: Tensor, components: int
    ) -> tuple[Tensor, ...]:
        race = run(m, v, nodes, log_weight, components)
        log_p, derivatives = _true_class(race, y)
        average = average_over_nodes(nodes, log_weight, race.log_survival, race.log_rate, m.shape[-1])
        of_average = pull_back(race, None, average.by_survival, average.by_rate)
        return log_p, average.value, *derivatives, *of_average

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(*inputs[:2], *output[2:])

    @staticmethod
    def backward(ctx: Any, by_p: Tensor, by_average: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        m, v, p_by_m, p_by_v, average_by_m, average_by_v = ctx.saved_tensors
        by_p, by_average = by_p[..., None], by_average[..., None]
        by_m = by_p * p_by_m + by_average * average_by_m
        by_v = by_p * p_by_v + by_average * average_by_v
        return first_order_only(by_m, m, v), first_order_only(by_v, m, v), None, None, None, None


def _settle_small(m: Tensor, v: Tensor, y: Tensor, log_p: Tensor) -> Tensor:
    """log p of the race, or the expansion where that is better; see `settle_small`. shapes: (*batch, C); (*batch)"""
    small = small_variances(v)
    expansion = second_order(m, torch.where(small, v, 0.0)).gather(-1, y[..., None])
    return torch.where(small, expansion, log_p[..., None])[..., 0]


def log_marginal(m: Tensor, v: Tensor, y: Tensor, count: int = 16, components: int = 6) -> Tensor:
    """log E[softmax(f)_y], f ~ N(m, diag v).

    Args:
        m: means. shape: (*batch, C)
        v: variances. shape: (*batch, C)
        y: classes. shape: (*batch)
        count: nodes of the race.
        components: normals in the mixture for log Exp(1): 4, 6 or 8.

    Returns:
        shape: (*batch)
    """
    m = m - m.detach().amax(-1, keepdim=True)  # the answer does not change, the nodes keep their digits
    log_p, *_ = apply(_LogMarginal, m, v, y, *race_nodes(m, v, count), components)
    return _settle_small(m, v, y, log_p)


def log_marginal_and_expected_kl(
    m: Tensor, v: Tensor, y: Tensor, count: int = 16, components: int = 6
) -> tuple[Tensor, Tensor]:
    """`log_marginal` and `expected_dirichlet_kl`, on one race. shapes: (*batch), (*batch)"""
    log_p, average, *_ = apply(_LogMarginalAndAverage, m, v, y, *nodes_with_floors(m, v, count), components)
    kl = expected_terms(m, v).sum(-1) + average - math.lgamma(m.shape[-1])
    return _settle_small(m, v, y, log_p), kl
