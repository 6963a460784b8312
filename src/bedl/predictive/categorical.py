"""Predictions of classes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bedl.predictive.base import PaperSplit, Predictive, register
from bedl.predictive.labels import check_class_numbers, check_shares, mean_log_probability

__all__ = ["CategoricalPredictive"]


@dataclasses.dataclass
class CategoricalPredictive(Predictive):
    """Prediction of one of C classes.

    The parts of the uncertainty are in nats, and add up to the entropy of the probabilities.

    Args:
        log_probabilities: of the classes. shape: (*batch, C)
        data: entropy that would be left if the class probabilities lambda were known. shape: (*batch)
        distributional: what the label would tell about lambda, given the network. shape: (*batch)
        vacuity: C / alpha_0, the lack of evidence. shape: (*batch)
        spread: variance of the class probabilities over what the network may be. shape: (*batch, C)

    Example:
        >>> import torch
        >>> from bedl.heads import Dirichlet
        >>> from bedl.moments import Moments
        >>> p = Dirichlet(3)(Moments(torch.tensor([[2.0, 0.0, -1.0]]), 1.0))
        >>> p.probabilities
        tensor([[0.7621, 0.1677, 0.0702]])
        >>> torch.allclose(p.data + p.distributional + p.model, p.entropy)
        True
    """

    log_probabilities: Tensor
    data: Tensor
    distributional: Tensor
    vacuity: Tensor
    spread: Tensor

    task = "classification"
    output_names = (
        *("probabilities", "aleatoric", "epistemic", "entropy"),
        *("expected_entropy", "data", "distributional", "model"),
    )

    @property
    def model(self) -> Tensor:
        """What the label would tell about the network: entropy less the other parts. shape: (*batch)"""
        return (self.entropy - self.data - self.distributional).clamp_min(0.0)

    @property
    def total(self) -> Tensor:
        """The entropy. shape: (*batch)"""
        return self.entropy

    @property
    def expected_entropy(self) -> Tensor:
        """Entropy that would be left if the network were known: data and distributional. shape: (*batch)"""
        return self.data + self.distributional

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

    def paper_split(self) -> PaperSplit:
        return PaperSplit(self.variance - self.spread, self.spread)

    @property
    def label(self) -> Tensor:
        """The most probable class. shape: (*batch)"""
        return self.log_probabilities.argmax(-1)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the class probabilities, in nats; at most log C. shape: (*batch)"""
        return -(self.probabilities * self.log_probabilities.clamp_min(-1e4)).sum(-1)

    def check_targets(self, y: Tensor) -> Tensor:
        if y.is_floating_point() and y.shape[-1:] == self.log_probabilities.shape[-1:] and y.ndim > 1:
            return check_shares(y)
        return check_class_numbers(y, self.log_probabilities.shape[-1])

    def log_prob(self, y: Any) -> Tensor:
        """Log-probability of the classes ``y``; of soft labels, its mean over the classes by their shares.

        y shape: (*batch), integers, or (*batch, C), shares -> (*batch)
        """
        if not isinstance(y, Tensor):  # an array, a list, a column of a frame
            y = torch.from_numpy(np.array(y))
        numbers = self.check_targets(y)
        if numbers.is_floating_point():
            if y.shape != self.log_probabilities.shape:
                shape = tuple(self.log_probabilities.shape)
                raise ValueError(f"soft labels of shape {tuple(y.shape)} do not fit probabilities of shape {shape}")
            return mean_log_probability(self.log_probabilities, numbers.to(self.log_probabilities.dtype))
        batch = self.log_probabilities.shape[:-1]
        if y.shape[y.dim() - len(batch) :] != batch:
            raise ValueError(f"labels of shape {tuple(y.shape)} do not fit predictions for {tuple(batch)} points")
        values = self.log_probabilities.expand(*y.shape, -1)
        return values.gather(-1, numbers.unsqueeze(-1)).squeeze(-1)

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """``n`` labels per point. shape: (n, *batch)"""
        flat = self.probabilities.reshape(-1, self.log_probabilities.shape[-1])
        draws = torch.multinomial(flat, n, replacement=True, generator=generator)
        return draws.T.reshape(n, *self.log_probabilities.shape[:-1])

    def tempered(self, known: float | Tensor, unknown: float | Tensor | None = None) -> CategoricalPredictive:
        """Bolder or more careful, p^(1/t): each part of the uncertainty keeps its share of the entropy.

        Args:
            known: the temperature t where there is evidence; above 1 more careful, below 1 bolder.
                shape: () or (*batch)
            unknown: where there is none; in between 1/t follows the vacuity. None: the same. shape: () or (*batch)

        Example:
            >>> p = CategoricalPredictive(torch.tensor([[0.8, 0.2]]).log(), *torch.zeros(3, 1), torch.zeros(1, 2))
            >>> p.tempered(0.5).probabilities
            tensor([[0.9412, 0.0588]])
        """
        power = 1 / torch.as_tensor(known).to(self.log_probabilities)
        if unknown is not None:
            without = 1 / torch.as_tensor(unknown).to(power)
            power = power + (without - power) * self.vacuity.clamp(0.0, 1.0)
        return self.as_bold_as(torch.log_softmax(self.log_probabilities * power[..., None], -1))

    def as_bold_as(self, log_probabilities: Tensor) -> CategoricalPredictive:
        """Other probabilities, of whose entropy each part keeps its share. log_probabilities: shape (*batch, C)"""
        least = torch.finfo(log_probabilities.dtype).tiny
        other = CategoricalPredictive(log_probabilities, self.data, self.distributional, self.vacuity, self.spread)
        share = other.entropy / self.entropy.clamp_min(least)
        spread = torch.minimum(self.spread / self.variance.clamp_min(least), torch.ones(()).to(self.spread))
        return CategoricalPredictive(
            log_probabilities, self.data * share, self.distributional * share, self.vacuity, spread * other.variance
        )

    def mixed(self) -> CategoricalPredictive:
        log_p = torch.logsumexp(self.log_probabilities, 0) - math.log(len(self.log_probabilities))
        between = self.probabilities.var(0, correction=0)
        bound = (log_p.exp() * -torch.expm1(log_p)).clamp_min(0.0)
        return CategoricalPredictive(
            log_probabilities=log_p,
            data=self.data.mean(0),
            distributional=self.distributional.mean(0),
            vacuity=self.vacuity.mean(0),
            spread=torch.minimum(self.spread.mean(0) + between, bound),  # rounding only
        )

    def _columns(self) -> dict[str, Tensor]:
        names = "label probabilities total aleatoric epistemic data distributional model vacuity"
        return {name: getattr(self, name) for name in names.split()}


register(CategoricalPredictive)
