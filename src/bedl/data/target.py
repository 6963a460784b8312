"""The target column: which task it makes, its classes, and its values as numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bedl.data import parsing
from bedl.data.columns import Where, parsed, shown
from bedl.data.errors import DataError, listed
from bedl.data.survey import ColumnSurvey, LabelCounts

__all__ = ["MAX_CLASSES", "Target", "decide_target"]

MAX_CLASSES = 1000
_FEW = 20  # a whole-number target with at most so many values …
_REPEATS = 10  # … each seen so often on average is taken for classes


@dataclass(frozen=True)
class Target:
    """A column to predict.

    Attributes:
        classes: names, in the order of their codes; None in regression.
        values: the classes as numbers, if the column holds numbers.
    """

    name: str
    task: str
    classes: list[str] | None = None
    values: list[float] | None = None

    def missing(self, column: pa.Array) -> np.ndarray:
        """True where there is no target."""
        empty = pc.is_null(parsing.plain(column), nan_is_null=True)
        return np.asarray(empty.to_numpy(zero_copy_only=False))

    def encode(self, column: pa.Array, first_row: int) -> np.ndarray:
        """float64 values, or int64 codes; a missing or unknown one is an error."""
        array, where = parsing.plain(column), Where(self.name, first_row)
        missing = self.missing(column)
        if missing.any():
            raise DataError(
                f"{where.row(int(missing.argmax()))}: the target is missing, as in {int(missing.sum())} rows of this "
                "batch. Fill it in, or leave such rows out (--drop-missing-target)"
            )
        if self.classes is None:
            return parsed(parsing.as_numbers, array, where, "a number")
        codes = self._codes(array, where)
        if (codes < 0).any():
            index = int((codes < 0).argmax())
            raise DataError(
                f"{where.row(index)}: {shown(array[index].as_py())} is none of the classes seen in training: "
                f"{listed(self.classes)}. Correct it, leave such rows out, or train again with them"
            )
        return codes

    def _codes(self, array: pa.Array, where: Where) -> np.ndarray:
        assert self.classes is not None
        if self.values is not None:
            numbers = parsed(parsing.as_numbers, array, where, "a number")
            codes = np.searchsorted(self.values, numbers).clip(max=len(self.values) - 1)
            return np.where(np.asarray(self.values)[codes] == numbers, codes, -1).astype(np.int64)
        found = pc.index_in(parsing.as_labels(array), value_set=pa.array(self.classes))
        return pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def decide_target(
    column: ColumnSurvey, labels: LabelCounts | None, task: str, drop_missing: bool
) -> tuple[Target, list[str]]:
    """The target of a surveyed column, and what to tell the user about it.

    `labels` are the counts of a column that is no number.
    """
    name = listed([column.name])
    if column.missing and not drop_missing:
        raise DataError(
            f"the target {name} is missing in {column.missing} of {column.rows} rows. Fill it in, or leave these rows "
            "out (--drop-missing-target)"
        )
    if column.present < 2:
        raise DataError(f"{column.present} row(s) with a target {name} are too few to learn from: give at least two")
    notes = [f"{column.missing} rows without a target {name} were left out"] if column.missing else []
    if column.kind == "date":
        raise DataError(f"the target {name} is a date. Store it as a number, such as days since some day")
    if task == "regression" or (task == "auto" and column.kind == "number" and not _looks_like_classes(column)):
        return _regression(column, name), notes
    target, more = _numeric_classes(column, name) if labels is None else _text_classes(column, labels, task)
    if task == "auto" and column.kind == "number":
        notes.append(
            f"the target {name} has {len(target.classes or [])} distinct whole numbers, taken as classes "
            "(--task regression takes them as numbers)"
        )
    return target, notes + more


def _looks_like_classes(column: ColumnSurvey) -> bool:
    counts = column.frequencies
    return column.whole and counts is not None and len(counts) <= min(_FEW, column.present / _REPEATS)


def _regression(column: ColumnSurvey, name: str) -> Target:
    if column.kind != "number":
        row, value = column.unlike.get("number", (1, "true or false"))
        raise DataError(
            f"the target {name} is no number in row {row}: {shown(value)}. Regression needs numbers; "
            "for classes choose classification (--task classification)"
        )
    if column.low == column.high:
        raise DataError(f"the target {name} is {column.low:g} in every row: there is nothing to predict")
    return Target(column.name, "regression")


def _numeric_classes(column: ColumnSurvey, name: str) -> tuple[Target, list[str]]:
    if column.frequencies is None:
        raise _too_many(name)
    counts = sorted(column.frequencies.items())
    classes = [str(int(value)) if value == int(value) else repr(value) for value, _ in counts]
    _check_several(name, classes)
    target = Target(column.name, "classification", classes, [value for value, _ in counts])
    return target, _single_rows(name, [c for c, (_, n) in zip(classes, counts, strict=True) if n == 1])


def _text_classes(column: ColumnSurvey, labels: LabelCounts, task: str) -> tuple[Target, list[str]]:
    name = listed([column.name])
    like, share = parsing.share_like(list(labels.counts), list(labels.counts.values()))
    classes = sorted(labels.counts, key=float if (like, share) == ("numbers", 1.0) else None)
    if task == "auto" and not column.typed_text and like == "numbers" and 0.9 <= share < 1:
        row, value = column.unlike.get("number", (1, "text"))
        raise DataError(
            f"the target {name} mixes numbers with text, first in row {row}: {shown(value)}. Correct such rows or "
            "leave the value empty; if these are classes, say so (--task classification)"
        )
    if len(classes) > MAX_CLASSES or not labels.exact:
        raise _too_many(name)
    _check_several(name, classes)
    return Target(column.name, "classification", classes), _single_rows(
        name, [c for c in classes if labels.counts[c] == 1]
    )


def _too_many(name: str) -> DataError:
    return DataError(
        f"the target {name} has more than {MAX_CLASSES} classes. Merge rare classes, or, if it is a quantity, choose "
        "regression (--task regression); is it an identifier?"
    )


def _check_several(name: str, classes: list[str]) -> None:
    if len(classes) < 2:
        raise DataError(f"the target {name} is {listed(classes)} in every row: there is nothing to predict")


def _single_rows(name: str, classes: list[str]) -> list[str]:
    if not classes:
        return []
    return [f"the target {name} has classes with a single row, too few to learn and to test: {listed(classes)}"]
