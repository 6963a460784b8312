"""Interleaved timing: what is compared runs in turn, in one process, so that a busy machine slows all of it alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

__all__ = ["medians", "threads"]

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
