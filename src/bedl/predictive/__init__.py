"""What a prediction offers: one interface for classes, for real targets, and for mixtures of either.

Units, once and for all: ``std``, ``aleatoric_std`` and ``epistemic_std`` are standard deviations, in the units of the
target; ``variance``, ``aleatoric`` and ``epistemic`` are variances, and ``aleatoric + epistemic == variance``, entry by
entry. Aleatoric is the noise of the data, which more data would not remove; epistemic is what the model does not know.
Every prediction is a pytree of tensors, so `torch.func.vmap`, `torch.compile` and `torch.export` can return it.
"""

from __future__ import annotations

import math
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
    if isinstance(members[0], CategoricalPredictive):
        return _mix_classes(members)  # type: ignore[arg-type]
    if isinstance(members[0], NormalPredictive):
        names = ("mean", "aleatoric", "epistemic")
        return NormalMixturePredictive(*(torch.stack([getattr(m, name) for m in members], -1) for name in names))
    if isinstance(members[0], NormalMixturePredictive):
        names = ("means", "aleatorics", "epistemics")
        return NormalMixturePredictive(*(torch.cat([getattr(m, name) for m in members], -1) for name in names))
    raise TypeError(f"mixture: cannot mix {type(members[0]).__name__}")


def _mix_classes(members: Sequence[CategoricalPredictive]) -> CategoricalPredictive:
    log_p = torch.stack([member.log_probabilities for member in members])
    between = log_p.exp().var(0, correction=0)
    mixed = torch.logsumexp(log_p, 0) - math.log(len(members))
    within = torch.stack([member.epistemic for member in members]).mean(0)
    bound = mixed.exp() * -torch.expm1(mixed)
    return CategoricalPredictive(
        log_probabilities=mixed,
        epistemic=torch.minimum(within + between, bound.clamp_min(0.0)),  # rounding only
        expected_entropy=torch.stack([member.expected_entropy for member in members]).mean(0),
        vacuity=torch.stack([member.vacuity for member in members]).mean(0),
    )
