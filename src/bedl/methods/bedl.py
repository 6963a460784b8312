"""Bayesian evidential deep learning: Gaussian weights, an evidential head, trained by marginal likelihood.

M. Haussmann, S. Gerwinn, M. Kandemir, "Bayesian Evidential Deep Learning with PAC Regularization", AABI 2020.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bedl.heads import Head
from bedl.heads.predictive import Prediction
from bedl.methods.base import Method
from bedl.moments import Moments
from bedl.nn import fused, warn_if_deterministic
from bedl.nn.calling import Output, outputs_of
from bedl.objectives import PAC, Batch, MarginalLikelihood, Objective, Sum
from bedl.objectives.ood_samples import Perturbation, varied

_PAPER = PAC()


class BEDL(Method[Prediction]):
    """A network with Gaussian weights, a head and what is minimised.

    Args:
        net: a tensor or Moments in, Moments of shape (n, head.n_outputs) out. Several inputs are passed as it takes
            them: a tuple by place, a dict by name.
        head: `Dirichlet` for classes, `Normal` for real targets.
        regularizer: added to the marginal likelihood: `PAC()` as in the paper (BEDL+Reg), `HyperPrior()`
            (BEDL-Hyper), several with ``+``, or None (plain BEDL).
        augment: varies the inputs of each batch that it learns from, ``(x, generator) -> x``, without changing what
            they show, such as `bedl.objectives.ood_samples.jittered`. What is predicted for is left as it is.
        output: which of the network's outputs the head reads, if there are several: a name, a number, or a function of
            what the network gives. By default ``logits``, as Hugging Face's models have it, or the only one.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from bedl import GaussianLinear
        >>> from bedl.heads import Dirichlet
        >>> from bedl.methods import BEDL
        >>> net = nn.Sequential(GaussianLinear(2, 16), nn.ReLU(), GaussianLinear(16, 3))
        >>> method = BEDL(net, Dirichlet(3), regularizer=PAC(strength=0.1))
        >>> x, y = torch.randn(5, 2), torch.tensor([0, 1, 2, 0, 1])
        >>> loss = method.loss(x, y, n_train=5)
        >>> method.predict(x).mean.shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        net: nn.Module,
        head: Head[Prediction],
        regularizer: Objective | Sum | None = _PAPER,
        augment: Perturbation | None = None,
        *,
        output: Output = None,
    ):
        super().__init__()
        if not isinstance(net, nn.Module) or isinstance(net, Head) or not isinstance(head, Head):
            kinds = (f"the class {x.__name__}" if isinstance(x, type) else type(x).__name__ for x in (net, head))
            swapped = "; they are the other way round" if isinstance(net, Head) else ""
            raise TypeError(
                f"{type(self).__name__}(net, head) takes a network and a head, such as bedl.Dirichlet(n_classes) or "
                f"bedl.Normal(n_targets), not ({', '.join(kinds)}){swapped}"
            )
        warn_if_deterministic(net, type(self).__name__)
        self.net, self.head, self.augment, self.output = net, head, augment, output
        self.objective = Sum(MarginalLikelihood()) if regularizer is None else MarginalLikelihood() + regularizer

    def forward(self, x: Any) -> Prediction:
        prediction: Prediction = self.head(self.outputs(x))
        return prediction

    def outputs(self, x: Any) -> Moments:
        """What the head reads. x: shape (n, *input), or several; result: shape (n, n_outputs)"""
        if self.output is None:
            at_once = fused.forward(self.net, x)
            if at_once is not None:
                return at_once
        return outputs_of(self.net, x, self.output)

    @property
    def additive(self) -> bool:
        return self.objective.additive

    def prepare(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """Vary the inputs if asked to, and draw perturbed copies if the objective looks at some."""
        if self.augment is not None and batch.perturbed is None:
            batch = batch._replace(x=varied(batch.x, self.augment, generator))
        return self.objective.prepare(batch, generator)

    @property
    def prepares_batched(self) -> bool:
        return self.augment is None and self.objective.prepares_batched

    @property
    def parts(self) -> tuple[nn.Module, Head, Sum] | None:
        names = ("batch_loss", "prepare", "statistics", "combine")
        own = all(getattr(type(self), name) is getattr(BEDL, name) for name in names)
        return (self.net, self.head, self.objective) if own and self.output is None else None

    def statistics(self, batch: Batch) -> Tensor:
        """What the objective averages over points. shape: (n_terms,)"""
        return self.objective.statistics(self.net, self.head, batch, self.output)

    def combine(self, statistics: Tensor, n_train: int | Tensor) -> Tensor:
        return self.objective.combine(statistics, n_train)

    def extra_repr(self) -> str:
        return f"objective={self.objective!r}" + ("" if self.output is None else f", output={self.output!r}")
