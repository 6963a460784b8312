"""From what a Dataset or DataLoader gives to inputs, targets and weights."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from bedl.moments import Moments, variance_dtype
from bedl.nn.calling import has_parts, map_parts

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
            "say how yours are put together: TrainingData(data, unpack=lambda batch: (x, y)), or ((x1, x2), y)"
        )
    x, y, weight = (*item, None)[:3]
    return Fetched(_tensors(x), _tensor(y), None if weight is None else _tensor(weight))


def _by_name(item: Mapping[str, Any]) -> tuple[Any, ...]:
    found = [name for name in TARGETS if name in item]
    if len(found) != 1:
        there = ", ".join(map(str, item))
        which = f"has {' and '.join(found)}" if found else f"has none of {', '.join(TARGETS)}"
        raise TypeError(
            f"which entry of a batch ({there}) is the target? It {which}. Say it: "
            "TrainingData(data, unpack=lambda batch: (x, y))"
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


# Points in an order that can be taken up again: which points make up step s of epoch e follows from the seed alone.


LOOKED_AT = 10_000  # targets, to see where they lie

Data = tuple[Any, Any] | tuple[Any, Any, Any] | Dataset[Any] | Iterable[Any]


class DataCursor(NamedTuple):
    """Where a run stands in the data, and which part of them is this process's."""

    batch_size: int
    seed: int
    epoch: int
    batch: int = 0
    rank: int = 0
    world: int = 1
    accumulate: int = 1


class StepShard(NamedTuple):
    """What one process has to do in a step: micro-batches, each with the number of points that count."""

    micro_batches: Iterable[tuple[Fetched, int]]
    n_points: int  # of all processes
    last: bool  # in its epoch


@runtime_checkable
class RowSource(Protocol):
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
            Moments, or a `RowSource`, or several of these in a tuple or a dict.
        num_workers: processes that fetch from a Dataset.
        collate: how a Dataset's points become a batch; torch's own way by default.
        unpack: how a Dataset's batch is put together, see `bedl.training.data`.

    Attributes:
        n: how many points there are.
        scaled: whether targets are known to lie where a head expects them.
        n_train: the N of the objectives, the number of points unless it is set; weights do not change it.

    Example:
        >>> points = Points((np.arange(8.0).reshape(4, 2), np.arange(4.0))).subset(np.array([3, 1]))
        >>> points.n, next(points.fetch([np.array([0])])).y
        (2, tensor([3.], dtype=torch.float64))
    """

    batch_size: int | None = None  # where the data decide

    scaled: bool = False

    def __init__(
        self,
        data: Data,
        num_workers: int = 0,
        collate: Callable[[list], Any] | None = None,
        unpack: Unpack | None = None,
    ):
        self.num_workers, self.collate, self.unpack = num_workers, collate, unpack
        self.options: dict[str, Any] = {}  # of the DataLoader
        self.x: Any = None
        self.y: Any = None
        self.weight: Any = None
        self.dataset: Dataset[Any] | None = None
        self.index: np.ndarray | None = None  # which points, where they are not all
        self._n_train: float | None = None
        if isinstance(data, Dataset):
            if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
                raise TypeError(
                    "a Dataset without a length or points by number goes into a DataLoader, which makes batches of it: "
                    "fit(method, TrainingData(DataLoader(data, batch_size=…), n_train=…))"
                )
            self.dataset, self.n = data, len(data)
        else:
            self.x, self.y, self.weight = _in_memory(data)
            self.n = len(self.y)
            if self.weight is not None and not bool((counts := _any_place(self.weight > 0)).all()):
                self.index = np.flatnonzero(np.asarray(counts))
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

    # -- an epoch ---------------------------------------------------------------------------------
    def steps(self, batch_size: int) -> int:
        """How many batches an epoch has."""
        return -(-self.n // batch_size)

    def batches(self, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
        """The numbers of the points in each batch of an epoch."""
        return global_batches(self.n, batch_size, seed, epoch)

    def shards(self, place: DataCursor) -> Iterator[StepShard]:
        """What is left of an epoch, for one process."""
        batches = self.batches(place.batch_size, place.seed, place.epoch)[place.batch :]
        shards = [shard_of(batch, place.rank, place.world, place.accumulate) for batch in batches]
        chunks = [chunk for share in shards for chunk, _ in share]
        fetched = self.fetch(chunks, stream_seed(place.seed, place.epoch, place.batch))
        for number, (batch, share) in enumerate(zip(batches, shards, strict=True), 1):
            yield StepShard([(next(fetched), count) for _, count in share], len(batch), number == len(batches))

    def everything(self, rank: int, world: int, chunk: int) -> Iterator[Fetched]:
        """All points of one process's part, so many at a time."""
        numbers = np.arange(self.n)[rank::world]
        return self.fetch([numbers[i : i + chunk] for i in range(0, len(numbers), chunk)])

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
            **self.options,
            # else the loader would draw its seed from the global generator, which a resumed run has to find as it was
            generator=torch.Generator().manual_seed(seed),
        )
        for item in loader:
            yield unpacked(item, self.unpack)

    def whole(self) -> tuple[Any, Tensor, Any]:
        """All that `index` chooses from, in memory; tensors are not copied."""
        if self.y is None:
            raise TypeError("replicas are trained on data in memory, (x, y), not on a Dataset or DataLoader")
        everything = np.arange(len(self.y))
        parts: list[Any] = [self.x, self.y, self.weight]
        loaded: list[Any] = [
            p if p is None or isinstance(p, (Tensor, Moments)) else _rows(p, everything) for p in parts
        ]
        return loaded[0], loaded[1], loaded[2]


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """Data, and how to read them where they do not say it themselves.

    Args:
        data: as for `fit`.
        num_workers, collate: for a Dataset, as in torch's DataLoader; a validation set beside it is read alike.
        unpack: makes (x, y) or (x, y, weight) of a batch of a Dataset or DataLoader that is put together otherwise; a
            dict with ``labels`` is understood, see `unpacked`.
        n_train: the N of the objectives, the number of points by default; a loader over an IterableDataset needs it.

    Example:
        >>> as_points(TrainingData((torch.zeros(4, 2), torch.zeros(4)), n_train=100)).n_train
        100
    """

    data: Any
    num_workers: int = 0
    collate: Callable[[list], Any] | None = None
    unpack: Unpack | None = None
    n_train: float | None = None


