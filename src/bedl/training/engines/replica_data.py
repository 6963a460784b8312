"""What many networks are fed with: the points of many training sets, side by side, and what is drawn for them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bedl.methods import Batch
from bedl.nn.calling import join_parts, map_parts
from bedl.training.data import as_points, cast, global_batches, stream_seed


class ReplicaBatch(NamedTuple):
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

    def __getitem__(self, step: int) -> ReplicaBatch:
        return self.joined.rows(self.numbers(step))

    def some(self, steps: Iterable[int]) -> list[tuple[list[int], ReplicaBatch]]:
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
            found.append((group, ReplicaBatch(x, y, weight, rows.counts)))  # type: ignore[arg-type]
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

    def rows(self, numbers: Sequence[np.ndarray]) -> ReplicaBatch:
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
        return ReplicaBatch(map_parts(lambda part: part[index], self.x), self.y[index], weight, counts)


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


# What each step of many networks is fed with: points, and what is drawn for them, some steps at a time.


PREFETCHED_STEPS = 32  # that are fetched together
MAX_PREFETCHED_NUMEL = 2**21  # numbers in their inputs, at most


class BatchPrefetcher:
    """Points and prepared batches of a run, step by step; made for some steps at once where nothing speaks against it.

    Draws for steps k·K to (k + 1)·K − 1 follow from the seeds and k alone, so that a run may be taken up at any step.

    Args:
        batches: the points.
        draw: what is drawn for them.
    """

    def __init__(self, batches: ReplicaBatches, draw: BatchPreparation):
        self.batches, self.draw = batches, draw
        self.steps = 1
        if draw.together:
            width = len(batches.seeds) * batches.batch_size * batches.joined.x[0].numel()
            self.steps = max(1, min(PREFETCHED_STEPS, MAX_PREFETCHED_NUMEL // max(width, 1)))
        self.kept: dict[int, tuple[ReplicaBatch, Batch]] = {}

    def __getitem__(self, step: int) -> tuple[ReplicaBatch, Batch]:
        if self.steps == 1:
            rows = self.batches[step]
            return rows, self.draw(rows, self.batches.n_train)
        if step not in self.kept:
            self._fetch(step // self.steps)
        return self.kept[step]

    def _fetch(self, number: int) -> None:
        """Some steps' points, those of the same width in one go."""
        first, self.kept = number * self.steps, {}
        fetched = self.batches.some(range(first, min(first + self.steps, len(self.batches))))
        generator = torch.Generator().manual_seed(stream_seed(*self.batches.seeds, number))
        replicas = len(self.batches.seeds)
        for steps, rows in fetched:
            whole = self.draw(rows, self.batches.n_train, generator)
            for i, step in enumerate(steps):
                parts: list[Any] = [whole.x, whole.y, whole.weight, whole.perturbed]
                own: list[Any] = [None if part is None else part[i] for part in parts]
                x, y, weight, perturbed = own
                batch = Batch(x, y, whole.n_train, weight, perturbed)
                counts = rows.counts[i * replicas : (i + 1) * replicas]
                self.kept[step] = ReplicaBatch(x, y, weight, counts), batch


class BatchPreparation:
    """Batches for all replicas, with what each method draws for its own, from a generator of its own.

    Methods that can draw for many at once do so, from one generator: in Python, that is most of a step's time.
    """

    def __init__(self, methods: Sequence[Any], seeds: Sequence[int]):
        self.methods = methods
        # the stream that `fit` gives a single process with this seed
        self.generators = [torch.Generator().manual_seed(stream_seed(seed, 0)) for seed in seeds]
        self.draws = True
        self.together = all(method.prepares_batched for method in methods)

    def __call__(self, rows: ReplicaBatch, sizes: Sequence[Any], generator: torch.Generator | None = None) -> Batch:
        """shapes: as in Batch, with R replicas in front, or steps and replicas; n_train: shape (R,)"""
        n_train = torch.tensor(sizes, dtype=torch.float32, device=rows.y.device)
        batch = Batch(rows.x, rows.y, n_train, rows.weight)
        if not self.draws:
            return batch
        if self.together:
            return self.methods[0].prepare(batch, generator or self.generators[0])
        inputs, copies = [], []
        for r, (method, generator) in enumerate(zip(self.methods, self.generators, strict=True)):
            count = rows.counts[r] or 1
            x = map_parts(functools.partial(_first, r, count), rows.x)
            own = Batch(x, rows.y[r, :count], sizes[r])
            prepared = method.prepare(own, generator)
            if prepared is own:
                self.draws = False  # nothing is drawn in these objectives
                return batch
            padding = rows.x[r, count:]
            inputs.append(torch.cat([prepared.x, padding]))
            if prepared.perturbed is not None:
                copies.append(prepared.perturbed)
        return batch._replace(x=torch.stack(inputs), perturbed=_evened(copies) if copies else None)


def _evened(copies: Sequence[Any]) -> Any:
    """As many copies for each replica: one that has fewer points has some twice. shapes: (k, *input) -> (R, k, *input)

    Each copy counts as the point in its place, so that copies of padding do not count.
    """
    most = max(map(len, copies))
    return torch.stack([own[torch.arange(most, device=own.device) % len(own)] for own in copies])


def _first(replica: int, count: int, part: Any) -> Any:
    return part[replica, :count]
