"""A cell of a table of real targets: an estimator, learned on one part and scored on the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bedl.bench.cells import BOTH, Cell, Outcome
from bedl.bench.presets import same_run, setup
from bedl.bench.scores import regression_scores
from bedl.bench.table import Column
from bedl.rows import Row

__all__ = ["COLUMNS", "PAPER", "Parts", "alike", "fit_and_score", "retold", "same_runs", "seed_of"]

COLUMNS = (
    Column("log_likelihood", "log-likelihood", "higher"),
    Column("rmse", "RMSE", "lower", places=None),
    Column("crps", "CRPS", "lower", places=None),
    Column("coverage", "coverage of 90 % intervals", "target", places=1, share=True, target=0.9),
)
PAPER = ("bedl", "bedl+reg", "bedl-hyper", "dvi", "varout", "mc-dropout", "pbp", "sparse-gp")  # its methods on UCI


class Parts(NamedTuple):
    """Rows to learn from, and rows to score. shapes: x (n, features), y (n,)"""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def fit_and_score(cells: Sequence[Cell], parts: Sequence[Parts]) -> list[Outcome]:
    """Fit the cells' method under its preset, all as one vectorised run, and score the rows not seen, once.

    Args:
        cells: which differ in split and seed alone.
        parts: the rows of each.
    """
    from bedl.estimators import BEDLRegressor
    from bedl.estimators.together import fit_together

    plans = [setup(cell.preset, cell.method, cell.dataset, len(own.y)) for cell, own in zip(cells, parts, strict=True)]
    models = [
        BEDLRegressor(**plan.estimator, device="cpu", random_state=seed_of(cell))
        for cell, plan in zip(cells, plans, strict=True)
    ]
    fit_together(models, [(own.x, own.y) for own in parts])
    return [
        Outcome(
            regression_scores(model, own.x_test, own.y_test),
            {
                **plan.estimator, "chosen": model.chosen_, "rows": len(own.y), "test_rows": len(own.y_test),
                "fitted_together": len(cells), "deviations": plan.deviations,
            },
        )
        for model, plan, own in zip(models, plans, parts, strict=True)
    ]  # fmt: skip


def alike(cells: Sequence[Cell], most: Callable[[Cell], int]) -> Iterator[list[Cell]]:
    """Cells that differ in split and seed alone, in groups of at most so many."""
    kinds: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        kinds.setdefault((cell.dataset, cell.method, cell.preset), []).append(cell)
    for group in kinds.values():
        size = most(group[0])
        yield from (group[start : start + size] for start in range(0, len(group), size))


def same_runs(cell: Cell) -> list[Cell]:
    """The cell under all presets, if they make no difference to its run."""
    if cell.preset not in BOTH or not same_run(cell.method, cell.dataset):
        return []
    return [dataclasses.replace(cell, preset=preset) for preset in BOTH]


def retold(cell: Cell, row: Row) -> Row:
    """The row of a cell from that of another preset, with the settings and deviations of its own."""
    if row["failed"]:
        return {**row, **cell.fields}
    plan = setup(cell.preset, cell.method, cell.dataset, row["settings"]["rows"])
    told = {name: value for name, value in row["settings"].items() if name not in ("hidden_layers", "deviations")}
    own = {**plan.estimator, "deviations": plan.deviations, "same_run": row["preset"]}
    return {**row, **cell.fields, "settings": {**told, **own}}


def seed_of(cell: Cell) -> int:
    """A number of its own for each split and seed, the same for all methods."""
    return int(np.random.SeedSequence([cell.split, cell.seed]).generate_state(1)[0] % 2**31)
