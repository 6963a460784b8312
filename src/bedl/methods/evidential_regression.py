"""Deep evidential regression: a plain network whose outputs are the evidence of a normal-inverse-gamma.

A. Amini, W. Schwarting, A. Soleimany, D. Rus, "Deep Evidential Regression", NeurIPS 2020.

    mu ~ N(gamma, sigma²/nu),  sigma² ~ InvGamma(alpha, beta),  y ~ N(mu, sigma²)
    hence y ~ Student's t(2 alpha; gamma, beta (1 + nu)/(nu alpha))
    loss  −log p(y) + lambda |y − gamma| (2 nu + alpha)

``data`` is E sigma² = beta/(alpha − 1), ``distributional`` is Var mu = beta/(nu (alpha − 1)); they add up to the
variance of the t. The network is a point: nothing is ``model``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl.heads import MeanVariance
from bedl.methods.base import Method
from bedl.methods.edl import known
from bedl.methods.networks import plain_network
from bedl.methods.registry import Problem, register
from bedl.moments import Moments
from bedl.objectives import Batch
from bedl.predictive import StudentPredictive

__all__ = ["EvidentialRegression", "NormalInverseGamma"]

LEAST = 1e-4  # of nu, alpha − 1 and beta: variances stay finite


class NormalInverseGamma(NamedTuple):
    """Parameters of the distribution of a target's mean and variance. shapes: (n, D)"""

    gamma: Tensor
    nu: Tensor
    alpha: Tensor
    beta: Tensor

    def log_prob(self, y: Tensor) -> Tensor:
        """log p(y), mean and variance integrated out, summed over the targets. shape: (n,)"""
        gamma, nu, alpha, beta = self
        omega = 2 * beta * (1 + nu)
        log_p = 0.5 * (nu / math.pi).log() + alpha * omega.log() + torch.lgamma(alpha + 0.5) - torch.lgamma(alpha)
        return (log_p - (alpha + 0.5) * (nu * (y - gamma).square() + omega).log()).sum(-1)


class EvidentialRegression(Method):
    """A network with ordinary weights that gives evidence about each target's mean and variance.

    Args:
        net: a tensor in, outputs of shape (n, 4 D) out: all gamma, then nu, alpha and beta before their softplus.
        n_targets: number of targets D.
        strength: lambda, a factor on the evidence that is spent on wrong predictions; 0.01 in the authors' benchmarks.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> p = EvidentialRegression(nn.Linear(3, 4), 1).predict(torch.zeros(5, 3))
        >>> bool((p.data + p.distributional == p.total).all()), bool((p.df > 2).all())
        (True, True)
    """

    def __init__(self, net: nn.Module, n_targets: int = 1, strength: float = 0.01):
        super().__init__()
        if not strength >= 0:
            raise ValueError(f"strength must be at least 0, not {strength!r}")
        self.net, self.n_targets, self.strength = net, n_targets, strength
        self.targets = MeanVariance(n_targets)  # what checks targets

    def evidence(self, x: Tensor | Moments) -> NormalInverseGamma:
        """What the network says about mean and variance. shapes: (n, D)"""
        gamma, nu, alpha, beta = known(self.net(x)).split(self.n_targets, -1)
        nu, alpha, beta = (F.softplus(part) + LEAST for part in (nu, alpha, beta))
        return NormalInverseGamma(gamma, nu, 1 + alpha, beta)

    def forward(self, x: Tensor | Moments) -> StudentPredictive:
        gamma, nu, alpha, beta = self.evidence(x)
        data = beta / (alpha - 1)
        return StudentPredictive(gamma, data, data / nu, torch.zeros_like(data), 2 * alpha)

    def loss(self, batch: Batch) -> Tensor:
        """The mean of −log p(y) and the wrong evidence. shape: ()"""
        said = self.evidence(batch.x)
        y = self.targets.check_targets(batch.y, said.gamma.shape[:-1])
        wrong = ((y - said.gamma).abs() * (2 * said.nu + said.alpha)).sum(-1)
        return batch.mean(self.strength * wrong - said.log_prob(y))


@register(
    "evidential-regression",
    "deep evidential regression (Amini et al. 2020): a plain net gives a normal-inverse-gamma",
    tasks=("regression",),
    reason="a normal-inverse-gamma is about real targets; for classes take 'edl'",
)
def evidential_regression(problem: Problem, strength: float = 0.01) -> EvidentialRegression:
    """See `EvidentialRegression` for the options."""
    return EvidentialRegression(plain_network(problem, 4 * problem.n_targets), problem.n_targets, strength)
