"""Bayesian evidential deep learning: Gaussian weights, an evidential head, trained by marginal likelihood.

M. Haussmann, S. Gerwinn, M. Kandemir, "Bayesian Evidential Deep Learning with PAC Regularization", AABI 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bedl.moments import Moments
from bedl.nn import refuse_frozen
from bedl.objectives import PAC, Batch, MarginalLikelihood, Objective, Sum

if TYPE_CHECKING:
    from bedl.heads import Head
    from bedl.predictive import Predictive

__all__ = ["BEDL"]

_PAPER = PAC()


class BEDL(nn.Module):
    """A network with Gaussian weights, a head and what is minimised.

    Args:
        net: a tensor or Moments in, Moments of shape (n, head.n_outputs) out.
        head: `Dirichlet` for classes, `Normal` for real targets.
        regularizer: added to the marginal likelihood: `PAC()` as in the paper (BEDL+Reg), `HyperPrior()`
            (BEDL-Hyper), several with ``+``, or None (plain BEDL).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from bedl import GaussianLinear
        >>> from bedl.heads import Dirichlet
        >>> from bedl.methods import BEDL, Batch
        >>> net = nn.Sequential(GaussianLinear(2, 16), nn.ReLU(), GaussianLinear(16, 3))
        >>> method = BEDL(net, Dirichlet(3), regularizer=PAC(strength=0.1))
        >>> x, y = torch.randn(5, 2), torch.tensor([0, 1, 2, 0, 1])
        >>> loss = method.loss(Batch(x, y, n_train=5))
        >>> method.predict(x).mean.shape
        torch.Size([5, 3])
    """

    def __init__(self, net: nn.Module, head: Head, regularizer: Objective | Sum | None = _PAPER):
        super().__init__()
        self.net, self.head = net, head
        self.objective = Sum(MarginalLikelihood()) if regularizer is None else MarginalLikelihood() + regularizer

    def forward(self, x: Tensor | Moments) -> Predictive:
        """The prediction for each point, in the module's present mode and with gradients. x: shape (n, *input)"""
        return self.head(self.net(x))

    def predict(self, x: Tensor | Moments) -> Predictive:
        """The prediction for each point, in evaluation mode and without gradients. x: shape (n, *input)"""
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                return self(x)
        finally:
            self.train(training)

    def loss(self, batch: Batch) -> Tensor:
        """The cost of a batch by itself. shape: ()"""
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            refuse_frozen(self.net, "loss, with gradients")
        return self.combine(self.statistics(self.prepare(batch)), batch.n_train)

    @property
    def additive(self) -> bool:
        """Whether losses of parts of a batch may be averaged; not so under a root."""
        return self.objective.additive

    def prepare(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """Draw what is random about this batch: perturbed copies, if the objective looks at some."""
        return self.objective.prepare(batch, generator)

    def statistics(self, batch: Batch) -> Tensor:
        """What the objective averages over points. shape: (n_terms,)"""
        return self.objective.statistics(self.net, self.head, batch)

    def combine(self, statistics: Tensor, n_train: int | Tensor) -> Tensor:
        """The cost, of the means over all points. statistics: shape (n_terms,); result: shape ()"""
        return self.objective.combine(statistics, n_train)

    def extra_repr(self) -> str:
        return f"objective={self.objective!r}"
