"""Data made here, whose noise is known: what is said of uncertainty can be held against the truth."""

from __future__ import annotations

import math
import statistics
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Source(NamedTuple):
    """Rows drawn at will.

    Attributes:
        classes: whether the target is a class.
        noises: how strong the noise is in a sweep: a standard deviation in units of the signal's, or for classes the
            share of labels that are drawn anew.
        draw: (n, noise, generator) -> x of shape (n, features), y of shape (n,)
    """

    classes: bool
    noises: tuple[float, ...]
    draw: Callable[[int, float, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def _sine(n: int, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = rng.uniform(-3, 3, (n, 1))
    return x, np.sin(2 * x[:, 0]) + noise * 0.7 * rng.normal(size=n)


def _friedman(n: int, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """J. Friedman, "Multivariate Adaptive Regression Splines", 1991: five features that matter and five that do not."""
    x = rng.uniform(size=(n, 10))
    signal = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, signal + noise * 4.9 * rng.normal(size=n)


def _blobs(n: int, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Three classes in the plane, well apart, of whose labels some are drawn anew."""
    y = rng.integers(3, size=n)
    angle = 2 * np.pi * y / 3
    x = 3 * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.8 * rng.normal(size=(n, 2))
    return x, np.where(rng.uniform(size=n) < noise, rng.integers(3, size=n), y)


_SPREADS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
SOURCES = {
    "sine": Source(False, _SPREADS, _sine),
    "friedman": Source(False, _SPREADS, _friedman),
    "blobs": Source(True, (0.0, 0.1, 0.2, 0.3, 0.4, 0.6), _blobs),
}


# -- a gap, and noise that grows ---------------------------------------------------------------------
def with_gap(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A sine between −3 and 3 without rows between −1 and 1; noise grows to the right. shapes: (n, 1), (n,)"""
    x = rng.uniform(1, 3, n) * np.where(np.arange(n) % 2, 1, -1)
    return x[:, None], np.sin(x) + noise_of_gap(x) * rng.normal(size=n)


def noise_of_gap(x: np.ndarray) -> np.ndarray:
    """The standard deviation of the noise there. shape: (n,)"""
    return 0.05 + 0.1 * (x + 3)


def in_gap(x: np.ndarray) -> np.ndarray:
    """Whether a place is well inside the gap. shape: (n,)"""
    return np.abs(x) <= 0.5


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Spearman's rank correlation; equal values share their mean rank, and without any spread it is not a number.

    >>> round(spearman([1, 2, 3], [10, 30, 20]), 6), round(spearman([1, 2, 2], [1, 2, 2]), 6)
    (0.5, 1.0)
    """
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic) if np.ptp(a) and np.ptp(b) else float("nan")


# The paper's networks, as ordinary PyTorch.


Dropped = Literal["hidden", "dense"]  # layers that dropout stands behind: all hidden ones, or the dense ones of them


def mlp(features: int = 8, hidden: int = 50, outputs: int = 2, dropout: float = 0.0) -> nn.Module:
    """One hidden layer, as for the UCI tables: two outputs for one target."""
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), *_dropout(dropout), nn.Linear(hidden, outputs))


def lenet5(classes: int = 10, dropout: float = 0.0, dropped: Dropped = "hidden") -> nn.Module:
    """LeNet-5 for 28×28 with 20-50-500 units; strides in place of pooling, as in the paper.

    Args:
        classes: outputs.
        dropout: its probability; 0: there is none.
        dropped: behind which layers.
    """
    return _lenet(1, 20, 50, 4 * 4, 500, classes, dropout, dropped)


def cifar_net(classes: int = 5, dropout: float = 0.0, dropped: Dropped = "hidden") -> nn.Module:
    """The same for 3×32×32 with 192-192-1000 units."""
    return _lenet(3, 192, 192, 5 * 5, 1000, classes, dropout, dropped)


def two_layers(
    side: int, channels: int, classes: int = 10, dropout: float = 0.0, dropped: Dropped = "hidden"
) -> nn.Module:
    """Two convolutions with 96 filters 5×5 and stride 2, then the classes: the paper's net against Gaussian processes.

    Example:
        >>> import torch
        >>> two_layers(28, 1)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    left, behind = ((side - 5) // 2 - 4) // 2 + 1, dropout if dropped == "hidden" else 0.0
    return nn.Sequential(
        nn.Conv2d(channels, 96, 5, stride=2), nn.ReLU(), *_dropout(behind),
        nn.Conv2d(96, 96, 5, stride=2), nn.ReLU(), *_dropout(behind),
        nn.Flatten(),
        nn.Linear(96 * left * left, classes),
    )  # fmt: skip


def _lenet(
    channels: int, first: int, second: int, flat: int, hidden: int, classes: int, dropout: float, dropped: Dropped
) -> nn.Module:
    behind = dropout if dropped == "hidden" else 0.0
    return nn.Sequential(
        nn.Conv2d(channels, first, 5, stride=2), nn.ReLU(), *_dropout(behind),
        nn.Conv2d(first, second, 5, stride=2), nn.ReLU(), *_dropout(behind),
        nn.Flatten(),
        nn.Linear(second * flat, hidden), nn.ReLU(), *_dropout(dropout),
        nn.Linear(hidden, classes),
    )  # fmt: skip


def _dropout(probability: float) -> list[nn.Module]:
    return [nn.Dropout(probability)] if probability else []


# Interleaved timing: what is compared runs in turn, in one process, so that a busy machine slows all of it alike.


LONG_ENOUGH = 3e-3  # seconds


def medians(runs: dict[str, Callable[[], object]], repeats: int = 15, warmup: int = 3) -> dict[str, float]:
    """Median seconds of each run, `repeats` of each, taken in turns after `warmup` rounds that do not count.

    Short ones run several times in a row, or the caches that the one before has left would be what is measured.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    calls = dict.fromkeys(runs, 1)
    for number in range(-warmup, repeats):
        for name, run in runs.items():
            began = time.perf_counter()
            for _ in range(calls[name]):
                run()
            seconds = (time.perf_counter() - began) / calls[name]
            if number >= 0:
                times[name].append(seconds)
            elif number == -1:
                calls[name] = min(100, math.ceil(LONG_ENOUGH / seconds))
    return {name: statistics.median(values) for name, values in times.items()}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cpu_of(run: Callable[[], object]) -> float:
    """Seconds that the processor takes."""
    began = time.process_time()
    run()
    return time.process_time() - began


def cpu_of_each(call: Callable[[Any], object], value: Any, calls: int = 200) -> float:
    """Milliseconds of the processor for a call."""
    call(value)
    return 1000 * cpu_of(lambda: [call(value) for _ in range(calls)]) / calls


# Peak memory: the bytes of tensors that live at the same time.


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of all storages that operations make inside the block, while they live.

    Args:
        given: what was there before and does not count, though views of it are made.

    Attributes:
        peak: the most there were at once.
    """

    def __init__(self, *given: Tensor) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in given}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._take(leaf.untyped_storage())
        return result

    def _take(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._give_back, key, size)

    def _give_back(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size
