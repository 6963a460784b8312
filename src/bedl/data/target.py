"""The target column, or columns: which task they make, their classes, and their values as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bedl._utils.errors import DataError, listed, option
from bedl.data import parsing
from bedl.data.columns import Where, check_types, labels_of, parsed, shown
from bedl.data.parsing import without_markers
from bedl.data.profile import ColumnProfile, LabelCounts
from bedl.evaluation import tasks

MAX_CLASSES = 1000
_MAX_CLASSES = 20  # a whole-number target with at most so many values …
_MAX_CLASS_SHARE = 0.5  # of the rows; with more, many have no second row (scikit-learn warns there, too)
_REPEATS = 10  # … each seen so often on average is taken for classes


@dataclass(frozen=True)
class Target:
    """What to predict: one column, or several together.

    Attributes:
        name: the column; of several, their names in a row.
        task: the name of the task, see `bedl.evaluation.tasks`.
        classes: names, in the order of their codes; None where there are no classes.
        values: the classes as numbers, if the column holds numbers.
        several: the columns, if there are several.
        style: how its numbers are written, see `bedl.data.parsing`.
    """

    name: str
    task: str
    classes: list[str] | None = None
    values: list[float] | None = None
    several: list[str] | None = None
    style: str = ""

    @property
    def columns(self) -> list[str]:
        """The columns that hold it."""
        return [self.name] if self.several is None else self.several

    @property
    def names(self) -> list[str]:
        """What the entries of a prediction are called: classes, or target columns."""
        return self.columns if self.classes is None else self.classes

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the target of one row."""
        return () if self.several is None else (len(self.several),)

    def missing(self, batch: pa.RecordBatch) -> np.ndarray:
        """True where a target is missing. shape: (rows,)"""
        return np.any([self._empty(parsing.plain(batch.column(name))) for name in self.columns], axis=0)

    def _empty(self, array: pa.Array) -> np.ndarray:
        """True where there is no value. shape: (rows,)"""
        numbers = self.classes is None or self.values is not None
        if numbers and parsing.is_text(array.type):
            array = without_markers(array)
        return np.asarray(pc.is_null(array, nan_is_null=True).to_numpy(zero_copy_only=False))

    def encode(self, batch: pa.RecordBatch, first_row: int) -> np.ndarray:
        """Numbers, or codes of classes, as the task stores them; a missing or unknown one is an error.

        shape: (rows,), or (rows, columns) of several columns
        """
        kind = tasks.get(self.task)
        parts = [self._encode(batch, name, first_row) for name in self.columns]
        return (parts[0] if self.several is None else np.stack(parts, 1)).astype(kind.dtype, copy=False)

    def _encode(self, batch: pa.RecordBatch, name: str, first_row: int) -> np.ndarray:
        kind, where = tasks.get(self.task), Where(name, first_row)
        array = parsing.plain(batch.column(name))
        missing = self._empty(array)
        if missing.any():
            raise DataError(
                f"{where.row(int(missing.argmax()))}: the target is missing, as in {int(missing.sum())} rows of this "
                f"batch. Fill it in, or leave such rows out ({option('drop_missing_target', True)})"
            )
        if kind.column == "class":
            return self._codes(array, where)
        binary = kind.column == "binary"
        read = parsing.as_answers if binary else self._numbers
        values = parsed(read, array, where, "0 or 1, yes or no, true or false" if binary else "a number")
        fault = kind.validation_error(values)
        if fault is not None:
            raise DataError(f"{where.row(fault[0])}: {fault[1]}. Correct it, or choose another task ({option('task')})")
        return values

    def _numbers(self, array: pa.Array) -> np.ndarray:
        return parsing.as_numbers(array, self.style)

    def _codes(self, array: pa.Array, where: Where) -> np.ndarray:
        assert self.classes is not None
        if self.values is not None:
            numbers = parsed(self._numbers, array, where, "a number")
            codes = np.searchsorted(self.values, numbers).clip(max=len(self.values) - 1)
            codes = np.where(np.asarray(self.values)[codes] == numbers, codes, -1).astype(np.int64)
        else:
            found = pc.index_in(labels_of(array, where), value_set=pa.array(self.classes))
            codes = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        if (codes < 0).any():
            index = int((codes < 0).argmax())
            raise DataError(
                f"{where.row(index)}: {shown(array[index].as_py())} is none of the classes seen in training: "
                f"{listed(self.classes)}. Correct it, leave such rows out, or train again with them"
            )
        return codes

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Target:
        """The inverse of `to_dict`; a TypeError for anything else."""
        check_types(dict(fields), _TYPES)
        target = cls(**fields)
        tasks.get(target.task)
        if target.values is not None and len(target.values) != len(target.classes or ()):
            raise TypeError("there are not as many values as classes")
        return target


