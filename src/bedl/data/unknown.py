"""Values that training did not see: counted, and integrated over the values that it did see.

An encoded value that is unknown is NaN. `possible_rows` puts values of the training table in its place, so that a
prediction can be averaged over them: what they disagree about is missing evidence.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bedl._utils.errors import DataError, listed, option

if TYPE_CHECKING:
    from bedl.data.columns import Column

DRAWS = 32  # values that stand for an unknown one
HANDLE_UNKNOWN = ("warn", "ignore", "error")
NAMED = 3  # values that are named in a warning


def check_handle_unknown(choice: str) -> None:
    """An error unless it is one of `HANDLE_UNKNOWN`."""
    if choice not in HANDLE_UNKNOWN:
        raise DataError(f"handle_unknown is one of {listed(list(HANDLE_UNKNOWN))}, not {choice!r}")


class UnknownValues:
    """Counts values that training did not see, by column.

    Example:
        >>> unknown = UnknownValues()
        >>> unknown.add("town", np.array([False, True, True]), 10, ["Ulm", "Bonn"])
        >>> unknown.notes()
        ["column 'town': 2 rows hold values that training did not see, first in row 12: 'Ulm', 'Bonn'"]
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._values: dict[str, dict[str, None]] = {}

    def add(self, column: str, rows: np.ndarray, first_row: int, values: Sequence[str]) -> None:
        """Some rows of a batch.

        Args:
            column: the name of the column.
            rows: True where its value was not seen in training. shape: (n,)
            first_row: how many rows came before.
            values: what is there.
        """
        self._first.setdefault(column, first_row + int(rows.argmax()) + 1)
        self._rows[column] = self._rows.get(column, 0) + int(rows.sum())
        self._values.setdefault(column, {}).update(dict.fromkeys(values[: NAMED + 1]))

    def notes(self) -> list[str]:
        """A sentence for each column that has such values."""
        return [
            f"column {listed([name])}: {count} row{'s hold values' if count > 1 else ' holds a value'} that training "
            f"did not see, first in row {self._first[name]}: {listed(list(self._values[name]), NAMED)}"
            for name, count in self._rows.items()
        ]

    def warn(self) -> None:
        """One warning for each column."""
        for note in self.notes():
            warnings.warn(
                f"{note}. Predictions there average over the values that training saw, and their distributional "
                f"uncertainty is larger. To stop instead: {option('handle_unknown', 'error')}",
                stacklevel=4,
            )


def possible_rows(x: np.ndarray, columns: Sequence[Column], draws: int = DRAWS) -> np.ndarray:
    """Rows with values of the training table in place of unknown ones, column by column and as frequent as there.

    Args:
        x: encoded rows; NaN where a value is unknown. shape: (n, features)
        columns: what made them.
        draws: how many values stand for an unknown one.

    Returns:
        shape (draws, n, features)
    """
    rows = np.repeat(x[None], draws, axis=0)
    start = 0
    for number, column in enumerate(columns):
        end = start + len(column.features)
        unknown = np.isnan(x[:, start:end]).any(1)
        if unknown.any():
            # another order for each column, so that unknown columns are combined at random
            order = np.random.Generator(np.random.PCG64(number)).permutation(draws)
            values = column.typical(draws)[order][:, None]
            rows[:, unknown, start : start + values.shape[2]] = values
            rows[:, unknown, start + values.shape[2] : end] = 0.0  # the feature that says that a value is missing
        start = end
    return rows
