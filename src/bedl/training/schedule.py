"""Learning rates over the steps of a run: factors on the optimiser's own rate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

__all__ = ["WARMUP", "Constant", "Cosine", "Schedule", "Warmup"]

Schedule = Callable[[int, int], float]  # (step, total steps) -> factor on the learning rate


@dataclasses.dataclass(frozen=True)
class Warmup:
    """A linear rise over the first steps, then constant.

    The first steps of a wide net with Gaussian weights are the dangerous ones.

    Args:
        steps: how many; a twentieth of the run, at most 500, if not said.

    Example:
        >>> [Warmup(4)(step, 100) for step in range(6)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    steps: int | None = None

    def __call__(self, step: int, total: int) -> float:
        length = min(500, total // 20) if self.steps is None else self.steps
        return min(1.0, (step + 1) / max(length, 1))


WARMUP = Warmup()


@dataclasses.dataclass(frozen=True)
class Cosine:
    """The rise of `Warmup`, then half a cosine down to `floor` at the end of the run."""

    steps: int | None = None
    floor: float = 0.0

    def __call__(self, step: int, total: int) -> float:
        down = 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(total, 1))))
        return Warmup(self.steps)(step, total) * (self.floor + (1 - self.floor) * down)


@dataclasses.dataclass(frozen=True)
class Constant:
    """The learning rate as it is, from the first step on."""

    def __call__(self, step: int, total: int) -> float:
        return 1.0
