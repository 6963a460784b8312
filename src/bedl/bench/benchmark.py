"""What a table is made of: cells, and what running one comes to."""

from __future__ import annotations

import dataclasses
import difflib
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Literal

import numpy as np

from bedl._utils.errors import BEDLError
from bedl._utils.io import Row

Preset = Literal["paper", "authors", "best"]
PRESETS: tuple[Preset, ...] = ("paper", "authors", "best")
BOTH: tuple[Preset, ...] = ("paper", "best")  # those that every method has; "authors" is about BEDL alone
KEY = ("table", "dataset", "method", "preset", "split", "seed")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run: a method on one split of a data set.

    Attributes:
        table: name of the table.
        dataset, method: as the table calls them.
        preset: whose settings: those of the paper's text, of its authors' public code, or ours.
        split: number of the split, from 0; a table without splits has the split 0.
        seed: of everything that is drawn.

    Example:
        >>> Cell("uci", "boston", "bedl", "paper", split=3).fields["split"]
        3
    """

    table: str
    dataset: str
    method: str
    preset: Preset
    split: int = 0
    seed: int = 0

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its row that say which cell it is."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"{self.dataset} {self.method} ({self.preset}, split {self.split})"


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a cell came to.

    Attributes:
        metrics: numbers by name: ``log_likelihood``, ``rmse``, ``crps``, ``coverage``, ``error``, …
        settings: what was run, as JSON can hold it; ``deviations`` are sentences on where it is not as the preset says.
        curves: what plots are drawn from, lists of numbers by name.
    """

    metrics: Mapping[str, float]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    curves: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which cells of a table are wanted.

    Attributes:
        presets: settings.
        datasets, methods: names; None: all of the table, and its own methods, without those that are run on request.
        splits: their numbers; None: all.
        seeds: of everything that is drawn.
    """

    presets: Sequence[Preset] = ("paper",)
    datasets: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    splits: Sequence[int] | None = None
    seeds: Sequence[int] = (0,)

    def keeps(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is of what is wanted, of whatever seed; where no methods are named, of any method.

        Example:
            >>> Choice(methods=["bedl"]).keeps(Cell("uci", "boston", "bedl", "paper").fields)
            True
        """
        named = {"dataset": self.datasets, "method": self.methods, "split": self.splits, "preset": self.presets}
        return all(wanted is None or row[name] in wanted for name, wanted in named.items())


# A table: its cells, how one is run, and how its figures are laid out.
#
# A new table is one file in `bedl.bench.tables` with a subclass of `Table`, whose name is the file's. It says which
# data sets, methods and splits there are, runs one cell (`work`), and names the metrics to show (`columns`). The rest,
# such as rows on disk, processes, progress, means and pages, is the same for all.


Root = str | PathLike[str] | None


class BenchError(BEDLError, ValueError):
    """There is no such table, data set or method, or it cannot be run as asked for."""


@dataclasses.dataclass(frozen=True)
class Column:
    """A metric that is shown.

    Attributes:
        metric: its name in the rows.
        label: its name for people.
        better: whether "higher" or "lower" figures are better, or those near a "target".
        places: decimals; None: four significant digits.
        share: whether it is a share of 1, shown in percent.
        target: what it should be near.
    """

    metric: str
    label: str
    better: Literal["higher", "lower", "target"]
    places: int | None = 2
    share: bool = False
    target: float | None = None


@dataclasses.dataclass(frozen=True)
class Published:
    """Figures from a publication, to stand beside ours.

    Attributes:
        label: whose they are.
        metric: what they are, by the name of a column.
        values: data set → (mean, standard error), the latter None where it is not given.
        method: our method of the same kind; None: there is none.
        note: where they are from, and what to be careful about.
    """

    label: str
    metric: str
    values: dict[str, tuple[float, float | None]]
    method: str | None = None
    note: str = ""


