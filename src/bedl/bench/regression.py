"""A cell of a table of real targets: an estimator, learned on one part and scored on the other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bedl.bench.cells import Cell, Outcome
from bedl.bench.presets import setup
from bedl.bench.scores import regression_scores
from bedl.bench.table import Column

__all__ = ["COLUMNS", "PAPER", "Parts", "fit_and_score"]

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


def fit_and_score(cell: Cell, parts: Parts) -> Outcome:
    """Fit the cell's method under its preset, and score the rows that it has not seen, once."""
    from bedl.estimators import BEDLRegressor

    plan = setup(cell.preset, cell.method, cell.dataset, len(parts.y))
    model = BEDLRegressor(**plan.estimator, device="cpu", random_state=seed_of(cell)).fit(parts.x, parts.y)
    settings = {
        **plan.estimator, "chosen": model.chosen_, "rows": len(parts.y), "test_rows": len(parts.y_test),
        "deviations": plan.deviations,
    }  # fmt: skip
    return Outcome(regression_scores(model, parts.x_test, parts.y_test), settings)


def seed_of(cell: Cell) -> int:
    """A number of its own for each split and seed, the same for all methods."""
    return int(np.random.SeedSequence([cell.split, cell.seed]).generate_state(1)[0] % 2**31)
