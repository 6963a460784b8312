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

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl.heads import Dirichlet, MeanVariance
from bedl.heads.predictive import CategoricalPredictive, StudentPredictive
from bedl.methods.base import Method
from bedl.methods.networks import plain_network
from bedl.methods.registry import Problem, register
from bedl.moments import Moments
from bedl.objectives import Batch
from bedl.objectives.ood_samples import Perturbation, around_and_beyond, takes_batched, with_copies

Evidence = Literal["relu", "softplus", "exp"]
Loss = Literal["squared", "log", "digamma"]
MAX_LOG_EVIDENCE = 10.0  # of exp, as in the authors' code


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

    uses_epoch = True

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

    def batch_loss(self, batch: Batch) -> Tensor:
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
    "relu": F.relu, "softplus": F.softplus, "exp": lambda f: f.clamp(max=MAX_LOG_EVIDENCE).exp(),
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


# Relaxed evidential deep learning: EDL with less weight on its prior, and without its variance term.
#
# M. Chen, J. Gao, C. Xu, "R-EDL: Relaxing Nonessential Settings of Evidential Deep Learning", ICLR 2024.
#
#     alpha = softplus(f) + lambda,  p = alpha / Σ alpha
#     Σ (y − p)²  +  kl · min(1, epoch/10) · KL(Dir((1 − y) softplus(f) + lambda) ‖ Dir(lambda))
#
# lambda = 0.1 in the paper; it is 1 in EDL. The divergence from so peaked a prior is large: the paper has kl = 1, the
# default is 0.1, under which rows held out of training parts of digits were more likely.


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

    def batch_loss(self, batch: Batch) -> Tensor:
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


# Deep evidential regression: a plain network whose outputs are the evidence of a normal-inverse-gamma.
#
# A. Amini, W. Schwarting, A. Soleimany, D. Rus, "Deep Evidential Regression", NeurIPS 2020.
#
#     mu ~ N(gamma, sigma²/nu),  sigma² ~ InvGamma(alpha, beta),  y ~ N(mu, sigma²)
#     hence y ~ Student's t(2 alpha; gamma, beta (1 + nu)/(nu alpha))
#     loss  −log p(y) + lambda |y − gamma| (2 nu + alpha)
#
# ``data`` is E sigma² = beta/(alpha − 1), ``distributional`` is Var mu = beta/(nu (alpha − 1)); they add up to the
# variance of the t. The network is a point: nothing is ``model``.


MIN_PARAMETER = 1e-4  # of nu, alpha − 1 and beta: variances stay finite


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
        nu, alpha, beta = (F.softplus(part) + MIN_PARAMETER for part in (nu, alpha, beta))
        return NormalInverseGamma(gamma, nu, 1 + alpha, beta)

    def forward(self, x: Tensor | Moments) -> StudentPredictive:
        gamma, nu, alpha, beta = self.evidence(x)
        data = beta / (alpha - 1)
        return StudentPredictive(gamma, data, data / nu, torch.zeros_like(data), 2 * alpha)

    def batch_loss(self, batch: Batch) -> Tensor:
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


# Prior networks: a Dirichlet that is told to be sharp on the data and flat off it.
#
# A. Malinin, M. Gales, "Predictive Uncertainty Estimation via Prior Networks", NeurIPS 2018; "Reverse KL-Divergence
# Training of Prior Networks", NeurIPS 2019.
#
#     alpha = exp f
#     data:      KL of Dir(alpha) and Dir(target),  target = 1 + precision for the true class, 1 for the others
#     outside:   KL of Dir(alpha) and Dir(1)
#
# "forward" is KL(target ‖ model), the 2018 paper's; "reverse" is KL(model ‖ target), the 2019 paper's, which has one
# mode where the former spreads. A set of one's own stands for what is outside; without one, perturbed copies of the
# data do. ``data`` and ``distributional`` are the Dirichlet's; nothing is ``model``.


STEEP = 12.0  # log evidence from which on exp goes on as a straight line: targets are far below


