"""DataLoaders and streams of batches: what they give, in the order they give it, and where that can be taken up again.

A loader over a Dataset with numbers says by its sampler which points make up a batch, without reading them: an
interrupted epoch goes on where it stopped. Any other loader is read from the start of the epoch, and what was seen
before is passed over; whether it gives the same batches again is its own affair.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from bedl.training import checkpoint
from bedl.training.data import DataCursor, Fetched, Points, StepShard, Unpack, rows_of, stream_seed, unpacked

logger = logging.getLogger("bedl")
CPU = torch.device("cpu")  # where data are drawn


def points_of_loader(loader: Any, n_train: float | None = None, unpack: Unpack | None = None) -> Points:
    """A DataLoader, or another iterable of batches, as points to train on.

    Args:
        loader: it. An iterator would be used up after one epoch: pass what makes it.
        n_train: the N of the objectives; needed where the loader does not know it.
        unpack: how a batch is put together, see `bedl.training.data`.
    """
    if isinstance(loader, Iterator):
        raise TypeError("an iterator is used up after one epoch; pass what makes it, such as the DataLoader itself")
    if isinstance(loader, IterableDataset):
        raise TypeError(
            "put an IterableDataset into a DataLoader, which makes batches of it: DataLoader(data, batch_size)"
        )
    if _is_numbered(loader):
        return LoaderPoints(loader, n_train, unpack)
    return Stream(loader, n_train, unpack)


def validation_of_loader(loader: Any, unpack: Unpack | None = None) -> Points:
    """The same to be scored on, where the number of points does not matter."""
    numbered = _is_numbered(loader) or _known_size(loader) is not None
    points = points_of_loader(loader, None if numbered else 1, unpack)
    if isinstance(points, Stream):
        points.stated = False  # to its end
    return points


def _is_numbered(loader: Any) -> bool:
    """Whether batches are lists of numbers first, and only then read."""
    return (
        isinstance(loader, DataLoader)
        and type(loader).__iter__ is DataLoader.__iter__
        and not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
        and hasattr(loader.batch_sampler, "__len__")
    )


class LoaderPoints(Points):
    """The points of a DataLoader over a Dataset with numbers, in the order of its sampler.

    The sampler draws from generators that are seeded with (seed, epoch). One that keeps a state of its own, a generator
    say, is asked for the epochs before when a run is taken up: the order is the same if it starts as it did then. Where
    an epoch's last batch would be a single point, of which batch normalisation knows no variance, the one before gives
    it one more.
    """

    def __init__(self, loader: DataLoader[Any], n_train: float | None = None, unpack: Unpack | None = None):
        sampler: Any = loader.sampler
        if getattr(sampler, "num_replicas", 1) > 1:
            raise TypeError(
                "fit spreads each batch over the processes itself: pass a loader without DistributedSampler, whose "
                "batch_size is that of all processes together"
            )
        self.loader, self.epochs_asked = loader, 0
        super().__init__(_Keyed(loader.dataset), loader.num_workers, loader.collate_fn, unpack)
        self.dataset = loader.dataset  # anything with keys and a length, for torch
        names = ("pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor")
        self.options = {name: getattr(loader, name) for name in names}
        self.n_train = _training_size(loader) if n_train is None else n_train
        self.batch_size = loader.batch_size or -(-self.n // max(1, len(loader)))

    def steps(self, batch_size: int) -> int:
        return len(self.loader.batch_sampler)  # type: ignore[arg-type]

    def batches(self, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
        while self.epochs_asked < epoch:  # a sampler with a state of its own has to come to where it was
            self._asked(seed, self.epochs_asked)
        return self._asked(seed, epoch)

    def _asked(self, seed: int, epoch: int) -> list[np.ndarray]:
        samplers: list[Any] = [self.loader.sampler, self.loader.batch_sampler]
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        with _drawing(stream_seed(seed, epoch)):
            found = [_numbers(batch) for batch in self.loader.batch_sampler]  # type: ignore[union-attr]
        self.epochs_asked = epoch + 1
        if not found:
            raise ValueError("the DataLoader gives no batches; with drop_last=True it needs at least batch_size points")
        if len(found) > 1 and len(found[-1]) == 1 and len(found[-2]) > 2:  # as `global_batches` does
            found[-2:] = [found[-2][:-1], np.concatenate([found[-2][-1:], found[-1]])]
        return found

    def everything(self, rank: int, world: int, chunk: int) -> Iterator[Fetched]:
        return self.fetch(self.batches(0, 0, 0)[rank::world])


class _Keyed(Dataset[Any]):
    """A data set for a look at its length alone; torch also takes lists for data sets."""

    def __init__(self, data: Any):
        self.data = data

    def __getitem__(self, key: Any) -> Any:
        return self.data[key]

    def __len__(self) -> int:
        return len(self.data)


def _training_size(loader: DataLoader[Any]) -> int:
    """How many points a loader draws from: all of the Dataset, or those of a sampler that is for a part of it."""
    sampler: Any = loader.sampler
    whole = len(loader.dataset)  # type: ignore[arg-type]
    if hasattr(sampler, "indices"):
        return len(sampler.indices)
    drawn = isinstance(sampler, (torch.utils.data.RandomSampler, torch.utils.data.WeightedRandomSampler))
    own = isinstance(sampler, Sampler) and hasattr(sampler, "__len__") and not drawn
    return min(whole, len(sampler)) if own else whole


def _numbers(batch: Any) -> np.ndarray:
    """What a sampler gives for a batch: numbers, or other keys of points."""
    batch = list(batch)
    if all(isinstance(key, (int, np.integer)) for key in batch):
        return np.asarray(batch, dtype=np.int64)
    keys = np.empty(len(batch), dtype=object)
    keys[:] = batch
    return keys


class Stream(Points):
    """Batches that can only be read one after the other: an IterableDataset, or any iterable that can be begun anew.

    What it draws comes from generators seeded with (seed, epoch), apart from those of the training.
    """

    def __init__(self, loader: Any, n_train: float | None = None, unpack: Unpack | None = None):
        self.loader, self.unpack = loader, unpack
        self.x = self.y = self.weight = self.dataset = self.index = None  # nothing is in memory
        self.stated = n_train is not None
        size = _known_size(loader) if n_train is None else n_train
        if size is None:
            raise ValueError(
                "how many points the training set has is part of the objective, and this loader does not say: pass "
                "fit(method, TrainingData(loader, n_train=…), …)"
            )
        self.n_train, self.n = size, int(size)
        self.batch_size = getattr(loader, "batch_size", None) or _first_size(loader, unpack)

    def steps(self, batch_size: int) -> int:
        if hasattr(self.loader, "__len__") and not self.stated:
            try:
                return len(self.loader)
            except TypeError:
                pass
        return max(1, -(-self.n // batch_size))

    def shards(self, place: DataCursor) -> Iterator[StepShard]:
        if place.world > 1:
            raise ValueError(
                "a stream of batches is read by one process: use devices=1, or a DataLoader over a Dataset with numbers"
            )
        batches = self._read(place.seed, place.epoch)
        if place.batch:
            logger.warning(
                "the run goes on in the middle of an epoch of a loader that can only be read from the start: %d "
                "batches are passed over, and it is the same run only if the loader gives the same batches again",
                place.batch,
            )
            for _ in itertools.islice(batches, place.batch):
                pass
        following = next(batches, None)
        while following is not None:
            points, following = following, next(batches, None)
            n = len(points.y)
            cuts = np.linspace(0, n, min(place.accumulate, n) + 1).astype(int)
            parts = [rows_of(points, a, b) for a, b in itertools.pairwise(cuts)] if len(cuts) > 2 else [points]
            yield StepShard([(part, len(part.y)) for part in parts], n, last=following is None)

    def fetch(self, chunks: Any, seed: int = 0) -> Iterator[Fetched]:
        """As many first points as each chunk has: a look at what the data are like."""
        for chunk, points in zip(chunks, self._read(seed, 0), strict=False):
            yield rows_of(points, 0, len(chunk))

    def everything(self, rank: int, world: int, chunk: int) -> Iterator[Fetched]:
        yield from itertools.islice(self._read(0, 0), rank, None, world)

    def _read(self, seed: int, epoch: int) -> Iterator[Fetched]:
        """An epoch's batches: to the end, or until as many points as were stated have been read."""
        state: Any = None
        seen, batches = 0, None
        while not self.stated or seen < self.n:
            with _drawing(stream_seed(seed, epoch), state) as kept:
                batches = iter(self.loader) if batches is None else batches
                item = next(batches, None)
            state = kept[0]
            if item is None:
                return
            points = unpacked(item, self.unpack)
            seen += len(points.y)
            yield points


def _known_size(loader: Any) -> int | None:
    dataset: Any = getattr(loader, "dataset", None)
    try:
        return len(dataset) if isinstance(dataset, Dataset) else None  # type: ignore[arg-type]
    except TypeError:
        return None


def _first_size(loader: Any, unpack: Unpack | None) -> int:
    with _drawing(0):
        item = next(iter(loader), None)
    if item is None:
        raise ValueError("the loader gives no batches")
    return len(unpacked(item, unpack).y)


@contextmanager
def _drawing(seed: int, state: Any = None) -> Iterator[list[Any]]:
    """Generators seeded, or as they were left, inside the block; its list then holds how they are left."""
    before = checkpoint.capture(CPU)
    kept: list[Any] = [None]
    try:
        if state is None:
            torch.default_generator.manual_seed(seed)  # not the devices', which draw nothing here
            np.random.seed(seed % 2**32)  # noqa: NPY002
            random.seed(seed)
        else:
            checkpoint.restore(state, CPU)
        yield kept
        kept[0] = checkpoint.capture(CPU)
    finally:
        checkpoint.restore(before, CPU)
