"""A table: its cells, how one is run, and how its figures are laid out.

A new table is one file in `bedl.bench.tables` with a subclass of `Table`, whose name is the file's. It says which data
sets, methods and splits there are, runs one cell (`work`), and names the metrics to show (`columns`). The rest, such as
rows on disk, processes, progress, means and pages, is the same for all.
"""

from __future__ import annotations

import dataclasses
import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import ClassVar, Literal

from bedl.bench.cells import BOTH, Cell, Choice, Outcome, Preset
from bedl.errors import BEDLError
from bedl.rows import Row

__all__ = ["BenchError", "Column", "Published", "Root", "Table"]

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
    def work(self, cell: Cell, root: Root = None) -> Outcome:
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
        """Plots for the page, HTML made of `bedl.report`'s parts, from the rows that did not fail."""
        return ()

    # -- cells that are one run -------------------------------------------------------------------
    def together(self, cells: Sequence[Cell]) -> Iterable[Sequence[Cell]]:
        """The cells in groups, each of which one call of `work_together` runs. By default each by itself."""
        return ([cell] for cell in cells)

    def work_together(self, cells: Sequence[Cell], root: Root = None) -> list[Outcome]:
        """Run a group: replicas of one vectorised run, say."""
        return [self.work(cell, root) for cell in cells]

    # -- presets that are one run -----------------------------------------------------------------
    def same_runs(self, cell: Cell) -> Sequence[Cell]:
        """The cells of other presets whose run would be the very same: it is done once, for a row each."""
        return ()

    def retold(self, cell: Cell, row: Row) -> Row:
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
