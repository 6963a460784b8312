"""Deterministic variational inference, diagonal: moments propagated inside the evidence lower bound.

    minimise  −(1/N) Σ_n E_f log p(y_n | f(x_n)) + (1/N) KL(q(w) ‖ p(w))

q is a normal with independent weights. The engine carries means and variances of the activations through the network,
the expected log-likelihood is closed or expanded (`bedl.heads.plain`), and the prior's variances are learned with a
hyperprior (`bedl.objectives.EmpiricalPrior`): nothing is sampled. All weights are shared by all points, as opposed to
BEDL, which maximises log E_f p(y|f) for weights that each point has for itself.

A. Wu, S. Nowozin, E. Meeds, R. Turner, J. M. Hernández-Lobato, A. Gaunt, "Deterministic Variational Inference for
Robust Bayesian Neural Networks", ICLR 2019. Here covariances between activations are left out (their "dDVI"), and
biases are point parameters.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from bedl.heads import ExpectedMeanVariance, ExpectedSoftmax
from bedl.methods.bedl import BEDL
from bedl.methods.networks import gaussian_network
from bedl.methods.registry import Problem, Training, register
from bedl.nn import GaussianLayer
from bedl.objectives import EmpiricalPrior, ExpectedLikelihood, Objective, Sum


class DVI(BEDL):
    """A network with Gaussian weights, trained by an evidence lower bound without sampling.

    Args:
        net: a tensor or Moments in, Moments of shape (n, head.n_outputs) out.
        head: `ExpectedMeanVariance` or `ExpectedSoftmax`.
        prior: the divergence of the weights from their prior.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from bedl import GaussianLinear
        >>> from bedl.heads import ExpectedMeanVariance
        >>> net = nn.Sequential(GaussianLinear(2, 16), nn.ReLU(), GaussianLinear(16, 2))
        >>> method = DVI(net, ExpectedMeanVariance(1))
        >>> loss = method.loss(torch.randn(5, 2), torch.randn(5), n_train=5)
        >>> method.predict(torch.randn(5, 2)).mean.shape
        torch.Size([5, 1])
    """

    uses_epoch = True

    def __init__(self, net: nn.Module, head: ExpectedMeanVariance | ExpectedSoftmax, prior: Objective | None = None):
        super().__init__(net, head, regularizer=None)
        self.objective = Sum(ExpectedLikelihood(), EmpiricalPrior() if prior is None else prior)


def training(n: int) -> Training:
    """Some thousand steps, no early stopping: the divergence is what holds the network back."""
    batch_size = min(n, 32 if n < 3000 else 128)
    steps = 4000 if n < 3000 else 10_000
    return Training(epochs=max(1, round(steps * batch_size / n)), batch_size=batch_size, lr=0.01, early_stopping=False)


@register(
    "dvi",
    "deterministic variational inference, diagonal (Wu et al. 2019)",
    tasks=("regression", "classification"),
    training=training,
)
def dvi(
    problem: Problem,
    noise: Literal["varying", "shared"] = "varying",
    softmax: Literal["delta", "samples"] = "delta",
    samples: int = 5,
    prior_variance: float | None = None,
    alpha: float = 1.0,
    beta: float = 10.0,
    ramp: float = 0.0,
) -> DVI:
    """Wu et al. 2019, with the paper's one hidden layer of 50 units on tables.

    Args:
        noise: of real targets: of its own at each point, or one for all.
        softmax: how the expected log-likelihood of classes is found: expanded, or by `samples`.
        samples: draws for each point.
        prior_variance: of the weights; None: learned for each layer, with an inverse gamma hyperprior.
        alpha: shape of the hyperprior.
        beta: its scale.
        ramp: epochs in which the divergence rises to its full weight, as the authors have it; 0: full from the start.
    """
    head: ExpectedMeanVariance | ExpectedSoftmax
    if problem.task == "regression":
        head = ExpectedMeanVariance(problem.n_targets, noise)
    else:
        head = ExpectedSoftmax(problem.n_targets, softmax, samples)
    net = gaussian_network(problem, head.n_outputs)
    _start_small(net)
    return DVI(net, head, EmpiricalPrior(alpha=alpha, beta=beta, variance=prior_variance, ramp=ramp))


def _start_small(net: nn.Module) -> None:
    """Last outputs near 0: a log variance drawn at random would begin with a noise that explains everything."""
    last = [layer for layer in net.modules() if isinstance(layer, GaussianLayer)][-1]
    with torch.no_grad():
        last.weight_mean.mul_(0.1)  # type: ignore[operator]
