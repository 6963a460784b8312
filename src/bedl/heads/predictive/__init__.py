"""What a prediction offers: one interface for classes, for real targets, and for mixtures of either.

Three layers of a prediction, three parts of its uncertainty: the target given its distribution lambda (``data``),
lambda given the network's outputs (``distributional``: too little evidence), the outputs given the data (``model``).
They add up to ``total``; ``aleatoric`` is the first of them, what more data would not remove, and ``epistemic`` the
other two, what is not known. Units, once and for all: for real targets the parts are variances, in the units of the
target squared, and names that end in ``_std`` are their roots; for classes they are entropies in nats.
Every prediction is a pytree of tensors, so `torch.func.vmap`, `torch.compile` and `torch.export` can return it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from bedl.heads.predictive.base import PaperSplit, Prediction, Predictive
from bedl.heads.predictive.categorical import CategoricalPredictive
from bedl.heads.predictive.linked import LinkedPredictive, LogitNormalPredictive, LogNormalPredictive
from bedl.heads.predictive.normal import NormalMixturePredictive, NormalPredictive, StudentPredictive

__all__ = [
    "CategoricalPredictive",
    "LinkedPredictive",
    "LogNormalPredictive",
    "LogitNormalPredictive",
    "NormalMixturePredictive",
    "NormalPredictive",
    "PaperSplit",
    "Prediction",
    "Predictive",
    "StudentPredictive",
    "mixture",
]


def mixture(members: Sequence[Predictive]) -> Predictive:
    """The prediction of an ensemble: its members' predictions of the same points, mixed with equal weight.

    Each part is the members' mean; what they disagree about, the variance of their means or the mutual information of
    label and member, comes on top of ``model``.

    Args:
        members: predictions of the same kind and shape, at least one.

    Example:
        >>> import torch
        >>> one = NormalPredictive(*(torch.tensor([[x]]) for x in (0.0, 1.0, 0.5, 0.0)))
        >>> two = NormalPredictive(*(torch.tensor([[x]]) for x in (4.0, 1.0, 0.5, 2.0)))
        >>> p = mixture([one, two])
        >>> p.mean.item(), p.data.item(), p.distributional.item(), p.model.item()
        (2.0, 1.0, 0.5, 5.0)
    """
    members = list(members)
    if not members:
        raise ValueError("mixture: needs at least one prediction")
    first = members[0]  # compared one by one: the sizes of a graph that is being exported have no hash
    if not all(type(member) is type(first) and member.mean.shape == first.mean.shape for member in members):
        found = sorted({f"{type(m).__name__}{tuple(m.mean.shape)}" for m in members})
        raise ValueError(f"mixture: the members must be of one kind and shape, got {', '.join(found)}")
    names = [field.name for field in dataclasses.fields(first)]  # type: ignore[arg-type]
    stacked: Predictive = type(first)(*(torch.stack([getattr(m, name) for m in members]) for name in names))
    return stacked.mixed()
