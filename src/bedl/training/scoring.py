"""What targets count, and how probable a method finds them: with its head's own view of targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bedl.methods import Method

if TYPE_CHECKING:
    from bedl.predictive import Predictive

__all__ = ["as_places", "counted", "log_density", "log_prob_of", "scored"]


def _head(method: Method) -> Any:
    return getattr(method.members[0], "head", None)


def counted(method: Method, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Targets with a stand-in where they are not to count, and how much each counts; see `Head.counted`."""
    head = _head(method)
    return (y, weight) if head is None else head.counted(y, weight)


def log_density(method: Method, x: Any, y: Tensor) -> Tensor:
    """log p(y|x) of points whose targets all count. y: shape (n,), (n, D), (n, *places); result: (n, *places)"""
    prediction, head = method.predict(x), _head(method)
    return log_prob_of(prediction, y if head is None else head.targets_last(y, prediction.mean.ndim))


def scored(method: Method, x: Any, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """log p(y|x) of each point, and how much it counts. shapes: (n, *places)"""
    y, weight = counted(method, y, weight)
    prediction, head = method.predict(x), _head(method)
    y = y if head is None else head.targets_last(y, prediction.mean.ndim)
    prediction.check_targets(y)
    log_p = log_prob_of(prediction, y)
    if weight is None:
        return log_p, torch.ones_like(log_p)
    weight = as_places(weight, log_p)
    return log_p.where(weight > 0, 0.0), weight


def as_places(weight: Tensor, values: Tensor) -> Tensor:
    """Weights of points as those of all places of dense outputs. shapes: (n,), (n, *places) -> (n, *places)"""
    if weight.ndim == values.ndim:
        return weight
    return weight.reshape(weight.shape + (1,) * (values.ndim - weight.ndim)).expand(values.shape)


def log_prob_of(prediction: Predictive, y: Tensor) -> Tensor:
    """log p(y) of each point. y: shape (n,), (n, D), (n, *places); result: (n, *places)"""
    # one target may come without an axis of its own, which log_prob would broadcast
    return prediction.log_prob(y.unsqueeze(-1) if y.is_floating_point() and y.ndim < prediction.mean.ndim else y)
