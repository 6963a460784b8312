"""Choosing among values: bounds that differ from entry to entry, the largest k, an order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bedl.dispatch import refusal
from bedl.moments import Moments
from bedl.rules import activation
from bedl.rules._marks import approximate
from bedl.rules.activation import rectified

_ORDER = "the order of the means decides; each value keeps its own moments"


def clamp(input: Moments, min: Any = None, max: Any = None) -> Moments:
    """`torch.clamp` with numbers or plain tensors as bounds; exact."""
    if not isinstance(input, Moments) or isinstance(min, Moments) or isinstance(max, Moments):
        raise refusal(torch.clamp, "its bounds are random; torch.maximum and torch.minimum take random operands")
    if not isinstance(min, Tensor) and not isinstance(max, Tensor):
        return activation.clamp(input, min, max)
    if max is None:
        return activation.maximum(input, min)
    if min is None:
        return activation.minimum(input, max)
    low, high = (torch.as_tensor(t, dtype=input.variance.dtype, device=input.device) for t in (min, max))
    return _between(input, low, high)


def _between(input: Moments, low: Tensor, high: Tensor) -> Moments:
    """The interval is moved to [0, 1] and back. Well inside it, what is cut off, added to m, keeps m's digits."""
    m, v, width = input.loc.to(low.dtype), input.variance, high - low
    unit = torch.where(width > 0, width, 1.0)
    moved = activation.hardtanh(Moments((m - low) / unit, v / unit.square()), 0.0, 1.0)
    inside = (m >= low) & (m <= high) & (v <= 0.25 * width.square())
    cut_off = rectified(low - m, v)[0] - rectified(m - high, v)[0]
    mean = torch.where(inside, m + cut_off, low + unit * moved.loc)
    # torch takes the upper bound where the two cross
    mean = torch.where((v != 0) & (width > 0), mean, torch.minimum(torch.maximum(m, low), high))
    return Moments(mean.to(input.dtype), torch.where(width > 0, unit.square() * moved.variance, 0.0))


def _picked(input: Moments, dim: int, indices: Tensor) -> Moments:
    return Moments(input.loc.gather(dim, indices), input.variance.gather(dim, indices))


@approximate(_ORDER)
def topk(input: Moments, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    indices = torch.topk(input.loc, k, dim, largest, sorted).indices
    return torch.return_types.topk((_picked(input, dim, indices), indices))  # type: ignore[arg-type]


@approximate(_ORDER)
def sort(input: Moments, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Any:
    indices = torch.sort(input.loc, dim=dim, descending=descending, stable=stable).indices
    return torch.return_types.sort((_picked(input, dim, indices), indices))  # type: ignore[arg-type]


@approximate("the order of the means, a plain tensor")
def argsort(input: Moments, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Tensor:
    return torch.sort(input.loc, dim=dim, descending=descending, stable=stable).indices
