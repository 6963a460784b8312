"""Rows → figures: means with their standard errors, ours beside the published ones."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bedl.bench.cells import Preset
from bedl.bench.table import Column, Published, Table
from bedl.rows import Row

__all__ = ["Entry", "Line", "Sheet", "best_of", "mean_and_error", "sheets", "shown"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A figure.

    Attributes:
        mean: over splits and seeds.
        error: its standard error; None: unknown.
        n: how many rows it is of; None: published.
        whole: whether these are all that the table has.
    """

    mean: float
    error: float | None = None
    n: int | None = None
    whole: bool = True


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a sheet: one method under one preset, or one publication.

    Attributes:
        label: the method.
        source: the preset, or where it was published.
        entries: one for each column of the sheet; None: there is none.
        note: what to be careful about.
    """

    label: str
    source: str
    entries: tuple[Entry | None, ...]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Sheet:
    """Figures that are shown together.

    Attributes:
        title: what they are.
        head: names of the columns.
        columns: what each column shows.
        lines: our lines, each followed by what was published of the same method, then what was published of others.
    """

    title: str
    head: tuple[str, ...]
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        lines = [dataclasses.asdict(line) for line in self.lines]
        return {"title": self.title, "columns": list(self.head), "lines": lines}


def sheets(table: Table, rows: Iterable[Row]) -> list[Sheet]:
    """The sheets of a table; those without any figure of ours are left out."""
    found = _figures(table, rows)
    datasets = [name for name in table.datasets if any(key[0] == name for key in found)]
    if table.across == "datasets":
        made = [_by_dataset(table, found, datasets, column) for column in table.columns]
    else:
        made = [_by_metric(table, found, name) for name in datasets]
    return [sheet for sheet in made if any(entry is not None for line in sheet.lines for entry in line.entries)]


def best_of(sheet: Sheet) -> list[list[Line]]:
    """For each column, the best of our lines with the most rows, and those that read the same; none of a single one."""
    found: list[list[Line]] = []
    for number, column in enumerate(sheet.columns):
        most = max((entry.n or 0 for line in sheet.lines if (entry := line.entries[number]) is not None), default=0)
        ours = [
            (_badness(entry.mean, column), line)
            for line in sheet.lines
            if (entry := line.entries[number]) is not None and entry.n == most and math.isfinite(entry.mean)
        ]
        texts = [shown(line.entries[number], column) for _, line in sorted(ours, key=lambda pair: pair[0])]
        found.append([line for _, line in ours if len(ours) > 1 and shown(line.entries[number], column) == texts[0]])
    return found


def _badness(value: float, column: Column) -> float:
    if column.better == "target":
        return abs(value - (column.target or 0.0))
    return -value if column.better == "higher" else value


def mean_and_error(values: Iterable[float]) -> tuple[float, float | None]:
    """Mean and its standard error, which one value alone does not have.

    >>> mean_and_error([1.0, 3.0]), mean_and_error([2.0])
    ((2.0, 1.0), (2.0, None))
    """
    array = np.asarray(list(values), dtype=np.float64)
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None
    return float(array.mean()), error


def shown(entry: Entry | None, column: Column) -> str:
    """A figure as text; in parentheses, of how many splits it is, where that is not all.

    >>> column = Column("log_likelihood", "log-likelihood", "higher")
    >>> shown(Entry(-2.431, 0.062, 20), column), shown(Entry(-2.4, None, 1, whole=False), column)
    ('−2.43 ± 0.06', '−2.40 (1)')
    """
    if entry is None:
        return "–"
    text = _number(entry.mean, column)
    if entry.error is not None:
        text += f" ± {_number(entry.error, column, unit=False)}"
    return f"{text} ({entry.n})" if entry.n is not None and not entry.whole else text


def _number(value: float, column: Column, unit: bool = True) -> str:
    from bedl.report.text import number

    if not math.isfinite(value):
        return "–"
    value = 100 * value if column.share else value
    plain = number(value, 4 if unit else 2) if column.places is None else f"{value:.{column.places}f}"
    return plain.replace("-", "−") + ("\u00a0%" if column.share and unit else "")


# -- from rows to figures ----------------------------------------------------------------------------
Figures = dict[tuple[str, str, str], dict[str, Entry]]  # (data set, method, preset) → metric → figure


def _figures(table: Table, rows: Iterable[Row]) -> Figures:
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["table"] == table.name and not row.get("failed") and row["dataset"] in table.datasets:
            groups[row["dataset"], row["method"], row["preset"]].append(row)
    return {key: _entries(members, table.splits(key[0])) for key, members in groups.items()}


def _entries(rows: Sequence[Row], splits: int) -> dict[str, Entry]:
    whole = len({row["split"] for row in rows}) >= splits
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row["metrics"].items():
            found[name].append(math.nan if value is None else float(value))
    return {name: Entry(*mean_and_error(values), len(values), whole) for name, values in found.items()}


def _by_dataset(table: Table, found: Figures, datasets: Sequence[str], column: Column) -> Sheet:
    lines = []
    published = [entry for entry in table.published() if entry.metric == column.metric]
    for method, preset in _order(table, found):
        own = tuple(found.get((name, method, preset), {}).get(column.metric) for name in datasets)
        lines.append(Line(method, preset, own))
    return Sheet(column.label, tuple(datasets), (column,) * len(datasets), _beside(lines, published, datasets))


def _by_metric(table: Table, found: Figures, dataset: str) -> Sheet:
    known = {name for key, own in found.items() if key[0] == dataset for name in own}
    columns = tuple(column for column in table.columns if column.metric in known)
    shown_metrics = [column.metric for column in columns]
    lines = []
    for method, preset in _order(table, found):
        if (dataset, method, preset) in found:
            own = found[dataset, method, preset]
            lines.append(Line(method, preset, tuple(own.get(name) for name in shown_metrics)))
    by_label: dict[tuple[str, str | None, str], dict[str, tuple[float, float | None]]] = defaultdict(dict)
    for entry in table.published():
        if dataset in entry.values:
            by_label[entry.label, entry.method, entry.note][entry.metric] = entry.values[dataset]
    published = [
        Published(label, "", {name: values[name] for name in shown_metrics if name in values}, method, note)
        for (label, method, note), values in by_label.items()
    ]
    head = tuple(column.label for column in columns)
    return Sheet(dataset, head, columns, _beside(lines, published, shown_metrics))


def _order(table: Table, found: Figures) -> list[tuple[str, Preset]]:
    """Methods and presets of which there are figures, as the table lists them."""
    known = dict.fromkeys((*(name for names in table.methods.values() for name in names), *table.more))
    there = {(method, preset) for _, method, preset in found}
    return [(method, preset) for method in known for preset in table.methods if (method, preset) in there]


def _beside(lines: Sequence[Line], published: Sequence[Published], names: Sequence[str]) -> tuple[Line, ...]:
    """Ours in order, each method followed by what was published of it, then the rest of what was published."""
    waiting, made = list(published), []
    for number, line in enumerate(lines):
        made.append(line)
        if number + 1 == len(lines) or lines[number + 1].label != line.label:
            made += [_published(entry, names) for entry in waiting if entry.method == line.label]
            waiting = [entry for entry in waiting if entry.method != line.label]
    return (*made, *(_published(entry, names) for entry in waiting))


def _published(entry: Published, names: Sequence[str]) -> Line:
    values = (entry.values.get(name) for name in names)
    figures = tuple(None if value is None else Entry(*value) for value in values)
    return Line(entry.label, "published" if entry.note == "the paper" else "elsewhere", figures, entry.note)