class PriorNetwork(Method):
    """A network with ordinary weights and exp evidence, trained by divergences on the data and off it.

    Args:
        net: a tensor in, outputs of shape (n, C) out.
        n_classes: number of classes.
        kl: ``"reverse"`` or ``"forward"``.
        precision: evidence for the true class on the data; 100 in the papers.
        outside: what is not the data: rows like x, of which some are drawn for each batch, shape (m, *input), or a
            function (x, generator) -> x that makes them; None: perturbed copies.
        strength: factor on the divergence of what is outside.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> method = PriorNetwork(nn.Linear(2, 3), 3, outside=torch.randn(50, 2) + 9)
        >>> method.predict(torch.zeros(4, 2)).probabilities.shape
        torch.Size([4, 3])
    """

    def __init__(
        self,
        net: nn.Module,
        n_classes: int,
        kl: Literal["reverse", "forward"] = "reverse",
        precision: float = 100.0,
        outside: Tensor | np.ndarray | Perturbation | None = None,
        strength: float = 1.0,
    ):
        super().__init__()
        if kl not in ("reverse", "forward"):
            raise ValueError(f"kl must be 'reverse' or 'forward', not {kl!r}")
        if not precision > 0 or not strength >= 0:
            raise ValueError(f"precision must be positive and strength at least 0, not {precision!r} and {strength!r}")
        self.net, self.head = net, Dirichlet(n_classes)
        self.kl, self.precision, self.strength = kl, precision, strength
        own = outside is not None and not callable(outside)
        self._rows: Tensor | None = torch.as_tensor(outside) if own else None
        self._perturbation: Any = outside if callable(outside) else None

    def forward(self, x: Tensor | Moments) -> CategoricalPredictive:
        return self.head.given(known(self.net(x)))

    def prepare(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """Draw what is outside, as many rows as there are points."""
        if self._rows is None:
            return with_copies(batch, self._perturbation or self._default(batch.x), generator)
        device = torch.device("cpu") if generator is None else generator.device
        chosen = torch.randint(len(self._rows), (len(batch.x),), generator=generator, device=device)
        x: Any = batch.x
        return batch._replace(perturbed=self._rows[chosen.to(self._rows.device)].to(x.device, x.dtype))

    @staticmethod
    def _default(x: Tensor | Moments) -> Perturbation | None:
        return around_and_beyond if x.ndim == 2 else None

    @property
    def prepares_batched(self) -> bool:
        return self._rows is None and takes_batched(self._perturbation)

    def batch_loss(self, batch: Batch) -> Tensor:
        """The mean divergence on the data and off it. shape: ()"""
        return self.statistics(self.prepare(batch)).sum()

    def statistics(self, batch: Batch) -> Tensor:
        """shape: (1,)"""
        f = known(self.net(batch.x))
        y = one_hot(self.head.check_targets(batch.y, f.shape[:-1]), f)
        inside = self._divergence(f, 1 + self.precision * y)
        off = known(self.net(batch.perturbed))
        outside = self._divergence(off, torch.ones_like(off))
        return batch.mean(inside + self.strength * outside).reshape(1)

    def _divergence(self, f: Tensor, target: Tensor) -> Tensor:
        """shapes: (n, C), (n, C) -> (n,)"""
        alpha = torch.exp(f.clamp(max=STEEP)) * (1 + (f - STEEP).clamp_min(0.0)) + 1e-4
        pair = (alpha, target) if self.kl == "reverse" else (target, alpha)
        return dirichlet_divergence(*pair) / self.precision  # so that gradients are of the size of a likelihood's


@register(
    "prior-network",
    "prior network (Malinin & Gales 2018): a Dirichlet that is sharp on the data and flat off it",
    tasks=("classification",),
    reason=CLASSES_ONLY,
)
def prior_network(
    problem: Problem,
    kl: Literal["reverse", "forward"] = "reverse",
    precision: float = 100.0,
    outside: Tensor | np.ndarray | Perturbation | None = None,
    strength: float = 1.0,
) -> PriorNetwork:
    """See `PriorNetwork` for the options."""
    net = plain_network(problem, problem.n_targets)
    return PriorNetwork(net, problem.n_targets, kl, precision, outside, strength)