_LIST = (list, NoneType)
_TYPES: dict[str, tuple[type, ...]] = {
    "name": (str,), "task": (str,), "classes": _LIST, "values": _LIST, "several": _LIST, "style": (str,)
}  # fmt: skip


def decide_target(
    columns: Mapping[str, ColumnProfile], labels: Mapping[str, LabelCounts], task: str, drop_missing: bool
) -> tuple[Target, list[str]]:
    """The target of surveyed columns, and what to tell the user about it.

    Args:
        columns: the target columns, by name.
        labels: the counts of those that are no numbers.
        task: the name of a task, or "auto".
        drop_missing: whether rows without a target may be left out.
    """
    notes = []
    for column in columns.values():
        notes += _check_present(column, drop_missing)
    first = next(iter(columns.values()))
    seen = "binary" if len(columns) > 1 else "number" if _is_number(first) else "class"
    kind = tasks.automatic(seen) if task == "auto" else tasks.get(task)
    if len(columns) > 1 and kind.column != "binary":
        raise DataError(f"{kind.name} predicts one column, not {listed(list(columns))}. Name one target")
    if kind.column == "binary":
        if len(columns) == 1:
            raise DataError(f"{kind.name} predicts several columns. Name some, or leave out the task: one is classes")
        return _binary(columns, labels, kind), notes
    if kind.column == "number":
        return _number(first, kind), notes + _written(first)
    counts = labels.get(first.name)
    target, more = _numeric_classes(first, kind) if counts is None else _text_classes(first, counts, kind, task)
    if task == "auto":
        _check_repeated(listed([first.name]), len(target.names), first.present)
    notes += _written(first)
    if task == "auto" and first.kind == "number":
        notes.append(
            f"the target {listed([first.name])} has {len(target.names)} distinct whole numbers, taken as classes "
            f"({option('task', 'regression')} takes them as numbers)"
        )
    return target, notes + more


def _check_present(column: ColumnProfile, drop_missing: bool) -> list[str]:
    name = listed([column.name])
    if column.missing and not drop_missing:
        raise DataError(
            f"the target {name} is missing in {column.missing} of {column.rows} rows. Fill it in, or leave these rows "
            f"out ({option('drop_missing_target', True)})"
        )
    if column.present < 2:
        raise DataError(f"{column.present} row(s) with a target {name} are too few to learn from: give at least two")
    if column.kind == "date":
        raise DataError(f"the target {name} is a date. Store it as a number, such as days since some day")
    return [f"{column.missing} rows without a target {name} were left out"] if column.missing else []


def _is_number(column: ColumnProfile) -> bool:
    """Whether its values are meant as amounts: numbers that do not look like the codes of a few classes."""
    return column.kind == "number" and not _looks_like_classes(column)


def _looks_like_classes(column: ColumnProfile) -> bool:
    counts = column.frequencies
    return column.whole and counts is not None and len(counts) <= min(_MAX_CLASSES, column.present / _REPEATS)


