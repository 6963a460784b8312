"""Evidential deep learning: a plain network whose outputs are the evidence of a Dirichlet over class probabilities.

M. Sensoy, L. Kaplan, M. Kandemir, "Evidential Deep Learning to Quantify Classification Uncertainty", NeurIPS 2018.

    alpha = evidence(f) + 1,  S = Σ alpha,  p = alpha / S,  y one-hot
    "squared":  Σ (y − p)² + p (1 − p)/(S + 1)        expected squared error
    "log":      Σ y (log S − log alpha)               negative log marginal likelihood
    "digamma":  Σ y (psi(S) − psi(alpha))             expected cross-entropy
    + ramp · KL(Dir(y + (1 − y) alpha) ‖ Dir(1))      evidence for wrong classes; ramp = min(1, epoch/10)
    + ½ decay · Σ‖W‖²                                 weights of dense layers, 0.005 in the authors' code

The Dirichlet gives ``data`` and ``distributional`` in closed form; the network is a point, so nothing is ``model``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl.heads import Dirichlet
from bedl.methods.base import Method
from bedl.methods.networks import plain_network
from bedl.methods.registry import Problem, register
from bedl.moments import Moments
from bedl.objectives import Batch
from bedl.predictive import CategoricalPredictive

__all__ = ["EDL", "Evidence", "Loss", "dirichlet_divergence", "known"]

Evidence = Literal["relu", "softplus", "exp"]
Loss = Literal["squared", "log", "digamma"]
MOST_LOG_EVIDENCE = 10.0  # of exp, as in the authors' code


class EDL(Method):
    """A network with ordinary weights that gives evidence for each class.

    Args:
        net: a tensor in, outputs of shape (n, C) out.
        n_classes: number of classes.
        evidence: how outputs become evidence, which is not negative: ``"relu"`` as in the paper, where points without
            any stop learning, ``"softplus"`` or ``"exp"``.
        loss: which of the three losses above.
        kl: factor on the divergence.
        ramp: epochs in which it rises to its full weight.
        decay: of the weights of linear layers.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> method = EDL(nn.Linear(2, 3), 3)
        >>> p = method.predict(torch.zeros(4, 2))
        >>> bool((p.vacuity < 1).all()), p.model.max().item() < 1e-6  # some evidence; the network is known
        (True, True)
    """

    paced = True

    def __init__(
        self,
        net: nn.Module,
        n_classes: int,
        evidence: Evidence = "softplus",
        loss: Loss = "squared",
        kl: float = 1.0,
        ramp: float = 10.0,
        decay: float = 0.0,
    ):
        super().__init__()
        for value, name, choices in ((evidence, "evidence", ACTIVATIONS), (loss, "loss", LOSSES)):
            if value not in choices:
                raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, not {value!r}")
        if not (kl >= 0 and ramp >= 0 and decay >= 0):
            raise ValueError(f"kl, ramp and decay must be at least 0, not {kl!r}, {ramp!r} and {decay!r}")
        self.net, self.head = net, Dirichlet(n_classes)
        self.evidence, self.risk, self.kl, self.ramp, self.decay = evidence, loss, kl, ramp, decay

    def alpha(self, x: Tensor | Moments) -> Tensor:
        """The Dirichlet's parameters. shape: (n, C)"""
        return ACTIVATIONS[self.evidence](known(self.net(x))) + 1.0

    def forward(self, x: Tensor | Moments) -> CategoricalPredictive:
        return self.head.given(self.alpha(x).log())

    def loss(self, batch: Batch) -> Tensor:
        """The mean risk and divergence, and the decay of weights. shape: ()"""
        alpha = self.alpha(batch.x)
        y = one_hot(self.head.check_targets(batch.y, alpha.shape[:-1]), alpha)
        misleading = dirichlet_divergence(y + (1 - y) * alpha, torch.ones_like(alpha))
        cost = batch.mean(LOSSES[self.risk](alpha, y) + self.kl * batch.ramp(self.ramp) * misleading)
        if not self.decay:
            return cost
        weights = [layer.weight for layer in self.net.modules() if isinstance(layer, nn.Linear)]
        return cost + 0.5 * self.decay * torch.stack([weight.square().sum() for weight in weights]).sum()


def known(f: Tensor | Moments) -> Tensor:
    """Outputs as a tensor; an error for those of noisy inputs, whose evidence would have no closed form.

    Where products round to 16 bits, what is made of them does not: divergences are differences of large numbers.
    """
    if isinstance(f, Moments):
        raise ValueError("this method knows no noise of inputs: leave X_var out, or take a method such as 'bedl'")
    return f.float() if f.dtype in (torch.bfloat16, torch.float16) else f


def one_hot(y: Tensor, like: Tensor) -> Tensor:
    """Classes as rows of 0 and 1. shapes: (n,), (n, C) -> (n, C)"""
    return (torch.arange(like.shape[-1], device=like.device) == y[..., None]).to(like.dtype)


def dirichlet_divergence(a: Tensor, b: Tensor) -> Tensor:
    """KL(Dir(a) ‖ Dir(b)). shapes: (*batch, C), (*batch, C) -> (*batch)"""
    a0, b0 = a.sum(-1), b.sum(-1)
    constants = torch.lgamma(a0) - torch.lgamma(b0) + (torch.lgamma(b) - torch.lgamma(a)).sum(-1)
    return constants + ((a - b) * (torch.digamma(a) - torch.digamma(a0)[..., None])).sum(-1)


def _squared(alpha: Tensor, y: Tensor) -> Tensor:
    strength = alpha.sum(-1, keepdim=True)
    p = alpha / strength
    return ((y - p).square() + p * (1 - p) / (strength + 1)).sum(-1)


def _log(alpha: Tensor, y: Tensor) -> Tensor:
    return (y * (alpha.sum(-1, keepdim=True).log() - alpha.log())).sum(-1)


def _digamma(alpha: Tensor, y: Tensor) -> Tensor:
    return (y * (torch.digamma(alpha.sum(-1, keepdim=True)) - torch.digamma(alpha))).sum(-1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "softplus": F.softplus, "exp": lambda f: f.clamp(max=MOST_LOG_EVIDENCE).exp(),
}  # fmt: skip
LOSSES = {"squared": _squared, "log": _log, "digamma": _digamma}
CLASSES_ONLY = "a Dirichlet is about classes; for real targets take 'evidential-regression'"


@register(
    "edl",
    "evidential deep learning (Sensoy et al. 2018): a plain net gives the evidence of a Dirichlet",
    tasks=("classification",),
    reason=CLASSES_ONLY,
)
def edl(
    problem: Problem,
    evidence: Evidence = "softplus",
    loss: Loss = "squared",
    kl: float = 1.0,
    ramp: float = 10.0,
    decay: float = 0.0,
) -> EDL:
    """See `EDL` for the options."""
    return EDL(plain_network(problem, problem.n_targets), problem.n_targets, evidence, loss, kl, ramp, decay)
