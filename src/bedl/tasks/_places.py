"""Where in a map, a sequence or a volume a prediction is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["place_columns"]

PLACES = {2: ("position",), 3: ("row", "column"), 4: ("slice", "row", "column")}  # by dimensions, points included


def place_columns(shape: Sequence[int]) -> dict[str, np.ndarray]:
    """Columns that say which place a row of a long table is of; none where every point has one prediction.

    Example:
        >>> {name: values.tolist() for name, values in place_columns((2, 1, 2)).items()}
        {'point': [0, 0, 1, 1], 'row': [0, 0, 0, 0], 'column': [0, 1, 0, 1]}
    """
    if len(shape) < 2:
        return {}
    names = PLACES.get(len(shape), tuple(f"axis_{i}" for i in range(1, len(shape))))
    return {name: at.reshape(-1) for name, at in zip(("point", *names), np.indices(shape), strict=True)}
