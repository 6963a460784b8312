"""The points of many training sets, batch by batch, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bedl.training.data import Points, as_points, global_batches

__all__ = ["ReplicaBatches", "Rows"]


class Rows(NamedTuple):
    """One step's points of all replicas.

    Attributes:
        x: shape (R, B, *input)
        y: shape (R, B) or (R, B, D)
        weight: 1 for points, 0 for padding; None where there is no padding. shape: (R, B)
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
        data: one (x, y) for all replicas, or one each.
        seeds: the order of each replica's points.
        epochs: how often each sees its points.
        batch_size: points per step.
        device: where batches are wanted.
    """

    def __init__(self, data: Any, seeds: Sequence[int], epochs: int, batch_size: int, device: torch.device):
        sets = [as_points(item) for item in data] if isinstance(data, list) else [as_points(data)] * len(seeds)
        if len(sets) != len(seeds):
            raise ValueError(
                f"there are {len(seeds)} replicas and {len(sets)} data sets; give one for all, or one each"
            )
        self.seeds, self.epochs, self.batch_size = list(seeds), epochs, batch_size
        self.sizes = [points.n for points in sets]
        self.x, self.y, self.offsets = _joined(sets, device)
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
            self._orders[replica] = (epoch, [batch + self.offsets[replica] for batch in batches])
        return self._orders[replica][1][position]

    def __getitem__(self, step: int) -> Rows:
        numbers = self.numbers(step)
        counts = [len(row) for row in numbers]
        width = max(counts)
        padded = np.empty((len(numbers), width), dtype=np.int64)
        for r, row in enumerate(numbers):
            padded[r, : len(row)] = row
            padded[r, len(row) :] = row[0] if len(row) else self.offsets[r]
        index = torch.from_numpy(padded).to(self.y.device)
        weight = None
        if min(counts) < width:
            present = torch.arange(width) < torch.tensor(counts)[:, None]
            present[torch.tensor(counts) == 0, 0] = True  # a mean of nothing is not a number; its update is dropped
            weight = present.to(self.y.device, self.x.dtype)
        return Rows(self.x[index], self.y[index], weight, counts)


def _joined(sets: Sequence[Points], device: torch.device) -> tuple[Any, Tensor, list[int]]:
    """All sets in one, each of them once, and where each begins."""
    pairs, starts, offsets, total = [], {}, [], 0
    for points in sets:
        if points.pair is None:
            raise TypeError("replicas are trained on data in memory, (x, y), not on a Dataset")
        key = id(points.pair[0]), id(points.pair[1])
        if key not in starts:
            starts[key] = total
            pairs.append(points.pair)
            total += points.n
        offsets.append(starts[key])
    inputs: list[Any] = [x for x, _ in pairs]
    x = inputs[0] if len(pairs) == 1 else torch.cat(inputs)
    y = pairs[0][1] if len(pairs) == 1 else torch.cat([y for _, y in pairs])
    return x.to(device), y.to(device), offsets
