"""Points in an order that can be taken up again: which points make up step s of epoch e follows from the seed alone."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from bedl.moments import Moments, variance_dtype

__all__ = [
    "Data", "Fetched", "Points", "Source", "as_points", "cast", "epoch_order", "global_batches", "share_of",
    "stream_seed", "warn_of_targets",
]  # fmt: skip

LOOKED_AT = 10_000  # targets, to see where they lie

Data = tuple[Any, Any] | tuple[Any, Any, Any] | Dataset[Any]


class Fetched(NamedTuple):
    """Some points: inputs, targets, and how much each counts (None: all the same)."""

    x: Tensor | Moments
    y: Tensor
    weight: Tensor | None


@runtime_checkable
class Source(Protocol):
    """Inputs that are not a tensor but are fetched by number, such as a table on disk."""

    def __len__(self) -> int: ...

    def fetch_rows(self, numbers: np.ndarray) -> Tensor | Moments:
        """The inputs with these numbers, in this order. shape: (len(numbers), *input)"""


class Points:
    """A training set whose points are fetched by their numbers.

    Arrays are kept as they are and copied batch by batch, so a memory-mapped one is never read as a whole. A point in
    memory whose weight is 0 is left out altogether.

    Args:
        data: (x, y) or (x, y, weight) of tensors or arrays, or a map-style Dataset of such tuples. `x` may also be
            Moments, or a `Source`.
        num_workers: processes that fetch from a Dataset.
        collate: how a Dataset's points become a batch; torch's own way by default.

    Attributes:
        n: how many points there are.
        n_train: the N of the objectives, the number of points unless it is set; weights do not change it.

    Example:
        >>> points = Points((np.arange(8.0).reshape(4, 2), np.arange(4.0))).subset(np.array([3, 1]))
        >>> points.n, next(points.fetch([np.array([0])])).y
        (2, tensor([3.], dtype=torch.float64))
    """

    def __init__(self, data: Data, num_workers: int = 0, collate: Callable[[list], Any] | None = None):
        self.num_workers, self.collate = num_workers, collate
        self.x: Any = None
        self.y: Any = None
        self.weight: Any = None
        self.dataset: Dataset[Any] | None = None
        self.index: np.ndarray | None = None  # which points, where they are not all
        self._n_train: float | None = None
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
            self.x, self.y, self.weight = _in_memory(data)
            self.n = len(self.y)
            if self.weight is not None and not bool((self.weight > 0).all()):
                self.index = np.flatnonzero(np.asarray(self.weight > 0))
                self.n = len(self.index)
                if self.n == 0:
                    raise ValueError("all points have weight 0")
        if self.n == 0:
            raise ValueError("the data set is empty")

    @property
    def n_train(self) -> Any:
        return self.n if self._n_train is None else self._n_train

    @n_train.setter
    def n_train(self, value: float) -> None:
        self._n_train = value

    def subset(self, numbers: np.ndarray) -> Points:
        """Some of these points, by number and without copying them."""
        if len(numbers) == 0:
            raise ValueError("a subset has at least one point")
        part = copy.copy(self)
        part.index = np.asarray(numbers) if self.index is None else self.index[numbers]
        part.n = len(part.index)
        return part

    def fetch(self, chunks: Sequence[np.ndarray], seed: int = 0) -> Iterator[Fetched]:
        """The points of each chunk of point numbers, in order."""
        if self.index is not None:
            chunks = [self.index[chunk] for chunk in chunks]
        if self.dataset is None:
            for chunk in chunks:
                weight = None if self.weight is None else _rows(self.weight, chunk)
                yield Fetched(_rows(self.x, chunk), _rows(self.y, chunk), weight)
            return
        loader = DataLoader(
            self.dataset,
            batch_sampler=[chunk.tolist() for chunk in chunks],
            num_workers=self.num_workers,
            collate_fn=self.collate,
            # else the loader would draw its seed from the global generator, which a resumed run has to find as it was
            generator=torch.Generator().manual_seed(seed),
        )
        for item in loader:
            if not isinstance(item, (tuple, list)) or len(item) not in (2, 3):
                raise TypeError(f"a Dataset's points are pairs (x, y) or (x, y, weight), not {type(item).__name__}")
            yield Fetched(item[0], item[1], item[2] if len(item) == 3 else None)

    def whole(self) -> tuple[Any, Tensor, Any]:
        """All that `index` chooses from, in memory; tensors are not copied."""
        if self.dataset is not None:
            raise TypeError("replicas are trained on data in memory, (x, y), not on a Dataset")
        everything = np.arange(len(self.y))
        parts: list[Any] = [self.x, self.y, self.weight]
        loaded: list[Any] = [
            p if p is None or isinstance(p, (Tensor, Moments)) else _rows(p, everything) for p in parts
        ]
        return loaded[0], loaded[1], loaded[2]


def as_points(data: Data | Points, num_workers: int = 0, collate: Callable[[list], Any] | None = None) -> Points:
    """Data as `Points`; Points as they are."""
    return data if isinstance(data, Points) else Points(data, num_workers, collate)


def warn_of_targets(method: Any, points: Points) -> None:
    """Warns of targets that the method's head can hardly learn as they are; those of a Dataset are not looked at."""
    head: Any = getattr(method, "head", None)
    if not hasattr(head, "doubts") or points.y is None:
        return
    chosen = np.arange(points.n)[:: max(1, points.n // LOOKED_AT)]
    doubt = head.doubts(_rows(points.y, chosen if points.index is None else points.index[chosen]))
    if doubt is not None:
        warnings.warn(doubt, stacklevel=3)


def cast(x: Any, y: Tensor, weight: Tensor | None, method: nn.Module) -> Fetched:
    """Points in the precision of a method's parameters: NumPy's numbers are double, most networks are not."""
    dtype = next((p.dtype for p in method.parameters() if p.is_floating_point()), torch.float32)
    wide = variance_dtype(dtype)  # of targets and weights: they are compared and added up
    x = x.to(dtype) if isinstance(x, (Tensor, Moments)) and x.is_floating_point() and x.dtype != dtype else x
    y = y.to(wide) if y.is_floating_point() and y.dtype != wide else y
    return Fetched(x, y, None if weight is None else weight.to(wide))


def _rows(values: Any, numbers: np.ndarray) -> Any:
    """Some rows of a tensor, Moments, an array or a `Source`, as a tensor or Moments."""
    if isinstance(values, (Tensor, Moments)):
        return values[torch.from_numpy(numbers).to(values.device)]  # type: ignore[index]
    return torch.from_numpy(values[numbers]) if isinstance(values, np.ndarray) else values.fetch_rows(numbers)


def _in_memory(data: Any) -> tuple[Any, Any, Any]:
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise TypeError(
            "data must be a pair (x, y) of tensors or arrays, a triple (x, y, weight), or a map-style torch Dataset"
        )
    x, y, *more = data
    x, y = _as_rows(x, "x"), _as_rows(y, "y")
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} points and y has {len(y)}")
    return x, y, _weights(more[0], len(y)) if more and more[0] is not None else None


def _as_rows(values: Any, name: str) -> Any:
    if isinstance(values, (Tensor, Moments, Source)):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} holds {array.dtype}, not numbers; encode it first (classes as integers 0, 1, …), or use "
            "bedl.estimators, which do it for you"
        )
    return array


