"""The plain network: softmax for classes, a mean and a variance for real targets. Reference for accuracy and cost.

    classes:  −log softmax(f)_y          targets:  −log N(y; f1, exp f2)

D. Nix, A. Weigend, "Estimating the mean and variance of the target probability distribution", ICNN 1994. All
uncertainty is ``data``: a network of point weights cannot say what it does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from bedl.heads import Head, MeanVariance, Softmax
from bedl.methods.base import Method
from bedl.methods.networks import plain_network
from bedl.methods.registry import Problem, register
from bedl.moments import Moments
from bedl.objectives import Batch

if TYPE_CHECKING:
    from bedl.predictive import Predictive

__all__ = ["BOTH", "Deterministic", "plain_head"]

BOTH = ("regression", "classification")


class Deterministic(Method):
    """A network with ordinary weights, trained by maximum likelihood.

    Args:
        net: a tensor in, outputs of shape (n, head.n_outputs) out. Inputs that are Moments go through it as such.
        head: `Softmax` or `MeanVariance`.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from bedl.heads import MeanVariance
        >>> method = Deterministic(nn.Linear(3, 2), MeanVariance(1))
        >>> method.predict(torch.zeros(5, 3)).model.sum().item()
        0.0
    """

    def __init__(self, net: nn.Module, head: Head):
        super().__init__()
        self.net, self.head = net, head

    def forward(self, x: Tensor | Moments) -> Predictive:
        return self.head(self.net(x))

    def loss(self, batch: Batch) -> Tensor:
        """−mean log p(y | x). shape: ()"""
        return -batch.mean(self.head.log_marginal(self.net(batch.x), batch.y))


def plain_head(problem: Problem, **options: Any) -> Head:
    """The head of an ordinary network: `Softmax`, or `MeanVariance` with these options."""
    if problem.task == "classification":
        return Softmax(problem.n_targets)
    return MeanVariance(problem.n_targets, **options)


@register("deterministic", "the plain network: softmax, or a mean and a variance", tasks=BOTH)
def deterministic(problem: Problem) -> Deterministic:
    """Layers of ordinary weights, trained by maximum likelihood."""
    head = plain_head(problem)
    return Deterministic(plain_network(problem, head.n_outputs), head)
