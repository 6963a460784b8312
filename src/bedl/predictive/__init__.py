"""What a prediction offers: one interface for classes, for real targets, and for mixtures of either.

Units, once and for all: ``std``, ``aleatoric_std`` and ``epistemic_std`` are standard deviations, in the units of the
target; ``variance``, ``aleatoric`` and ``epistemic`` are variances, and ``aleatoric + epistemic == variance``, entry by
entry. Aleatoric is the noise of the data, which more data would not remove; epistemic is what the model does not know.
Every prediction is a pytree of tensors, so `torch.func.vmap`, `torch.compile` and `torch.export` can return it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from bedl.predictive.base import Predictive
from bedl.predictive.categorical import CategoricalPredictive
from bedl.predictive.normal import NormalMixturePredictive, NormalPredictive

__all__ = ["CategoricalPredictive", "NormalMixturePredictive", "NormalPredictive", "Predictive", "mixture"]


def mixture(members: Sequence[Predictive]) -> Predictive:
    """The prediction of an ensemble: its members' predictions of the same points, mixed with equal weight.

    Law of total variance: aleatoric is the members' mean, epistemic the members' mean plus the variance of their means.

    Args:
        members: predictions of the same kind and shape, at least one.

    Example:
        >>> import torch
        >>> one = NormalPredictive(torch.tensor([[0.0]]), torch.tensor([[1.0]]), torch.tensor([[0.0]]))
        >>> two = NormalPredictive(torch.tensor([[4.0]]), torch.tensor([[1.0]]), torch.tensor([[2.0]]))
        >>> p = mixture([one, two])
        >>> p.mean.item(), p.aleatoric.item(), p.epistemic.item()
        (2.0, 1.0, 5.0)
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