class Table(ABC):
    """Base of the tables.

    Attributes:
        name: of the table, and of its file.
        title: what it shows, in a line.
        about: how to read it, a sentence or two.
        datasets: in the order in which they are run: the quick ones first.
        methods: what is run if nobody says, by preset.
        more: methods that are run on request.
        columns: the metrics that are shown, the first one being the headline.
        across: what stands in the columns of a sheet: "datasets", one sheet for each metric, or "metrics", one sheet
            for each data set.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str] = ""
    datasets: ClassVar[tuple[str, ...]]
    methods: ClassVar[dict[Preset, tuple[str, ...]]]
    more: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[tuple[Column, ...]]
    across: ClassVar[Literal["datasets", "metrics"]] = "datasets"

    # -- what a table says ------------------------------------------------------------------------
    @abstractmethod
    def work(self, cell: Cell, root: Root = None) -> RunResult:
        """Run one cell. `root` is where data sets are; everything random follows from `cell.split` and `cell.seed`."""

    def splits(self, dataset: str) -> int:
        """How many splits a data set has."""
        return 1

    def check(self, choice: Choice, root: Root = None) -> None:
        """Refuse before any work what cannot be run here: data that are missing, say."""
        return

    def published(self) -> Sequence[Published]:
        """Figures to show beside ours."""
        return ()

    def sections(self, rows: Sequence[Row]) -> Sequence[str]:
        """Plots for the page, HTML made of `bedl.evaluation.report`'s parts, from the rows that did not fail."""
        return ()

    # -- cells that are one run -------------------------------------------------------------------
    def together(self, cells: Sequence[Cell]) -> Iterable[Sequence[Cell]]:
        """The cells in groups, each of which one call of `work_together` runs. By default each by itself."""
        return ([cell] for cell in cells)

    def work_together(self, cells: Sequence[Cell], root: Root = None) -> list[RunResult]:
        """Run a group: replicas of one vectorised run, say."""
        return [self.work(cell, root) for cell in cells]

    # -- presets that are one run -----------------------------------------------------------------
    def equivalent_runs(self, cell: Cell) -> Sequence[Cell]:
        """The cells of other presets whose run would be the very same: it is done once, for a row each."""
        return ()

    def relabelled(self, cell: Cell, row: Row) -> Row:
        """The row of a cell, from the row of one whose run was the same."""
        return {**row, **cell.fields, "settings": {**row["settings"], "same_run": row["preset"]}}

    # -- the same for all -------------------------------------------------------------------------
    def cells(self, choice: Choice | None = None) -> Iterator[Cell]:
        """The cells that are wanted, data set by data set."""
        choice = Choice() if choice is None else choice
        self._refuse_unknown("data set", choice.datasets, self.datasets)
        known = dict.fromkeys(name for names in self.methods.values() for name in names)
        self._refuse_unknown("method", choice.methods, (*known, *self.more))
        for dataset in self.datasets:
            if choice.datasets is not None and dataset not in choice.datasets:
                continue
            for preset in choice.presets:
                for method in self._methods(preset, choice.methods):
                    for split in range(self.splits(dataset)):
                        if choice.splits is None or split in choice.splits:
                            yield from (Cell(self.name, dataset, method, preset, split, s) for s in choice.seeds)

    def _methods(self, preset: Preset, wanted: Sequence[str] | None) -> list[str]:
        usual = self.methods.get(preset, ())
        more = self.more if preset in BOTH else ()  # the authors' code has its own methods alone
        known = dict.fromkeys((*usual, *more))  # what one preset runs by itself another may on request
        return list(usual) if wanted is None else [name for name in known if name in wanted]

    def _refuse_unknown(self, what: str, wanted: Sequence[str] | None, known: Sequence[str]) -> None:
        for name in wanted or ():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
                raise BenchError(f"table {self.name!r} has no {what} {name!r}; {hint}")


# Rows → figures: means with their standard errors, ours beside the published ones.


