"""What each step of many networks is fed with: points, and what is drawn for them, some steps at a time."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from bedl.methods import Batch
from bedl.nn.calling import map_parts
from bedl.training.data import stream_seed
from bedl.training.replica_data import ReplicaBatches, Rows

__all__ = ["Feed", "Preparation"]

STEPS = 32  # that are fetched together
LARGEST = 2**21  # numbers in their inputs, at most


class Feed:
    """Points and prepared batches of a run, step by step; made for some steps at once where nothing speaks against it.

    Draws for steps k·K to (k + 1)·K − 1 follow from the seeds and k alone, so that a run may be taken up at any step.

    Args:
        batches: the points.
        draw: what is drawn for them.
    """

    def __init__(self, batches: ReplicaBatches, draw: Preparation):
        self.batches, self.draw = batches, draw
        self.steps = 1
        if draw.together:
            width = len(batches.seeds) * batches.batch_size * batches.joined.x[0].numel()
            self.steps = max(1, min(STEPS, LARGEST // max(width, 1)))
        self.kept: dict[int, tuple[Rows, Batch]] = {}

    def __getitem__(self, step: int) -> tuple[Rows, Batch]:
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
                self.kept[step] = Rows(x, y, weight, counts), batch


class Preparation:
    """Batches for all replicas, with what each method draws for its own, from a generator of its own.

    Methods that can draw for many at once do so, from one generator: in Python, that is most of a step's time.
    """

    def __init__(self, methods: Sequence[Any], seeds: Sequence[int]):
        self.methods = methods
        # the stream that `fit` gives a single process with this seed
        self.generators = [torch.Generator().manual_seed(stream_seed(seed, 0)) for seed in seeds]
        self.draws = True
        self.together = all(method.prepares_many for method in methods)

    def __call__(self, rows: Rows, sizes: Sequence[Any], generator: torch.Generator | None = None) -> Batch:
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

    Each copy counts as the point in its place, so that copies of padding do not count."""
    most = max(map(len, copies))
    return torch.stack([own[torch.arange(most, device=own.device) % len(own)] for own in copies])


def _first(replica: int, count: int, part: Any) -> Any:
    return part[replica, :count]