def as_points(data: Data | TrainingData | Points) -> Points:
    """Data as `Points`; Points as they are."""
    how = data if isinstance(data, TrainingData) else TrainingData(data)
    if isinstance(how.data, Points):
        points = how.data
    elif isinstance(how.data, (tuple, list, Dataset, Tensor, np.ndarray)) or not hasattr(how.data, "__iter__"):
        points = Points(how.data, how.num_workers, how.collate, how.unpack)
    else:
        from bedl.training.loaders import points_of_loader  # which is made of Points

        if how.num_workers or how.collate is not None:
            raise TypeError("a DataLoader has its own num_workers and collate_fn: leave out num_workers and collate")
        points = points_of_loader(how.data, how.n_train, how.unpack)
    if how.n_train is not None:
        points.n_train = how.n_train
    return points


def as_validation(data: Data | TrainingData, beside: Any) -> Points:
    """Points that are only scored, read like those to train on: their number needs not be known."""
    if not isinstance(data, TrainingData):
        data = TrainingData(data) if not isinstance(beside, TrainingData) else dataclasses.replace(beside, data=data)
    if isinstance(data.data, (tuple, list, Dataset, Points)):
        return as_points(dataclasses.replace(data, n_train=None))
    from bedl.training.loaders import validation_of_loader  # which is made of Points

    return validation_of_loader(data.data, data.unpack)


