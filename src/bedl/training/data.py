"""Points in an order that can be taken up again: which points make up step s of epoch e follows from the seed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bedl.moments import Moments

__all__ = ["Data", "Points", "as_points", "epoch_order", "global_batches", "share_of", "stream_seed"]

Data = tuple[Any, Any] | Dataset[Any]


class Points:
    """A training set whose points are fetched by their numbers.

    Args:
        data: (x, y) in memory, or a map-style Dataset of (x, y) pairs.
        num_workers: processes that fetch from a Dataset.
        collate: how a Dataset's points become a batch; torch's own way by default.
    """

    def __init__(self, data: Data, num_workers: int = 0, collate: Callable[[list], Any] | None = None):
        self.num_workers, self.collate = num_workers, collate
        self.pair: tuple[Tensor | Moments, Tensor] | None = None
        self.dataset: Dataset[Any] | None = None
        if isinstance(data, DataLoader):
            raise TypeError(
                "training takes the data, not a DataLoader: it has to know the size of the training set, and to take "
                "up an interrupted epoch where it stopped. Pass loader.dataset, and batch_size, num_workers, collate"
            )
        if isinstance(data, Dataset):
            if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
                raise TypeError("training needs a Dataset with a length and points by number, not an iterable one")
            self.dataset, self.n = data, len(data)
        else:
            self.pair = _as_pair(data)
            self.n = len(self.pair[0])
        if self.n == 0:
            raise ValueError("the data set is empty")

    def fetch(self, chunks: Sequence[np.ndarray], seed: int = 0) -> Iterator[tuple[Tensor | Moments, Tensor]]:
        """(x, y) for each chunk of point numbers, in order."""
        if self.pair is not None:
            x, y = self.pair
            inputs: Any = x
            for chunk in chunks:
                index = torch.from_numpy(chunk).to(y.device)
                yield inputs[index], y[index]
            return
        assert self.dataset is not None
        loader = DataLoader(
            self.dataset,
            batch_sampler=[chunk.tolist() for chunk in chunks],
            num_workers=self.num_workers,
            collate_fn=self.collate,
            # else the loader would draw its seed from the global generator, which a resumed run has to find as it was
            generator=torch.Generator().manual_seed(seed),
        )
        for x, y in loader:
            yield x, y


def as_points(data: Data | Points, num_workers: int = 0, collate: Callable[[list], Any] | None = None) -> Points:
    """Data as `Points`; Points as they are."""
    return data if isinstance(data, Points) else Points(data, num_workers, collate)


def _as_pair(data: Any) -> tuple[Tensor | Moments, Tensor]:
    try:
        x, y = data
    except (TypeError, ValueError):
        raise TypeError("data must be a pair (x, y) of tensors or arrays, or a map-style torch Dataset") from None
    x = x if isinstance(x, (Tensor, Moments)) else torch.as_tensor(np.asarray(x))
    y = y if isinstance(y, Tensor) else torch.as_tensor(np.asarray(y))
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} points and y has {len(y)}")
    return x, y


def stream_seed(*numbers: int) -> int:
    """A seed made of several numbers; different numbers give unrelated streams."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def epoch_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """The order in which an epoch visits n points. shape: (n,)"""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch]))).permutation(n)


def global_batches(n: int, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The points of each optimiser step of an epoch, over all processes; the last may be smaller."""
    order = epoch_order(n, seed, epoch)
    return [order[start : start + batch_size] for start in range(0, n, batch_size)]


def share_of(batch: np.ndarray, rank: int, world: int, accumulate: int) -> list[tuple[np.ndarray, int]]:
    """One process's part of a global batch, in up to `accumulate` micro-batches: (points, how many of them count).

    All processes get the same number of micro-batches, because all have to take part in every exchange. Where there are
    too few points, a micro-batch holds one that does not count.

    Example:
        >>> [share_of(np.arange(5), rank, 2, 2) for rank in (0, 1)]
        [[(array([0, 1]), 2), (array([2]), 1)], [(array([3]), 1), (array([4]), 1)]]
        >>> share_of(np.arange(1), 1, 2, 1)
        [(array([0]), 0)]
    """
    mine = np.array_split(batch, world)[rank]
    largest = -(-len(batch) // world)
    chunks = np.array_split(mine, min(accumulate, largest))
    return [(chunk, len(chunk)) if len(chunk) else (batch[:1], 0) for chunk in chunks]
