"""From what a Dataset or DataLoader gives to inputs, targets and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bedl.moments import Moments
from bedl.nn.calling import has_parts, map_parts

__all__ = ["Fetched", "Unpack", "rows_of", "unpacked"]

Unpack = Callable[[Any], Any]

TARGETS = ("labels", "label", "targets", "target", "y")
WEIGHTS = ("weights", "weight", "sample_weight")


class Fetched(NamedTuple):
    """Some points: inputs (several in a tuple or a dict), targets, and how much each counts (None: all the same)."""

    x: Any
    y: Tensor
    weight: Tensor | None


def unpacked(item: Any, unpack: Unpack | None = None) -> Fetched:
    """A batch taken apart.

    Args:
        item: (x, y) or (x, y, weight), where x may be several inputs in a tuple or a dict; or a dict that names the
            target ``labels``, ``label``, ``targets``, ``target`` or ``y``, and its weights, if any, ``weights``,
            ``weight`` or ``sample_weight``: all the rest are inputs.
        unpack: makes (x, y) or (x, y, weight) of batches that are put together otherwise.

    Example:
        >>> import torch
        >>> ids, mask, labels = torch.ones(2, 5, dtype=int), torch.ones(2, 5), torch.zeros(2)
        >>> sorted(unpacked({"input_ids": ids, "attention_mask": mask, "labels": labels}).x)
        ['attention_mask', 'input_ids']
    """
    item = item if unpack is None else unpack(item)
    if isinstance(item, Mapping):
        item = _by_name(item)
    if not has_parts(item) or len(item) not in (2, 3):
        count = f" of {len(item)}" if has_parts(item) else ""
        raise TypeError(
            f"batches are pairs (x, y), triples (x, y, weight) or dicts with labels, not {type(item).__name__}{count}; "
            "say how yours are put together: unpack=lambda batch: (x, y) (several inputs: ((x1, x2), y))"
        )
    x, y, weight = (*item, None)[:3]
    return Fetched(_tensors(x), _tensor(y), None if weight is None else _tensor(weight))


def _by_name(item: Mapping[str, Any]) -> tuple[Any, ...]:
    found = [name for name in TARGETS if name in item]
    if len(found) != 1:
        there = ", ".join(map(str, item))
        which = f"has {' and '.join(found)}" if found else f"has none of {', '.join(TARGETS)}"
        raise TypeError(
            f"which entry of a batch ({there}) is the target? It {which}. Say it: unpack=lambda batch: (x, y)"
        )
    weights = [name for name in WEIGHTS if name in item]
    x = {key: value for key, value in item.items() if key not in (*found, *weights)}
    if not x:
        raise TypeError(f"a batch has the target {found[0]} and no inputs")
    only = next(iter(x.values()))
    return (only if len(x) == 1 else x, item[found[0]], *(item[name] for name in weights[:1]))


def _tensors(x: Any) -> Any:
    """Inputs as tensors or Moments; lists, as torch's own collating makes of tuples, as tuples."""
    if isinstance(x, Mapping):
        return {key: _tensors(part) for key, part in x.items()}
    if has_parts(x):
        return tuple(_tensors(part) for part in x)
    return x if isinstance(x, (Tensor, Moments)) or hasattr(x, "_fields") or x is None else _tensor(x)


def _tensor(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x
    try:
        return torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"a batch holds tensors or arrays, not {type(x).__name__}: {error}") from None


def rows_of(points: Fetched, start: int, end: int) -> Fetched:
    """Some of these points."""
    weight = None if points.weight is None else points.weight[start:end]
    return Fetched(map_parts(lambda part: part[start:end], points.x), points.y[start:end], weight)
