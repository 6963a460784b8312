"""A table's columns → the numbers a network takes: decided once on the training table, the same ever after.

Also the columns that say how rows are related, and encoded tables on disk.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import IO, Any

import numpy as np
import pyarrow as pa

from bedl._utils.errors import DataError, DataFileError, listed, option
from bedl.data import parsing
from bedl.data.columns import Column, Where, check_types, column_from_dict, column_to_dict, finite, labels_of, parsed
from bedl.data.parsing import with_missing
from bedl.data.profile import ColumnProfile, Progress, count_labels, count_words, infer_encoding, is_free_text, profile
from bedl.data.readers import BATCH_ROWS, Table
from bedl.data.target import Target, decide_target
from bedl.data.unknown import DRAWS, UnknownValues, possible_rows
from bedl.evaluation import tasks

FORMAT = "bedl.data.encoder"
VERSION = 3
FOREIGN = ("error", "clip", "keep")


class TableEncoder:
    """How a table is read: which columns, as what, and the target.

    Attributes:
        columns: raw columns that the features are made of.
        feature_names: names of the encoded features, in order.
        target, target_columns: the target column, or the names of several in a row, and these as a list.
        task: the name of the task, see `bedl.evaluation.tasks`.
        classes, names: class names or None; what the entries of a prediction are called, classes or target columns.
        notes: sentences on what was done with the columns.
        n_rows: rows of the training table that have a target.
        image_shape: shape of an image, if the features are its pixels.
        na_values: what stands for a missing value beside the usual.

    Example:
        >>> from bedl.data import open_table
        >>> encoder = TableEncoder.fit(open_table("iris"), target="target")
        >>> encoder.task, encoder.classes, encoder.n_features
        ('classification', ['setosa', 'versicolor', 'virginica'], 4)
    """

    def __init__(
        self,
        columns: Sequence[Column],
        target: Target,
        unused: Collection[str] = (),
        notes: Sequence[str] = (),
        n_rows: int = 0,
        drop_missing_target: bool = False,
        image_shape: tuple[int, ...] | None = None,
        na_values: Sequence[str] = (),
    ):
        self._columns, self._target, self._unused = list(columns), target, list(unused)
        self.notes, self.n_rows = list(notes), n_rows
        self.drop_missing_target, self.image_shape = drop_missing_target, image_shape
        self.na_values = list(na_values)
        self.columns = [column.name for column in columns]
        self.feature_names = _distinct([name for column in columns for name in column.features])
        self.n_features = len(self.feature_names)
        self.target, self.task, self.classes = target.name, target.task, target.classes
        self.target_columns, self.names, self.target_shape = target.columns, target.names, target.shape

    @classmethod
    def fit(
        cls,
        table: Table,
        target: str | Sequence[str],
        task: str = "auto",
        ignore: Collection[str] = (),
        categorical: Collection[str] = (),
        max_categories: int = 100,
        drop_missing_target: bool = False,
        progress: Progress | None = None,
        decimal: str = "auto",
        date_order: str = "auto",
        na_values: Collection[str] = (),
    ) -> TableEncoder:
        """Decides how to read the table, in one streaming pass, and a second one over columns of text.

        Args:
            table: the table to learn from.
            target: the column to predict; or several, each of 0 and 1, yes and no, true and false.
            task: the name of a task, or "auto": text, booleans and few distinct whole numbers are classes.
            ignore: columns to leave out.
            categorical: columns whose values are labels, even if they look like numbers.
            max_categories: the most frequent ones get features of their own, the rest share one.
            drop_missing_target: leave out rows without a target, instead of an error.
            progress: called with the number of rows read, after every batch.
            decimal: "." or ",", the mark before the decimals of numbers in text; "auto" finds out.
            date_order: "dmy" or "mdy", whether day or month comes first in dates such as 01/02/2023; "auto" finds out.
            na_values: texts, or numbers such as "-999", that stand for a missing value, in any column.
        """
        if date_order not in ("auto", "dmy", "mdy"):
            raise DataError(f"date_order is 'auto', 'dmy' or 'mdy', not {date_order!r}")
        na_values = [str(value) for value in na_values]
        table = table.with_missing(na_values)
        if decimal not in ("auto", ".", ","):
            raise DataError(f"decimal is 'auto', '.' or ',', not {decimal!r}")
        targets = [target] if isinstance(target, str) else list(target)
        _check_arguments(table, targets, task, ignore, categorical)
        names = [name for name in table.columns if name not in ignore]
        numeric = task != "auto" and tasks.get(task).column == "number"
        surveys = profile(
            table, names, set(categorical) - set(targets), targets, numeric, progress, decimal, date_order
        )
        own = {name: surveys.pop(name) for name in targets}
        text = [name for name, column in surveys.items() if column.kind == "category"]
        text += [name for name, column in own.items() if column.kind in ("category", "boolean")]
        counts = count_labels(table, text, progress)
        decided, notes = decide_target(own, counts, task, drop_missing_target)
        columns: list[Column] = []
        keep_constant = table.image_shape is not None  # an image keeps its corners
        free = [
            n
            for n, c in surveys.items()
            if n in text and n not in categorical and is_free_text(c, counts[n], max_categories)
        ]
        words = count_words(table, free, progress)
        for name, column in surveys.items():
            made, said = infer_encoding(
                column, counts.get(name), words.get(name), max_categories, name in categorical, keep_constant
            )
            columns += [made] if made else []
            notes += said
        if not columns:
            raise DataError(
                f"{table.name} has no column left to predict {listed(targets)} from"
                + "".join(f"; {note}" for note in notes)
                + ". Add a column that tells something about the target"
            )
        used = {column.name for column in columns}
        unused = [name for name in table.columns if name not in used and name not in targets]
        shape = table.image_shape if len(columns) == np.prod(table.image_shape or (0,)) else None
        rows = min(column.present for column in own.values())
        return cls(columns, decided, unused, notes, rows, drop_missing_target, shape, na_values)

    @property
    def encoded_columns(self) -> Sequence[Column]:
        """How each column becomes features, in the order of these."""
        return tuple(self._columns)

    # -- batches → numbers ------------------------------------------------------------------------
    def features(
        self,
        batch: pa.RecordBatch,
        unknown: UnknownValues | None = None,
        extra: str = "error",
        first_row: int = 0,
        foreign: str = "error",
    ) -> np.ndarray:
        """The features of a batch; its columns are found by name, in any order. float32, shape (rows, n_features)

        Args:
            unknown: counts categories, and missing values in columns without, that training did not see; their features
                are NaN, see `bedl.data.unknown`. None: they are errors.
            extra: "ignore" leaves out columns that the training table did not have.
            first_row: how many rows came before, for error messages.
            foreign: what to do about numbers absurdly far from those of training: "error", "clip" with a warning, or
                "keep".
        """
        if foreign not in FOREIGN:
            raise DataError(f"on_foreign_values is one of {listed(list(FOREIGN))}, not {foreign!r}")
        if extra not in ("error", "ignore"):
            raise DataError(f"extra is either 'error' or 'ignore', not {extra!r}")
        self.check_columns(batch.schema.names, extra)
        return _encoded(
            with_missing(batch, self.na_values), self._columns, self.n_features, unknown, first_row, foreign
        )

    def possible_rows(self, x: np.ndarray, draws: int = DRAWS) -> np.ndarray:
        """Values that training saw in place of unknown ones, see `bedl.data.unknown`.

        shape: (n, features) -> (draws, n, features)
        """
        return possible_rows(x, self._columns, draws)

    def targets(self, batch: pa.RecordBatch, first_row: int = 0) -> np.ndarray:
        """The targets of a batch: values or codes of the classes, as the task stores them. shape: (rows, *targets)"""
        self._check_target(batch.schema.names)
        return self._target.encode(with_missing(batch, self.na_values), first_row)

    def labelled(self, batch: pa.RecordBatch) -> np.ndarray:
        """True where the target is not missing. shape: (rows,)"""
        self._check_target(batch.schema.names)
        return ~self._target.missing(with_missing(batch, self.na_values))

    def has_target(self, columns: Collection[str]) -> bool:
        """Whether every target is among these columns."""
        return set(self.target_columns) <= set(columns)

    def check_columns(self, names: Sequence[str], extra: str = "error") -> None:
        """An error unless a table with these columns can be encoded."""
        absent = [name for name in self.columns if name not in names]
        if absent:
            raise DataError(
                f"the table lacks {listed(absent)}, which the model was trained with. Add the column(s), with empty "
                f"values if they are not known and training had such, or train again without "
                f"({option('ignore', absent[:1])})"
            )
        if len(set(names)) < len(names):
            raise DataError("the table has several columns of the same name. Give each column a name of its own")
        new = sorted(set(names) - {*self.columns, *self._unused, *self.target_columns})
        if new and extra == "error":
            raise DataError(
                f"training saw no column(s) {listed(new)}. Leave them out of the table, or ignore them "
                f"({option('extra', 'ignore')})"
            )

    def _check_target(self, names: Sequence[str]) -> None:
        if not self.has_target(names):
            absent = [name for name in self.target_columns if name not in names]
            raise DataError(f"the table lacks the target {listed(absent)}. Add the column to compare with it")

    # -- as JSON ----------------------------------------------------------------------------------
    def to_dict(self) -> dict[str, Any]:
        """Everything, as values that JSON knows."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "columns": [column_to_dict(column) for column in self._columns],
            "target": self._target.to_dict(),
            "unused": self._unused,
            "notes": self.notes,
            "n_rows": self.n_rows,
            "drop_missing_target": self.drop_missing_target,
            "image_shape": None if self.image_shape is None else list(self.image_shape),
            "na_values": self.na_values,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TableEncoder:
        """The inverse of `to_dict`."""
        version = fields.get("version") if isinstance(fields, Mapping) else None
        if version is None or fields.get("format") != FORMAT or not isinstance(version, int):
            raise DataError("this is no description of a table encoder. Was the file edited, or is it another one?")
        if version > VERSION:
            raise DataError(
                f"the table encoder was written by a newer bedl (format {version}; this one reads up to {VERSION}). "
                "Upgrade: pip install --upgrade bedl"
            )
        try:
            shape, na_values = fields["image_shape"], fields.get("na_values", [])  # earlier versions have none
            if not isinstance(na_values, list) or not all(isinstance(value, str) for value in na_values):
                raise TypeError(f"na_values is {str(na_values)[:40]}")
            check_types({key: fields[key] for key in _TYPES}, _TYPES)
            if shape is not None and math.prod(shape) != len(fields["columns"]):
                raise TypeError(f"image_shape is {shape} for {len(fields['columns'])} columns")
            return cls(
                [column_from_dict(column) for column in fields["columns"]],
                Target.from_dict(fields["target"]),
                unused=fields["unused"],
                notes=fields["notes"],
                n_rows=fields["n_rows"],
                drop_missing_target=fields["drop_missing_target"],
                image_shape=None if shape is None else tuple(shape),
                na_values=na_values,
            )
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DataError(f"the description of the table encoder is damaged: {error!r}. Train again") from None


