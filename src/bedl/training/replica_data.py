"""The points of many training sets, batch by batch, side by side."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bedl.nn.calling import join_parts, map_parts
from bedl.training.data import as_points, cast, global_batches

__all__ = ["Joined", "ReplicaBatches", "Rows"]


class Rows(NamedTuple):
    """One step's points of all replicas.

    Attributes:
        x: shape (R, B, *input)
        y: shape (R, B) or (R, B, D)
        weight: how much points count, 0 for padding; None where all count the same. shape: (R, B)
        counts: how many points are no padding; 0 for a replica that has finished.
    """

    x: Any
    y: Tensor
    weight: Tensor | None
    counts: list[int]


class ReplicaBatches:
    """Each replica's own batches, in the order in which `fit` with the same seed would see them.

    Training sets may differ in size: a short last batch is padded with points of weight 0, and a replica that has
    seen its epochs waits for the others.

    Args:
        data: one (x, y) or (x, y, weight) for all replicas, or one each.
        seeds: the order of each replica's points.
        epochs: how often each sees its points.
        batch_size: points per step.
        device: where batches are wanted.
        method: whose precision is wanted; that of the data by default.
    """

    def __init__(
        self, data: Any, seeds: Sequence[int], epochs: int, batch_size: int, device: torch.device, method: Any = None
    ):
        self.joined = Joined(data, len(seeds), device, method)
        self.seeds, self.epochs, self.batch_size = list(seeds), epochs, batch_size
        self.sizes, self.n_train = self.joined.sizes, self.joined.n_train
        self.per_epoch = [-(-n // batch_size) for n in self.sizes]
        self.totals = [epochs * count for count in self.per_epoch]
        self._orders: list[tuple[int, list[np.ndarray]]] = [(-1, [])] * len(seeds)

    def __len__(self) -> int:
        return max(self.totals)

    def numbers(self, step: int) -> list[np.ndarray]:
        """Each replica's point numbers at a step, none if it has finished."""
        return [self._numbers(r, step) for r in range(len(self.seeds))]

    def _numbers(self, replica: int, step: int) -> np.ndarray:
        epoch, position = divmod(step, self.per_epoch[replica])
        if epoch >= self.epochs:
            return np.empty(0, dtype=np.int64)
        if self._orders[replica][0] != epoch:
            batches = global_batches(self.sizes[replica], self.batch_size, self.seeds[replica], epoch)
            self._orders[replica] = (epoch, [self.joined.places[replica][batch] for batch in batches])
        return self._orders[replica][1][position]

    def __getitem__(self, step: int) -> Rows:
        return self.joined.rows(self.numbers(step))

    def some(self, steps: Iterable[int]) -> list[tuple[list[int], Rows]]:
        """Several steps at once: which ones are equally wide, and theirs stacked. shapes: (steps, R, B, *)"""
        numbers = {step: self.numbers(step) for step in steps}
        groups: dict[int, list[int]] = {}
        for step, own in numbers.items():
            groups.setdefault(max(map(len, own)), []).append(step)
        found = []
        for group in groups.values():
            rows = self.joined.rows([own for step in group for own in numbers[step]])
            form = (len(group), len(self.seeds))
            x, y, weight = (None if part is None else part.unflatten(0, form) for part in rows[:3])
            found.append((group, Rows(x, y, weight, rows.counts)))  # type: ignore[arg-type]
        return found


class Joined:
    """The points of all replicas in memory, each set once, and where each replica's own are.

    Args:
        data: one set for all replicas, or a list with one each.
        count: how many replicas there are.
        device: where points are wanted.
        method: whose precision is wanted; that of the data by default.

    Attributes:
        places: each replica's points, as rows of `x`. shapes: (n_r,)
        sizes: how many each has.
        n_train: the N of each replica's objective.
    """

    def __init__(self, data: Any, count: int, device: torch.device, method: Any = None):
        sets = [as_points(item) for item in data] if isinstance(data, list) else [as_points(data)] * count
        if len(sets) != count:
            raise ValueError(f"there are {count} replicas and {len(sets)} data sets; give one for all, or one each")
        self.sizes, self.n_train = [points.n for points in sets], [points.n_train for points in sets]
        self.places: list[np.ndarray] = []
        parts: list[tuple[Any, Tensor, Tensor | None]] = []
        starts: dict[tuple[int, int, int], int] = {}
        total = 0
        for points in sets:
            key = id(points.x), id(points.y), id(points.weight)
            if key not in starts:
                whole = points.whole()
                parts.append(whole if method is None else cast(*whole, method))
                starts[key], total = total, total + len(whole[1])
            own = np.arange(points.n) if points.index is None else points.index
            self.places.append(own + starts[key])
        inputs, targets, weights = zip(*parts, strict=True)
        self.x: Any = map_parts(lambda part: part.to(device), functools.reduce(join_parts, inputs))
        self.y = (targets[0] if len(parts) == 1 else torch.cat(targets)).to(device)
        self.weight = _joined_weights(weights, targets, device)

    def rows(self, numbers: Sequence[np.ndarray]) -> Rows:
        """Rows of `x` for each replica, or for each several times, padded to the same number."""
        counts = [len(row) for row in numbers]
        width = max(counts)
        if min(counts) == width:
            padded = np.stack(numbers)
        else:
            padded = np.empty((len(numbers), width), dtype=np.int64)
            for r, row in enumerate(numbers):
                padded[r, : len(row)] = row
                padded[r, len(row) :] = row[0] if len(row) else self.places[r % len(self.places)][0]
        index = torch.from_numpy(padded).to(self.y.device)
        weight = None if self.weight is None else self.weight[index]
        if min(counts) < width:
            present = torch.arange(width) < torch.tensor(counts)[:, None]
            present[torch.tensor(counts) == 0, 0] = True  # a mean of nothing is not a number; its update is dropped
            present = present.to(self.y.device, torch.float32 if weight is None else weight.dtype)
            weight = present if weight is None else weight * present.reshape(present.shape + (1,) * (weight.ndim - 2))
        return Rows(map_parts(lambda part: part[index], self.x), self.y[index], weight, counts)


def _joined_weights(weights: Sequence[Tensor | None], targets: Sequence[Tensor], device: torch.device) -> Tensor | None:
    """shape: (total,), or None where no set has weights"""
    if all(weight is None for weight in weights):
        return None
    like = next(weight for weight in weights if weight is not None)
    filled = [
        torch.ones((len(y), *like.shape[1:]), dtype=like.dtype, device=like.device) if w is None else w
        for w, y in zip(weights, targets, strict=True)
    ]
    return torch.cat(filled).to(device)
