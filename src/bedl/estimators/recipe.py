"""How to train when nobody says: batch size, epochs and patience from the size of the data."""

from __future__ import annotations

import dataclasses
import math
from numbers import Integral, Real
from typing import Any

__all__ = ["Recipe", "recipe"]

SMALL = 64  # fewer points than that are trained on as one batch, without holding any out


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The numbers of a run.

    Attributes:
        epochs: at most.
        batch_size: points per step.
        patience: epochs without improvement.
        held_out: how many points decide when to stop; 0: none.
    """

    epochs: int
    batch_size: int
    patience: int
    held_out: int


def recipe(
    n: int, epochs: Any, batch_size: Any, patience: Any, early_stopping: bool, validation_fraction: float
) -> Recipe:
    """The numbers for n points, those that are "auto" by rule.

    Example:
        >>> recipe(20, "auto", "auto", "auto", True, 0.1)
        Recipe(epochs=500, batch_size=20, patience=50, held_out=0)
        >>> recipe(10_000, "auto", "auto", "auto", True, 0.1)
        Recipe(epochs=70, batch_size=64, patience=10, held_out=1000)
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size), ("patience", patience)):
        if value != "auto" and not (isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1):
            raise ValueError(f"{name} must be 'auto' or a number of at least 1, not {value!r}")
    if not isinstance(validation_fraction, Real) or not 0 < validation_fraction < 1:
        raise ValueError(f"validation_fraction must lie between 0 and 1, not {validation_fraction!r}")
    small = n <= SMALL
    count = 0 if small or not early_stopping else max(1, round(validation_fraction * n))
    kept = n - count
    size = (
        batch_size if batch_size != "auto" else kept if small else min(256, max(32, 2 ** round(math.log2(n) / 2 - 1)))
    )
    size = min(int(size), kept)
    if epochs == "auto":
        # measured on UCI's tables: what learns slowly (energy) needs some thousand steps, the others stop before
        epochs = 500 if small else min(400, max(20, 10_000 // math.ceil(kept / size)))
    waits = max(10, epochs // 10) if patience == "auto" else patience
    return Recipe(int(epochs), size, int(waits), count)
