"""Columns that say how rows are related, or how much they count: groups, times and weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bedl._utils.errors import DataError, listed, option
from bedl.data import parsing
from bedl.data.columns import Where, finite, labels_of, parsed
from bedl.data.encode import TableEncoder
from bedl.data.profile import ColumnProfile, profile
from bedl.data.readers import Table


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
        raise DataError(f"column {listed([str(roles.weight)])} holds weights: numbers of at least 0, not all of them 0")
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