_LIST = (list, NoneType)
_TYPES: dict[str, tuple[type, ...]] = {
    "unused": (list,), "notes": (list,), "n_rows": (int,), "drop_missing_target": (bool,), "image_shape": _LIST
}  # fmt: skip


def _check_arguments(
    table: Table, targets: Sequence[str], task: str, ignore: Collection[str], categorical: Collection[str]
) -> None:
    known = ["auto", *tasks.names()]
    if task not in known:
        raise DataError(f"the task is one of {listed(known)}, not {task!r}")
    if not targets or len(set(targets)) < len(targets):
        raise DataError(f"the targets are {listed(list(targets))}: name at least one, and each once")
    for what, names in (("target", targets), ("ignored", ignore), ("categorical", categorical)):
        unknown = [name for name in names if name not in table.columns]
        if unknown:
            near = get_close_matches(unknown[0], table.columns, n=1)
            hint = f" Did you mean {listed(near)}?" if near else ""
            raise DataError(
                f"{table.name} has no column {listed(unknown)} (named as {what}).{hint} Choose among "
                f"{listed(table.columns, 20)}{_unparted(table.columns, unknown[0])}"
            )
    both = [name for name in targets if name in ignore]
    if both:
        raise DataError(f"column {listed(both)} cannot be the target and be ignored. Leave out one of the two")


