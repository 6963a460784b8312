"""Classification without evidence: the outputs are the logits of the class probabilities, and nothing lies between."""

from __future__ import annotations

import torch
from torch import Tensor

from bedl.heads.base import Head
from bedl.heads.dirichlet import Dirichlet
from bedl.moments import Moments
from bedl.predictive import CategoricalPredictive

__all__ = ["Softmax"]


class Softmax(Head):
    """Head for C classes of an ordinary network: y ~ Cat(softmax f), where f may be f ~ N(loc, variance).

    p(y = c | x) = E[softmax(f)_c], by the race of `Dirichlet`. There is no distribution between the outputs and the
    label that could be unknown: ``distributional`` is 0, ``data`` is the entropy that is left once f is known, and what
    the label would tell about f is ``model``.

    Args:
        n_classes: number of classes, at least 2.

    Example:
        >>> import torch
        >>> from bedl.moments import Moments
        >>> p = Softmax(2)(Moments(torch.zeros(1, 2), torch.tensor([[4.0, 4.0]])))
        >>> p.probabilities
        tensor([[0.5000, 0.5000]])
        >>> bool(p.data + p.model == p.entropy), bool(p.model > 0.1), p.distributional.item()
        (True, True, 0.0)
    """

    task = "classification"

    def __init__(self, n_classes: int):
        super().__init__()
        self.race = Dirichlet(n_classes)

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """One network output per class."""
        return self.race.n_classes

    def forward(self, f: Moments | Tensor) -> CategoricalPredictive:
        """The prediction. f shape: (*batch, C)"""
        if isinstance(f, Tensor):  # known logits need no integral
            self.check_outputs(f)
            return self.given(f)
        p = self.race(f)
        return _without_evidence(p.log_probabilities, p.data + p.distributional, p.spread)

    def log_marginal(self, f: Moments | Tensor, y: Tensor) -> Tensor:
        """log E[softmax(f)_y] per point. f shape: (*batch, C), y shape: (*batch), integers -> (*batch)"""
        return self.forward(f).log_prob(y) if isinstance(f, Tensor) else self.race.log_marginal(f, y)

    def given(self, f: Tensor) -> CategoricalPredictive:
        log_p = torch.log_softmax(f, -1)
        return _without_evidence(log_p, -(log_p.exp() * log_p.clamp_min(-1e4)).sum(-1), torch.zeros_like(log_p))

    def check_targets(self, y: Tensor, batch: torch.Size) -> Tensor:
        return self.race.check_targets(y, batch)

    def extra_repr(self) -> str:
        return f"n_classes={self.n_outputs}"


def _without_evidence(log_p: Tensor, data: Tensor, spread: Tensor) -> CategoricalPredictive:
    """All that is known about lambda is f: no vacuity, nothing distributional. shapes: (*batch, C), (*batch)"""
    zero = torch.zeros_like(data)
    return CategoricalPredictive(log_p, data, zero, zero, spread)
