"""Predictions of classes."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from bedl.predictive.base import Predictive, register

__all__ = ["CategoricalPredictive"]


@dataclasses.dataclass
class CategoricalPredictive(Predictive):
    """Prediction of one of C classes.

    Args:
        log_probabilities: shape: (*batch, C)
        epistemic: variance of the class probabilities over what the model does not know. shape: (*batch, C)
        expected_entropy: expected entropy of the class probabilities, in nats. shape: (*batch)
        vacuity: C / alpha_0, the lack of evidence. shape: (*batch)

    Example:
        >>> import torch
        >>> from bedl.heads import Dirichlet
        >>> from bedl.moments import Moments
        >>> p = Dirichlet(3)(Moments(torch.tensor([[2.0, 0.0, -1.0]]), 1.0))
        >>> p.probabilities
        tensor([[0.7621, 0.1677, 0.0702]])
        >>> torch.allclose(p.aleatoric + p.epistemic, p.probabilities * (1 - p.probabilities))
        True
    """

    log_probabilities: Tensor
    epistemic: Tensor
    expected_entropy: Tensor
    vacuity: Tensor

    task = "classification"
    output_names = ("probabilities", "aleatoric", "epistemic", "entropy", "expected_entropy")

    @property
    def probabilities(self) -> Tensor:
        """shape: (*batch, C)"""
        return self.log_probabilities.exp()

    @property
    def mean(self) -> Tensor:
        """Mean of the one-hot label: the probabilities. shape: (*batch, C)"""
        return self.probabilities

    @property
    def variance(self) -> Tensor:
        """Variance p (1 - p) of the one-hot label. shape: (*batch, C)"""
        return self.probabilities * -torch.expm1(self.log_probabilities)

    @property
    def aleatoric(self) -> Tensor:
        """E[softmax (1 - softmax)], a variance per class. shape: (*batch, C)"""
        return self.variance - self.epistemic

    @property
    def label(self) -> Tensor:
        """The most probable class. shape: (*batch)"""
        return self.log_probabilities.argmax(-1)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the class probabilities, in nats; at most log C. shape: (*batch)"""
        return -(self.probabilities * self.log_probabilities.clamp_min(-1e4)).sum(-1)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log-probability of the classes ``y``. y shape: (*batch), integers -> (*batch)"""
        if y.is_floating_point() or y.dtype == torch.bool:
            raise TypeError(f"class labels must be integers, not {y.dtype}; convert them with y.long()")
        batch = self.log_probabilities.shape[:-1]
        if y.shape[y.dim() - len(batch) :] != batch:
            raise ValueError(f"labels of shape {tuple(y.shape)} do not fit predictions for {tuple(batch)} points")
        values = self.log_probabilities.expand(*y.shape, -1)
        return values.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """``n`` labels per point. shape: (n, *batch)"""
        flat = self.probabilities.reshape(-1, self.log_probabilities.shape[-1])
        draws = torch.multinomial(flat, n, replacement=True, generator=generator)
        return draws.T.reshape(n, *self.log_probabilities.shape[:-1])

    def mixed(self) -> CategoricalPredictive:
        log_p = torch.logsumexp(self.log_probabilities, 0) - math.log(len(self.log_probabilities))
        between = self.probabilities.var(0, correction=0)
        bound = (log_p.exp() * -torch.expm1(log_p)).clamp_min(0.0)
        return CategoricalPredictive(
            log_probabilities=log_p,
            epistemic=torch.minimum(self.epistemic.mean(0) + between, bound),  # rounding only
            expected_entropy=self.expected_entropy.mean(0),
            vacuity=self.vacuity.mean(0),
        )

    def _columns(self) -> dict[str, Tensor]:
        names = "label probabilities aleatoric epistemic entropy expected_entropy mutual_information vacuity"
        return {name: getattr(self, name) for name in names.split()}


register(CategoricalPredictive)
