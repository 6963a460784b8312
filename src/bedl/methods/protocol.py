"""What a method is to the rest of the package: a loss to take gradients of, and predictions.

Training, estimators and benches know these protocols and no concrete method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from bedl.moments import Moments
from bedl.objectives import Batch

if TYPE_CHECKING:
    from bedl.predictive import Predictive

__all__ = ["Averaged", "Collection", "Method", "SelfFitting"]


@runtime_checkable
class Method(Protocol):
    """Learns by gradient steps on `loss`; an `nn.Module`."""

    def loss(self, batch: Batch) -> Tensor:
        """The mean over the batch of what is to be minimised. shape: ()"""

    def predict(self, x: Tensor | Moments) -> Predictive:
        """The prediction for each point. x: shape (n, *input)"""


@runtime_checkable
class Averaged(Method, Protocol):
    """A method whose loss is a *function* of means over points, such as a root: loss = combine(mean of statistics).

    The mean of such a loss over parts of a batch is not the loss of the batch. A method that offers these three is
    trained exactly all the same, on several processes and with accumulated gradients.
    """

    @property
    def additive(self) -> bool:
        """Whether `combine` only adds up, so that the parts' losses may be averaged after all."""

    def prepare(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """Draw what is random about this batch, so that it can be looked at twice."""

    def statistics(self, batch: Batch) -> Tensor:
        """The means over a batch. shape: (k,)"""

    def combine(self, statistics: Tensor, n_train: int | Tensor) -> Tensor:
        """The loss, of the means over all batches; parameters enter through them alone.

        Args:
            statistics: shape (k,)
            n_train: size of the training set. shape: ()
        """


@runtime_checkable
class SelfFitting(Protocol):
    """Learns in its own way, not by gradient steps on a loss."""

    def fit(self, x: Any, y: Any) -> Any:
        """Learn from all points at once. x: shape (n, *input); y: shape (n,) or (n, D)"""

    def predict(self, x: Tensor | Moments) -> Predictive:
        """The prediction for each point. x: shape (n, *input)"""


@runtime_checkable
class Collection(Protocol):
    """Several methods of the same build that learn independently of each other and predict together."""

    @property
    def members(self) -> Sequence[Method]:
        """The methods."""

    def predict(self, x: Tensor | Moments) -> Predictive:
        """What they predict together. x: shape (n, *input)"""