def _unparted(columns: Sequence[str], name: str) -> str:
    """What may be wrong if there is one column, and its name holds the one that was asked for."""
    if len(columns) > 1 or name not in columns[0]:
        return ""
    return ". Are its columns parted by something else than commas, semicolons, tabulators or |? Save it with commas"


def _distinct(names: list[str]) -> list[str]:
    """The same names, numbered where they repeat: a column may be called like the feature of another."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return result


def _encoded(
    batch: pa.RecordBatch,
    columns: Sequence[Column],
    n_features: int,
    unknown: UnknownValues | None,
    first_row: int,
    foreign: str,
) -> np.ndarray:
    out, start = np.empty((len(batch), n_features), dtype=np.float32), 0
    for column in columns:
        end = start + len(column.features)
        values = parsing.plain(batch.column(column.name))
        column.encode(values, out[:, start:end], Where(column.name, first_row), unknown, foreign)
        start = end
    return out


# Columns of a table without its target → numbers: what estimators do with text, dates and missing values.


MAX_CATEGORIES = 100  # of a column; the rest share a feature


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
        surveys = profile(table, table.columns, (), (), numeric=False)
        counts = count_labels(table, [name for name, column in surveys.items() if column.kind == "category"])
        words = count_words(table, [n for n in counts if is_free_text(surveys[n], counts[n], MAX_CATEGORIES)])
        columns, notes = [], []
        for name, column in surveys.items():
            made, said = infer_encoding(
                column, counts.get(name), words.get(name), MAX_CATEGORIES, forced=False, keep_constant=False
            )
            columns += [made] if made else []
            notes += said
        if not columns:
            raise DataError("there is no column left to predict from" + "".join(f"; {note}" for note in notes))
        return cls(columns, notes)

    def possible_rows(self, x: np.ndarray, draws: int = DRAWS) -> np.ndarray:
        """Values that training saw in place of unknown ones, see `bedl.data.unknown`.

        shape: (n, features) -> (draws, n, features)
        """
        return possible_rows(x, self.columns, draws)

    def __call__(self, table: Table, unknown: UnknownValues | None = None) -> np.ndarray:
        """The features of all rows. shape: (rows, features), float32

        Args:
            table: with the columns of the training table; others are not looked at.
            unknown: counts what training did not see, as in `TableEncoder.features`; None: that is an error.
        """
        absent = [column.name for column in self.columns if column.name not in table.columns]
        if absent:
            raise DataError(f"X lacks {listed(absent)}, which the model was trained with. Add the column(s)")
        parts: list[np.ndarray] = []
        for batch in table.batches(columns=[column.name for column in self.columns]):
            first_row = sum(len(part) for part in parts)
            parts.append(_encoded(batch, self.columns, len(self.feature_names), unknown, first_row, "keep"))
        return np.concatenate(parts)

    # -- as JSON ----------------------------------------------------------------------------------
    def to_dict(self) -> dict[str, Any]:
        """Everything, as values that JSON knows."""
        return {"columns": [column_to_dict(column) for column in self.columns], "notes": self.notes}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> FeatureEncoder:
        """The inverse of `to_dict`."""
        return cls([column_from_dict(column) for column in fields["columns"]], [str(note) for note in fields["notes"]])


# Columns that say how rows are related, or how much they count: groups, times and weights.


@dataclass(frozen=True)
class Roles:
    """Columns with a part to play in a fit; None: there is no such column.

    Attributes:
        group: rows of a patient, house, … belong together; it is no feature.
        time: when rows were observed, a number or a date; it stays a feature.
        weight: how much each row counts; it is no feature.
    """

    group: str | None = None
    time: str | None = None
    weight: str | None = None

    @property
    def no_features(self) -> list[str]:
        """The columns among them that are not learned from."""
        return [name for name in (self.group, self.weight) if name is not None]

    def check(self, table: Table) -> None:
        """An error unless the table has these columns."""
        if self.group is not None and self.time is not None:
            raise DataError(
                "give a group or a time, not both: new rows are of new groups, or of the next period "
                f"({option('group', self.group)}, {option('time', self.time)})"
            )
        for role in ("group", "time", "weight"):
            name = getattr(self, role)
            if name is not None and name not in table.columns:
                raise DataError(
                    f"{table.name} has no column {listed([name])} (named as {role}). Choose among "
                    f"{listed(table.columns, 20)}"
                )


def read_roles(table: Table, encoder: TableEncoder, roles: Roles) -> dict[str, np.ndarray]:
    """What these columns hold in the rows that are learned from: "groups", "order" and "weight". shapes: (n,)

    Groups are numbered in the order in which they appear, times are numbers or days.
    """
    table = table.with_missing(encoder.na_values)
    numbers = {name for name in (roles.time, roles.weight) if name is not None}
    profiles = profile(table, sorted(numbers), (), (), numeric=True) if numbers else {}
    numbered: dict[str, int] = {}
    found: dict[str, list[np.ndarray]] = {}
    for batch, first_row in _batches(table, encoder, [*numbers, *([roles.group] if roles.group else [])]):
        if roles.group is not None:
            labels = labels_of(parsing.plain(batch.column(roles.group)), Where(roles.group, first_row))
            codes = [numbered.setdefault(label, len(numbered)) for label in labels.to_pylist()]
            missing = np.asarray(labels.is_null().to_numpy(zero_copy_only=False))
            found.setdefault("groups", []).append(_present(np.array(codes), missing, Where(roles.group, first_row)))
        for name, key in ((roles.time, "order"), (roles.weight, "weight")):
            if name is not None:
                values = _values(batch, profiles[name], Where(name, first_row), key)
                found.setdefault(key, []).append(values)
    result = {key: np.concatenate(parts) for key, parts in found.items()}
    weight = result.get("weight", np.ones(1))
    if (weight < 0).any() or not weight.any():
        raise DataError(
            f"column {listed([str(roles.weight)])} cannot hold weights: name a column of numbers from 0 on, not all 0"
        )
    if "groups" in result and len(numbered) < 2:
        raise DataError(f"column {listed([str(roles.group)])} holds one group only. Leave out {option('group')}")
    return result


def _batches(table: Table, encoder: TableEncoder, names: list[str]) -> Iterator[tuple[pa.RecordBatch, int]]:
    first_row = 0
    wanted = dict.fromkeys([*names, *(encoder.target_columns if encoder.drop_missing_target else [])])
    for batch in table.batches(columns=list(wanted)):
        yield batch.filter(pa.array(encoder.labelled(batch))) if encoder.drop_missing_target else batch, first_row
        first_row += len(batch)


def _values(batch: pa.RecordBatch, column: ColumnProfile, where: Where, key: str) -> np.ndarray:
    array = parsing.plain(batch.column(column.name))
    if column.kind == "date" and key == "order":
        values = parsed(lambda part: parsing.as_days(part, column.style), array, where, "a date")
    elif column.kind == "number":
        values = finite(parsed(lambda part: parsing.as_numbers(part, column.style), array, where, "a number"), where)
    else:
        kinds = "numbers or dates" if key == "order" else "numbers"
        raise DataError(f"column {listed([column.name])} does not hold {kinds}. Name another column")
    return _present(values, np.isnan(values), where)


def _present(values: np.ndarray, missing: np.ndarray, where: Where) -> np.ndarray:
    if missing.any():
        raise DataError(f"{where.row(int(missing.argmax()))}: the value is missing, and each row needs one. Fill it in")
    return values


# Encoded batches, one after the other, and encoded tables on disk for what does not fit into memory.


def encoded_batches(
    table: Table,
    encoder: TableEncoder,
    rows: int = BATCH_ROWS,
    unknown: UnknownValues | None = None,
    extra: str = "error",
    with_target: bool = True,
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """(features, targets) of each batch; targets are None without `with_target`.

    Rows without a target are left out if the encoder was told so when it was fitted.
    """
    first_row = 0
    encoder.check_columns(table.columns, extra)
    for batch in table.batches(rows):
        features = encoder.features(batch, unknown, extra, first_row)
        targets = None
        if with_target and encoder.drop_missing_target:
            kept = encoder.labelled(batch)
            # Rows keep their numbers in messages unless some are left out within this very batch.
            features, targets = features[kept], encoder.targets(batch.filter(kept), first_row)
        elif with_target:
            targets = encoder.targets(batch, first_row)
        first_row += len(batch)
        yield features, targets


def encode_to_memmap(
    table: Table, encoder: TableEncoder, folder: str | PathLike[str], progress: Progress | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Writes the encoded table to features.npy and targets.npy, and opens both, memory-mapped, to read.

    Memory holds one batch at a time, whatever the size of the table. The files appear when they are complete.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".encoding-") as temporary:
            parts = _write(table, encoder, Path(temporary), progress)
            for part in parts:
                os.replace(part, folder / part.name)
    except DataFileError:
        raise
    except OSError as error:
        raise DataFileError(f"{folder} cannot be written to: {error}. Choose another folder") from None
    features, targets = (np.load(folder / part.name, mmap_mode="r") for part in parts)
    return features, targets


def _write(table: Table, encoder: TableEncoder, folder: Path, progress: Progress | None) -> tuple[Path, Path]:
    """Rows are appended batch by batch, as text files do not state their number; the headers are completed last."""
    paths = folder / "features.npy", folder / "targets.npy"
    with open(paths[0], "w+b") as x_file, open(paths[1], "w+b") as y_file:
        target_type = np.dtype(tasks.get(encoder.task).dtype)
        n = 0
        for complete in (False, True):
            _write_header(x_file, (n, encoder.n_features), np.dtype(np.float32))
            _write_header(y_file, (n, *encoder.target_shape), target_type)
            if complete:
                break
            for features, targets in encoded_batches(table, encoder):
                assert targets is not None
                x_file.write(np.ascontiguousarray(features).data)
                y_file.write(np.ascontiguousarray(targets).data)
                n += len(features)
                if progress is not None:
                    progress(len(features))
    return paths


def _write_header(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype) -> None:
    file.seek(0)
    # NumPy pads the header so that the first axis can grow to any length in place.
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
