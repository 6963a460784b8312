"""Relaxed evidential deep learning: EDL with less weight on its prior, and without its variance term.

M. Chen, J. Gao, C. Xu, "R-EDL: Relaxing Nonessential Settings of Evidential Deep Learning", ICLR 2024.

    alpha = softplus(f) + lambda,  p = alpha / Σ alpha
    Σ (y − p)²  +  kl · min(1, epoch/10) · KL(Dir((1 − y) softplus(f) + lambda) ‖ Dir(lambda))

lambda = 0.1 in the paper; it is 1 in EDL. The divergence from so peaked a prior is large: the paper has kl = 1, the
default is 0.1, under which rows held out of training parts of digits were more likely.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bedl.methods.edl import ACTIVATIONS, CLASSES_ONLY, EDL, dirichlet_divergence, known, one_hot
from bedl.methods.networks import plain_network
from bedl.methods.registry import Problem, register
from bedl.moments import Moments
from bedl.objectives import Batch

__all__ = ["RelaxedEDL"]


class RelaxedEDL(EDL):
    """EDL as relaxed by Chen et al.

    Args:
        net: a tensor in, outputs of shape (n, C) out.
        n_classes: number of classes.
        prior_weight: lambda, the evidence that each class has before any data.
        kl: factor on the divergence.
        ramp: epochs in which it rises to its full weight.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> RelaxedEDL(nn.Linear(2, 3), 3, prior_weight=0.1).predict(torch.zeros(4, 2)).probabilities.shape
        torch.Size([4, 3])
    """

    def __init__(self, net: nn.Module, n_classes: int, prior_weight: float = 0.1, kl: float = 0.1, ramp: float = 10.0):
        super().__init__(net, n_classes, kl=kl, ramp=ramp)
        if not prior_weight > 0:
            raise ValueError(f"prior_weight must be positive, not {prior_weight!r}")
        self.prior_weight = prior_weight

    def alpha(self, x: Tensor | Moments) -> Tensor:
        return ACTIVATIONS[self.evidence](known(self.net(x))) + self.prior_weight

    def loss(self, batch: Batch) -> Tensor:
        alpha = self.alpha(batch.x)
        y = one_hot(self.head.check_targets(batch.y, alpha.shape[:-1]), alpha)
        error = (y - alpha / alpha.sum(-1, keepdim=True)).square().sum(-1)
        prior = torch.full_like(alpha, self.prior_weight)
        misleading = dirichlet_divergence(y * prior + (1 - y) * alpha, prior)
        return batch.mean(error + self.kl * batch.ramp(self.ramp) * misleading)


@register(
    "r-edl",
    "relaxed evidential deep learning (Chen et al. 2024): less prior, no variance term",
    tasks=("classification",),
    reason=CLASSES_ONLY,
)
def r_edl(problem: Problem, prior_weight: float = 0.1, kl: float = 0.1, ramp: float = 10.0) -> RelaxedEDL:
    """See `RelaxedEDL` for the options."""
    return RelaxedEDL(plain_network(problem, problem.n_targets), problem.n_targets, prior_weight, kl, ramp)
