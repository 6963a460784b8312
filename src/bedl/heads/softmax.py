"""Classification without evidence: the outputs are the logits of the class probabilities, and nothing lies between."""

from __future__ import annotations

from collections.abc import Sequence

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
        dim, ignore_index, class_weight, label_smoothing: as in `Dirichlet`, and in PyTorch's cross-entropy.

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

    def __init__(
        self,
        n_classes: int,
        *,
        dim: int = -1,
        ignore_index: int | None = None,
        class_weight: Tensor | Sequence[float] | None = None,
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        self.dim = dim
        self.race = Dirichlet(
            n_classes, dim=dim, ignore_index=ignore_index, class_weight=class_weight, label_smoothing=label_smoothing
        )

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """One network output per class."""
        return self.race.n_classes

    def forward(self, f: Moments | Tensor) -> CategoricalPredictive:
        """The prediction. f shape: (*batch, C)"""
        if isinstance(f, Tensor):  # known logits need no integral
            return self.given(self.check_outputs(f)[0])
        p = self.race(f)
        return _without_evidence(p.log_probabilities, p.data + p.distributional, p.spread)

    def log_marginal(self, f: Moments | Tensor, y: Tensor) -> Tensor:
        """log E[softmax(f)_y] per point; of soft and smoothed labels the mean over classes, by their shares.

        f shape: (*batch, C), y shape: (*batch), integers, or (*batch, C), shares -> (*batch)
        """
        if isinstance(f, Moments):
            return self.race.log_marginal(f, y)
        p = self.forward(f)
        return p.log_prob(self.race.smoothed(self.check_targets(y, p.log_probabilities.shape[:-1])))

    def given(self, f: Tensor) -> CategoricalPredictive:
        log_p = torch.log_softmax(f, -1)
        return _without_evidence(log_p, -(log_p.exp() * log_p.clamp_min(-1e4)).sum(-1), torch.zeros_like(log_p))

    def check_targets(self, y: Tensor, batch: torch.Size) -> Tensor:
        return self.race.check_targets(y, batch)

    def counted(self, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.race.counted(y, weight)

    def extra_repr(self) -> str:
        return self.race.extra_repr()


def _without_evidence(log_p: Tensor, data: Tensor, spread: Tensor) -> CategoricalPredictive:
    """All that is known about lambda is f: no vacuity, nothing distributional. shapes: (*batch, C), (*batch)"""
    zero = torch.zeros_like(data)
    return CategoricalPredictive(log_p, data, zero, zero, spread)