def warn_of_targets(method: Any, points: Points) -> None:
    """Warns of targets that the method's head can hardly learn as they are; those of a Dataset are not looked at."""
    head: Any = getattr(method, "head", None)
    if points.scaled or not hasattr(head, "scaling_warning") or points.y is None:
        return
    chosen = np.arange(points.n)[:: max(1, points.n // LOOKED_AT)]
    doubt = head.scaling_warning(_rows(points.y, chosen if points.index is None else points.index[chosen]))
    if doubt is not None:
        warnings.warn(doubt, stacklevel=3)


def cast(x: Any, y: Tensor, weight: Tensor | None, method: nn.Module) -> Fetched:
    """Points in the precision of a method's parameters: NumPy's numbers are double, most networks are not."""
    dtype = next((p.dtype for p in method.parameters() if p.is_floating_point()), torch.float32)
    wide = variance_dtype(dtype)  # of targets and weights: they are compared and added up
    x = map_parts(lambda part: part.to(dtype) if part.is_floating_point() and part.dtype != dtype else part, x)
    y = y.to(wide) if y.is_floating_point() and y.dtype != wide else y
    return Fetched(x, y, None if weight is None else weight.to(wide))


def _rows(values: Any, numbers: np.ndarray) -> Any:
    """Some rows of a tensor, Moments, an array or a `RowSource`, as a tensor or Moments; or of several of them."""
    if isinstance(values, Mapping):
        return {name: _rows(part, numbers) for name, part in values.items()}
    if isinstance(values, tuple):
        return tuple(_rows(part, numbers) for part in values)
    if isinstance(values, (Tensor, Moments)):
        return values[torch.from_numpy(numbers).to(values.device)]
    return torch.from_numpy(values[numbers]) if isinstance(values, np.ndarray) else values.fetch_rows(numbers)


def _in_memory(data: Any) -> tuple[Any, Any, Any]:
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise TypeError(
            "data must be a pair (x, y) of tensors or arrays, a triple (x, y, weight), or a map-style torch Dataset"
        )
    x, y, *more = data
    parts = x if isinstance(x, Mapping) else dict(enumerate(x)) if _is_several(x) else {"": x}
    x = {name: _as_rows(part, f"x[{name!r}]" if len(parts) > 1 else "x") for name, part in parts.items()}
    y = _as_rows(y, "y")
    for name, part in x.items():
        if len(part) != len(y):
            raise ValueError(f"x{f'[{name!r}]' if len(parts) > 1 else ''} has {len(part)} points and y has {len(y)}")
    x = x if isinstance(data[0], Mapping) else tuple(x.values()) if _is_several(data[0]) else x[""]
    return x, y, _weights(more[0], len(y)) if more and more[0] is not None else None


def _is_several(x: Any) -> bool:
    """Whether these are several inputs: a tuple of tensors or arrays. A list is rows of numbers."""
    return isinstance(x, tuple) and bool(x) and all(isinstance(p, (Tensor, Moments, np.ndarray, RowSource)) for p in x)


def _any_place(counts: Tensor) -> Tensor:
    """Whether a point counts anywhere. shape: (n, *places) -> (n,)"""
    return counts.flatten(1).any(1) if counts.ndim > 1 else counts


def _as_rows(values: Any, name: str) -> Any:
    if isinstance(values, (Tensor, Moments, RowSource)):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} holds {array.dtype}, not numbers; encode it first (classes as integers 0, 1, …), or use "
            "bedl.estimators, which do it for you"
        )
    return array


def _weights(values: Any, n: int) -> Any:
    """shape: (n,), or (n, *places)"""
    weight = values if isinstance(values, Tensor) else torch.as_tensor(np.array(values, dtype=float))
    if weight.shape[:1] != (n,):
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


def shard_of(batch: np.ndarray, rank: int, world: int, accumulate: int) -> list[tuple[np.ndarray, int]]:
    """One process's part of a global batch, in up to `accumulate` micro-batches: (points, how many of them count).

    All processes get the same number of micro-batches, because all have to take part in every exchange. Where there are
    too few points, a micro-batch holds one that does not count.

    Example:
        >>> [shard_of(np.arange(5), rank, 2, 2) for rank in (0, 1)]
        [[(array([0, 1]), 2), (array([2]), 1)], [(array([3]), 1), (array([4]), 1)]]
        >>> shard_of(np.arange(1), 1, 2, 1)
        [(array([0]), 0)]
    """
    mine = np.array_split(batch, world)[rank]
    largest = -(-len(batch) // world)
    chunks = np.array_split(mine, min(accumulate, largest))
    return [(chunk, len(chunk)) if len(chunk) else (batch[:1], 0) for chunk in chunks]
