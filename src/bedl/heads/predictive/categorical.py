"""How class labels are checked, once: for heads, predictions and validation sets."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bedl.heads.predictive.base import PaperSplit, Predictive, register

SHARES = 1e-3  # how far the shares of a soft label may be from adding up to 1


def can_look(y: Tensor) -> bool:
    """Whether values may be read: not while tracing, not inside vmap, not at the price of waiting for a GPU."""
    if torch.compiler.is_compiling() or y.device.type != "cpu":
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(y)


def check_class_numbers(y: Tensor, n_classes: int, whose: str = "") -> Tensor:
    """Class numbers as 64-bit integers; an error that names the remedy if they are none, or beyond the last class.

    Args:
        y: labels. shape: any
        n_classes: how many classes there are.
        whose: words in front of the error.

    Example:
        >>> import torch
        >>> check_class_numbers(torch.tensor([0, 2], dtype=torch.int8), 3)
        tensor([0, 2])
    """
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TypeError(
            f"{whose}class labels must be integers, not {y.dtype}; convert them with y.long(), or give each "
            f"point a row of {n_classes} shares that add up to 1"
        )
    if y.numel() and can_look(y) and not 0 <= int(y.min()) <= int(y.max()) < n_classes:
        low, high = int(y.min()), int(y.max())
        marked = low if low < 0 else high
        remedy = f"; to leave out those of {marked}: ignore_index={marked}" if marked in (-100, -1, 254, 255) else ""
        raise ValueError(f"{whose}class labels must lie between 0 and {n_classes - 1}, got {low} to {high}{remedy}")
    return y.long()


def check_shares(y: Tensor, whose: str = "") -> Tensor:
    """Soft labels, each class's share of a point; an error if they are none. shape: (*batch, C)"""
    if can_look(y) and y.numel():
        sums = y.detach().sum(-1)
        if not bool((y >= 0).all() & ((sums - 1).abs() < SHARES).all()):
            worst = float(sums[(sums - 1).abs() == (sums - 1).abs().max()].flatten()[0])
            raise ValueError(
                f"{whose}soft labels are shares of at least 0 that add up to 1 for each point, not {worst:g}"
            )
    return y


def mean_log_probability(log_p: Tensor, shares: Tensor) -> Tensor:
    """Σ_c shares_c log p_c, a class without a share left out. shapes: (*batch, C) -> (*batch)"""
    return torch.where(shares > 0, shares * log_p, 0.0).sum(-1)


# Predictions of classes.


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

    def marginal(self) -> CategoricalPredictive:
        log_p = torch.logsumexp(self.log_probabilities, 0) - math.log(len(self.log_probabilities))
        zero = torch.zeros_like(self.data[0])
        found = CategoricalPredictive(log_p, self.data.mean(0), zero, self.vacuity.mean(0), self.spread.mean(0))
        found.distributional = (found.entropy - found.data - self.model.mean(0)).clamp_min(0.0)
        return found

    def _columns(self) -> dict[str, Tensor]:
        names = "label probabilities total aleatoric epistemic data distributional model vacuity"
        return {name: getattr(self, name) for name in names.split()}


register(CategoricalPredictive)
