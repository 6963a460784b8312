"""UCI's regression sets on their standard splits: the paper's table of log-likelihoods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np

from bedl._utils.io import Row
from bedl.bench.benchmark import Cell, Choice, Published, Root, RunResult, Table
from bedl.bench.presets import uci_log_likelihoods
from bedl.bench.regression import COLUMNS, PAPER, Parts, alike, equivalent_runs, fit_and_score, relabelled

FOLDERS = {
    "boston": "bostonHousing", "energy": "energy", "concrete": "concrete", "wine": "wine-quality-red",
    "wine-distinct": "wine-quality-red", "kin8nm": "kin8nm", "power": "power-plant", "naval": "naval-propulsion-plant",
    "protein": "protein-tertiary-structure",
}  # fmt: skip
LARGE = ("kin8nm", "power", "naval", "protein")


class UCI(Table):
    """Eight sets, 20 splits each, 5 of protein."""

    name = "uci"
    title = "UCI regression, standard splits"
    about = (
        "Scores of the test part (a tenth of the rows), mean ± standard error over the splits. A quarter of wine's "
        "test rows stand in its training part, too: wine-distinct leaves those out of the test part."
    )
    datasets = tuple(FOLDERS)
    methods = {"paper": PAPER, "authors": ("bedl", "bedl+reg"), "best": ("auto", *PAPER)}  # noqa: RUF012
    more = ("deterministic", "ensemble", "evidential-regression", "fast-dropout", "laplace", "sngp", "neural-process")
    columns = COLUMNS

    def splits(self, dataset: str) -> int:
        return 5 if dataset == "protein" else 20

    def check(self, choice: Choice, root: Root = None) -> None:
        check_folders([name for name in self.datasets if choice.datasets is None or name in choice.datasets], root)

    def work(self, cell: Cell, root: Root = None) -> RunResult:
        return self.work_together([cell], root)[0]

    def together(self, cells: Sequence[Cell]) -> Iterable[Sequence[Cell]]:
        return alike(cells, lambda cell: most_together(cell.method, cell.dataset))

    def work_together(self, cells: Sequence[Cell], root: Root = None) -> list[RunResult]:
        return fit_and_score(cells, [_parts(cell, root) for cell in cells])

    def equivalent_runs(self, cell: Cell) -> Sequence[Cell]:
        return equivalent_runs(cell)

    def relabelled(self, cell: Cell, row: Row) -> Row:
        return relabelled(cell, row)

    def published(self) -> Sequence[Published]:
        return uci_log_likelihoods()


def most_together(method: str, dataset: str) -> int:
    """How many splits are one run: networks gain by it, and of small sets most."""
    if method in ("auto", "distilled", "pbp", "sparse-gp"):
        return 1
    return 20 if dataset not in LARGE else 5


def check_folders(datasets: Sequence[str], root: Root) -> None:
    """Refuse data sets that are not there, with what to do."""
    from bedl.data import load_uci, uci_names

    there = uci_names(root)
    for name in datasets:
        if FOLDERS[name] not in there:
            load_uci(FOLDERS[name], root=root)  # raises, with the way to get it


def _parts(cell: Cell, root: Root) -> Parts:
    from bedl.data import UCISplit, load_uci

    found = cast(UCISplit, load_uci(FOLDERS[cell.dataset], cell.split, root))
    if cell.dataset != "wine-distinct":
        return Parts(found.x_train, found.y_train, found.x_test, found.y_test)
    seen = {row.tobytes() for row in np.column_stack([found.x_train, found.y_train])}
    new = [row.tobytes() not in seen for row in np.column_stack([found.x_test, found.y_test])]
    return Parts(found.x_train, found.y_train, found.x_test[new], found.y_test[new])


TABLE = UCI()