def _weights(values: Any, n: int) -> Any:
    """shape: (n,)"""
    weight = values if isinstance(values, Tensor) else torch.as_tensor(np.array(values, dtype=float))
    if weight.shape != (n,):
        raise ValueError(f"weights of shape {tuple(weight.shape)} do not fit {n} points, shape ({n},)")
    if not bool((weight.isfinite() & (weight >= 0)).all()):
        raise ValueError("weights must be finite numbers and at least 0")
    return weight if weight.is_floating_point() else weight.float()


def stream_seed(*numbers: int) -> int:
    """A seed made of several numbers; different numbers give unrelated streams."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def epoch_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """The order in which an epoch visits n points. shape: (n,)"""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch]))).permutation(n)


def global_batches(n: int, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The points of each optimiser step of an epoch, over all processes; the last may be smaller.

    Where the last would be a single point, of which batch normalisation knows no variance, the one before gives it one
    more.

    Example:
        >>> [len(batch) for batch in global_batches(9, 4, seed=0, epoch=0)]
        [4, 3, 2]
    """
    order = epoch_order(n, seed, epoch)
    ends = [*range(batch_size, n, batch_size), n]
    if batch_size > 2 and len(ends) > 1 and n % batch_size == 1:
        ends[-2] -= 1
    return np.split(order, ends[:-1])


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
