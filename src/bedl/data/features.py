"""Columns of a table without its target → numbers: what estimators do with text, dates and missing values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bedl.data import parsing
from bedl.data.columns import Column, Where, column_from_dict, column_to_dict
from bedl.data.deciding import decide
from bedl.data.errors import DataError, listed
from bedl.data.survey import count_labels, survey
from bedl.data.tables import Table

__all__ = ["FeatureEncoder"]

MOST_CATEGORIES = 100  # of a column; the rest share a feature


class FeatureEncoder:
    """How the columns of a table become features; decided on the training table, the same ever after.

    Attributes:
        columns: how each column is encoded.
        feature_names: of the encoded features, in order.
        notes: sentences on what was done with the columns.

    Example:
        >>> import pandas
        >>> from bedl.data import open_table
        >>> frame = pandas.DataFrame({"size": [1.5, None, 2.0], "colour": ["red", "blue", "red"]})
        >>> encoder = FeatureEncoder.fit(open_table(frame))
        >>> encoder.feature_names
        ['size', 'size_missing', 'colour=blue', 'colour=red']
        >>> encoder(open_table(frame))[1]
        array([1.75, 1.  , 1.  , 0.  ], dtype=float32)
    """

    def __init__(self, columns: Sequence[Column], notes: Sequence[str] = ()):
        self.columns, self.notes = list(columns), list(notes)
        self.feature_names = [name for column in columns for name in column.features]

    @classmethod
    def fit(cls, table: Table) -> FeatureEncoder:
        """Decide how to read the columns, in one pass, and a second one over columns of text."""
        surveys = survey(table, table.columns, (), (), numeric=False)
        counts = count_labels(table, [name for name, column in surveys.items() if column.kind == "category"])
        columns, notes = [], []
        for name, column in surveys.items():
            made, said = decide(column, counts.get(name), MOST_CATEGORIES, forced=False, keep_constant=False)
            columns += [made] if made else []
            notes += said
        if not columns:
            raise DataError("there is no column left to predict from" + "".join(f"; {note}" for note in notes))
        return cls(columns, notes)

    def __call__(self, table: Table, unseen: str = "error") -> np.ndarray:
        """The features of all rows. shape: (rows, features), float32

        Args:
            table: with the columns of the training table; others are not looked at.
            unseen: what to do about categories, or missing values, where training had none: "error" or "ignore".
        """
        absent = [column.name for column in self.columns if column.name not in table.columns]
        if absent:
            raise DataError(f"X lacks {listed(absent)}, which the model was trained with. Add the column(s)")
        parts: list[np.ndarray] = []
        for batch in table.batches(columns=[column.name for column in self.columns]):
            out, start = np.empty((len(batch), len(self.feature_names)), dtype=np.float32), 0
            first_row = sum(len(part) for part in parts)
            for column in self.columns:
                end = start + len(column.features)
                values = parsing.plain(batch.column(column.name))
                column.encode(values, out[:, start:end], Where(column.name, first_row), unseen == "ignore", "keep")
                start = end
            parts.append(out)
        return np.concatenate(parts)

    # -- as JSON ----------------------------------------------------------------------------------
    def to_dict(self) -> dict[str, Any]:
        """Everything, as values that JSON knows."""
        return {"columns": [column_to_dict(column) for column in self.columns], "notes": self.notes}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> FeatureEncoder:
        """The inverse of `to_dict`."""
        return cls([column_from_dict(column) for column in fields["columns"]], [str(note) for note in fields["notes"]])