def _number(column: ColumnProfile, kind: tasks.Task) -> Target:
    name = listed([column.name])
    if column.kind != "number":
        row, value = column.unlike.get("number", (1, "true or false"))
        raise DataError(
            f"the target {name} is no number in row {row}: {shown(value)}. {kind.name.capitalize()} needs numbers; "
            f"for classes choose classification ({option('task', 'classification')})"
        )
    if column.low == column.high:
        raise DataError(f"the target {name} is {column.low:g} in every row: there is nothing to predict")
    return Target(column.name, kind.name, style=column.style)


def _written(column: ColumnProfile) -> list[str]:
    return [f"the target {listed([column.name])} holds numbers written as {column.style}"] if column.style else []


def _binary(columns: Mapping[str, ColumnProfile], labels: Mapping[str, LabelCounts], kind: tasks.Task) -> Target:
    for name, column in columns.items():
        values = set(column.frequencies or ())
        if name in labels:
            words = {label.lower() for label in labels[name].counts}
            known = labels[name].exact and words <= set(parsing.ANSWERS)
            values = {parsing.ANSWERS.index(word) % 2 for word in words} if known else {2.0}
        if not values <= {0, 1}:
            raise DataError(
                f"the target {listed([name])} holds other values than 0 and 1, yes and no, true and false. Several "
                "targets are each a yes or a no; name one target, or store 0 and 1"
            )
        _check_several(listed([name]), [str(value) for value in values])
    return Target(", ".join(columns), kind.name, several=list(columns))


def _numeric_classes(column: ColumnProfile, kind: tasks.Task) -> tuple[Target, list[str]]:
    name = listed([column.name])
    if column.frequencies is None:
        raise _too_many(name)
    counts = sorted(column.frequencies.items())
    classes = [str(int(value)) if value == int(value) else repr(value) for value, _ in counts]
    _check_several(name, classes)
    target = Target(column.name, kind.name, classes, [value for value, _ in counts], style=column.style)
    return target, _single_rows(name, [c for c, (_, n) in zip(classes, counts, strict=True) if n == 1])


def _text_classes(column: ColumnProfile, labels: LabelCounts, kind: tasks.Task, task: str) -> tuple[Target, list[str]]:
    name = listed([column.name])
    like, share = parsing.share_like(list(labels.counts), list(labels.counts.values()))
    classes = sorted(labels.counts, key=float if (like, share) == ("numbers", 1.0) else None)
    if task == "auto" and not column.typed_text and like == "numbers" and 0.9 <= share < 1:
        row, value = column.unlike.get("number", (1, "text"))
        raise DataError(
            f"the target {name} mixes numbers with text, first in row {row}: {shown(value)}. Correct such rows or "
            f"leave the value empty; if these are classes, say so ({option('task', 'classification')})"
        )
    if len(classes) > MAX_CLASSES or not labels.exact:
        raise _too_many(name)
    _check_several(name, classes)
    return Target(column.name, kind.name, classes), _single_rows(name, [c for c in classes if labels.counts[c] == 1])


def _too_many(name: str) -> DataError:
    return DataError(
        f"the target {name} has more than {MAX_CLASSES} classes. Merge rare classes, or, if it is a quantity, choose "
        f"regression ({option('task', 'regression')}); is it an identifier?"
    )


def _check_several(name: str, classes: list[str]) -> None:
    if len(classes) < 2:
        raise DataError(f"the target {name} is {listed(classes)} in every row: there is nothing to predict")


def _check_repeated(name: str, classes: int, rows: int) -> None:
    if classes > _MAX_CLASS_SHARE * rows:
        raise DataError(
            f"the target {name} has {classes} classes in {rows} rows, many with a single row: nothing can be learned "
            f"of a class that is seen once. If it is a quantity, choose regression ({option('task', 'regression')}) "
            f"and say how its numbers are written ({option('decimal', ',')}); if it is an identifier, choose another "
            f"target; else merge rare classes, or insist ({option('task', 'classification')})"
        )


def _single_rows(name: str, classes: list[str]) -> list[str]:
    if not classes:
        return []
    return [f"the target {name} has classes with a single row, too few to learn and to test: {listed(classes)}"]