@dataclasses.dataclass(frozen=True)
class Estimate:
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
class ResultRow:
    """A line of a sheet: one method under one preset, or one publication.

    Attributes:
        label: the method.
        source: the preset, or where it was published.
        entries: one for each column of the sheet; None: there is none.
        note: what to be careful about.
    """

    label: str
    source: str
    entries: tuple[Estimate | None, ...]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class ResultTable:
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
    lines: tuple[ResultRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        lines = [dataclasses.asdict(line) for line in self.lines]
        return {"title": self.title, "columns": list(self.head), "lines": lines}


def sheets(table: Table, rows: Iterable[Row]) -> list[ResultTable]:
    """The sheets of a table; those without any figure of ours are left out."""
    found = _figures(table, rows)
    datasets = [name for name in table.datasets if any(key[0] == name for key in found)]
    if table.across == "datasets":
        made = [_by_dataset(table, found, datasets, column) for column in table.columns]
    else:
        made = [_by_metric(table, found, name) for name in datasets]
    return [sheet for sheet in made if any(entry is not None for line in sheet.lines for entry in line.entries)]


def best_of(sheet: ResultTable) -> list[list[ResultRow]]:
    """For each column, the best of our lines with the most rows, and those that read the same; none of a single one."""
    found: list[list[ResultRow]] = []
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


def shown(entry: Estimate | None, column: Column) -> str:
    """A figure as text; in parentheses, of how many splits it is, where that is not all.

    >>> column = Column("log_likelihood", "log-likelihood", "higher")
    >>> shown(Estimate(-2.431, 0.062, 20), column), shown(Estimate(-2.4, None, 1, whole=False), column)
    ('−2.43 ± 0.06', '−2.40 (1)')
    """
    if entry is None:
        return "–"
    text = _number(entry.mean, column)
    if entry.error is not None:
        text += f" ± {_number(entry.error, column, unit=False)}"
    return f"{text} ({entry.n})" if entry.n is not None and not entry.whole else text


def _number(value: float, column: Column, unit: bool = True) -> str:
    from bedl.evaluation.report.layout import number

    if not math.isfinite(value):
        return "–"
    value = 100 * value if column.share else value
    plain = number(value, 4 if unit else 2) if column.places is None else f"{value:.{column.places}f}"
    return plain.replace("-", "−") + ("\u00a0%" if column.share and unit else "")


# -- from rows to figures ----------------------------------------------------------------------------
Figures = dict[tuple[str, str, str], dict[str, Estimate]]  # (data set, method, preset) → metric → figure


def _figures(table: Table, rows: Iterable[Row]) -> Figures:
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["table"] == table.name and not row.get("failed") and row["dataset"] in table.datasets:
            groups[row["dataset"], row["method"], row["preset"]].append(row)
    return {key: _entries(members, table.splits(key[0])) for key, members in groups.items()}


def _entries(rows: Sequence[Row], splits: int) -> dict[str, Estimate]:
    whole = len({row["split"] for row in rows}) >= splits
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row["metrics"].items():
            found[name].append(math.nan if value is None else float(value))
    return {name: Estimate(*mean_and_error(values), len(values), whole) for name, values in found.items()}


def _by_dataset(table: Table, found: Figures, datasets: Sequence[str], column: Column) -> ResultTable:
    lines = []
    published = [entry for entry in table.published() if entry.metric == column.metric]
    for method, preset in _order(table, found):
        own = tuple(found.get((name, method, preset), {}).get(column.metric) for name in datasets)
        lines.append(ResultRow(method, preset, own))
    return ResultTable(column.label, tuple(datasets), (column,) * len(datasets), _beside(lines, published, datasets))


def _by_metric(table: Table, found: Figures, dataset: str) -> ResultTable:
    known = {name for key, own in found.items() if key[0] == dataset for name in own}
    columns = tuple(column for column in table.columns if column.metric in known)
    shown_metrics = [column.metric for column in columns]
    lines = []
    for method, preset in _order(table, found):
        if (dataset, method, preset) in found:
            own = found[dataset, method, preset]
            lines.append(ResultRow(method, preset, tuple(own.get(name) for name in shown_metrics)))
    by_label: dict[tuple[str, str | None, str], dict[str, tuple[float, float | None]]] = defaultdict(dict)
    for entry in table.published():
        if dataset in entry.values:
            by_label[entry.label, entry.method, entry.note][entry.metric] = entry.values[dataset]
    published = [
        Published(label, "", {name: values[name] for name in shown_metrics if name in values}, method, note)
        for (label, method, note), values in by_label.items()
    ]
    head = tuple(column.label for column in columns)
    return ResultTable(dataset, head, columns, _beside(lines, published, shown_metrics))


def _order(table: Table, found: Figures) -> list[tuple[str, Preset]]:
    """Methods and presets of which there are figures, as the table lists them."""
    known = dict.fromkeys((*(name for names in table.methods.values() for name in names), *table.more))
    there = {(method, preset) for _, method, preset in found}
    return [(method, preset) for method in known for preset in table.methods if (method, preset) in there]


def _beside(lines: Sequence[ResultRow], published: Sequence[Published], names: Sequence[str]) -> tuple[ResultRow, ...]:
    """Ours in order, each method followed by what was published of it, then the rest of what was published."""
    waiting, made = list(published), []
    for number, line in enumerate(lines):
        made.append(line)
        if number + 1 == len(lines) or lines[number + 1].label != line.label:
            made += [_published(entry, names) for entry in waiting if entry.method == line.label]
            waiting = [entry for entry in waiting if entry.method != line.label]
    return (*made, *(_published(entry, names) for entry in waiting))


def _published(entry: Published, names: Sequence[str]) -> ResultRow:
    values = (entry.values.get(name) for name in names)
    figures = tuple(None if value is None else Estimate(*value) for value in values)
    return ResultRow(entry.label, "published" if entry.note == "the paper" else "elsewhere", figures, entry.note)
