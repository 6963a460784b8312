"""The marginal likelihood: what BEDL maximises."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch import Tensor

from bedl.objectives.base import ForwardPass, Objective

__all__ = ["MarginalLikelihood"]


@dataclasses.dataclass(frozen=True)
class MarginalLikelihood(Objective):
    """−mean log p(y_n | x_n), weights and evidence integrated out ("type 2 maximum likelihood").

    Every point has weights of its own, so the marginal likelihood of a set is a product over its points and the mean
    over a mini-batch is an unbiased estimate.

    Example:
        >>> import torch
        >>> from bedl import GaussianLinear
        >>> from bedl.heads import Dirichlet
        >>> from bedl.objectives import Batch
        >>> net, head = GaussianLinear(2, 3), Dirichlet(3)
        >>> batch = Batch(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), n_train=4)
        >>> MarginalLikelihood()(net, head, batch)  # an untrained bias of 0: log 3
        tensor(1.0986, grad_fn=...)
    """

    reads_outputs_only: ClassVar[bool] = True

    def statistic(self, forward: ForwardPass) -> Tensor:
        return -forward.batch.mean(forward.log_marginal())
