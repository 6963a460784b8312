"""Columns of a table that go along with its predictions: identifiers, and the numbers of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np

from bedl.data import DataError
from bedl.data.errors import listed
from bedl.data.parsing import kind_of_type

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ROW", "check_kept", "with_kept"]

ROW = "row"


def check_kept(keep: Sequence[str], columns: Sequence[str]) -> None:
    """An error if a column to keep is none of the table's."""
    absent = [name for name in keep if name not in columns]
    if absent:
        near = get_close_matches(absent[0], columns, n=1)
        hint = f" Did you mean {listed(near)}?" if near else ""
        raise DataError(
            f"the table has no column {listed(absent)} to keep.{hint} Choose among {listed(list(columns), 20)}"
        )


def with_kept(
    batch: pa.RecordBatch, keep: Sequence[str], row_numbers: bool, first_row: int, predicted: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """The predictions of a batch, behind the number of each row, counted from 1, and the columns to keep."""
    kept: dict[str, Any] = {ROW: np.arange(first_row + 1, first_row + len(batch) + 1)} if row_numbers else {}
    for name in keep:
        column = batch.column(name)
        if kind_of_type(column.type) is None:
            raise DataError(f"column {listed([name])} is of type {column.type}, which cannot be kept. Keep another")
        if name in kept or name in predicted:
            raise DataError(
                f"the predictions have a column {listed([name])} of their own. Rename that of the table to keep it"
            )
        kept[name] = column
    return {**kept, **predicted}
