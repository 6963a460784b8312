"""How to train when nobody says: batch size, epochs, patience and learning rate, from the size of the data."""

from __future__ import annotations

import dataclasses
import math
from numbers import Integral, Real
from typing import Any

from bedl.methods.registry import Training

__all__ = ["Recipe", "recipe"]

TABLE_RATE, IMAGE_RATE = 0.01, 0.001  # of Adam; with ten times as much, LeNet-5 has twice the errors
SMALL = 64  # fewer points than that are trained on as one batch, without holding any out


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The numbers of a run.

    Attributes:
        epochs: at most.
        batch_size: points per step.
        patience: epochs without improvement.
        held_out: how many points decide when to stop; 0: none.
        lr: learning rate of Adam, at its highest.
        judges: how many points decide how bold probabilities are; 0: none.
    """

    epochs: int
    batch_size: int
    patience: int
    held_out: int
    lr: float = 0.01
    judges: int = 0


def recipe(
    n: int,
    epochs: Any,
    batch_size: Any,
    patience: Any,
    early_stopping: Any,
    validation_fraction: float,
    learning_rate: Any = "auto",
    wanted: Training | None = None,
    table: bool = True,
) -> Recipe:
    """The numbers for n points, rows of a `table` or images: what the user says, what the method wants, else a rule.

    Example:
        >>> recipe(20, "auto", "auto", "auto", True, 0.1)
        Recipe(epochs=500, batch_size=20, patience=50, held_out=0, lr=0.01, judges=0)
        >>> recipe(10_000, "auto", "auto", "auto", True, 0.1)
        Recipe(epochs=70, batch_size=64, patience=10, held_out=1000, lr=0.01, judges=0)
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size), ("patience", patience)):
        if value != "auto" and not (isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1):
            raise ValueError(f"{name} must be 'auto' or a number of at least 1, not {value!r}")
    if not isinstance(validation_fraction, Real) or not 0 < validation_fraction < 1:
        raise ValueError(f"validation_fraction must lie between 0 and 1, not {validation_fraction!r}")
    stops = early_stopping if early_stopping != "auto" else wanted is None or wanted.early_stopping
    small = n <= SMALL
    count = 0 if small or not stops else max(1, round(validation_fraction * n))
    judges = 0 if wanted is None or not wanted.tempered else _judges(n)
    size, times = _pace(n, n - count - judges, small, batch_size, epochs, wanted)
    waits = max(10, times // 10) if patience == "auto" else patience
    usual = TABLE_RATE if table else IMAGE_RATE
    lr = float(learning_rate) if learning_rate != "auto" else usual if wanted is None else wanted.lr
    return Recipe(times, size, int(waits), count, lr, judges)


def _judges(n: int) -> int:
    """A twentieth of many points; of few as many as a temperature needs, but no more than a tenth."""
    return 0 if n <= SMALL else max(min(n // 10, 200), min(n // 20, 5000))


def _pace(n: int, kept: int, small: bool, batch_size: Any, epochs: Any, wanted: Training | None) -> tuple[int, int]:
    """Points per step, and how often each point is seen."""
    if batch_size == "auto":
        ours = kept if small else min(256, max(32, 2 ** round(math.log2(n) / 2 - 1)))
        batch_size = ours if wanted is None else wanted.batch_size
    size = min(int(batch_size), kept)
    if epochs == "auto":
        # measured on UCI's tables: what learns slowly (energy) needs some thousand steps, the others stop before
        ours = 500 if small else min(400, max(20, 10_000 // math.ceil(kept / size)))
        epochs = ours if wanted is None else wanted.epochs
    return size, int(epochs)
