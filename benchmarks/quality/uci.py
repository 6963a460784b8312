"""UCI's regression sets: standard splits, and splits with a gap.

On the part "validation" a fifth of the *training* rows is held out, with a gap a third: choices are made there. The
part "test" is for the final reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bedl.data import load_uci, uci_names
from benchmarks.quality.rows import Cell
from benchmarks.quality.scores import gaussian_scores, model_scores

__all__ = ["cells", "work"]

SHORT = {
    "bostonHousing": "boston", "energy": "energy", "concrete": "concrete", "wine-quality-red": "wine",
    "kin8nm": "kin8nm", "power-plant": "power", "naval-propulsion-plant": "naval",
    "protein-tertiary-structure": "protein",
}  # fmt: skip


MOST_GAPS = {"protein": 3, "naval": 6}  # of the features of the larger sets, the first ones


def cells(table: str, methods: list[str], part: str, splits: list[int], only: list[str]) -> Iterator[Cell]:
    """The cells of a table, data set by data set, the small ones first."""
    names = [name for name in SHORT if name in uci_names() and (not only or SHORT[name] in only)]
    for split in splits:
        for name in names:
            data = load_uci(name)
            gaps = min(data.x.shape[1], MOST_GAPS.get(SHORT[name], data.x.shape[1]))
            if split >= (gaps if table == "gap" else data.n_splits):
                continue
            for method in methods:
                yield {"table": table, "dataset": SHORT[name], "method": method, "part": part, "split": split}


def work(cell: Cell) -> dict[str, float]:
    """Fit and score one cell."""
    x, y, x_test, y_test = _rows(cell)
    return _FITS.get(cell["method"], _bedl)(cell, x, y, x_test, y_test)


def _rows(cell: Cell) -> tuple[np.ndarray, ...]:
    name = next(long for long, short in SHORT.items() if short == cell["dataset"])
    if cell["table"] == "gap":
        data = load_uci(name)
        return _gap(data.x, data.y, cell["split"], cell["part"])
    if cell["table"] == "uci-distinct":
        return _distinct(load_uci(name, cell["split"]))
    found = load_uci(name, cell["split"])
    if cell["part"] == "test":
        return found.x_train, found.y_train, found.x_test, found.y_test
    order = np.random.default_rng(1000 + cell["split"]).permutation(len(found.y_train))
    held, kept = np.split(order, [len(order) // 5])
    return found.x_train[kept], found.y_train[kept], found.x_train[held], found.y_train[held]


def _distinct(found: Any) -> tuple[np.ndarray, ...]:
    """A split without the test rows that stand in the training part, too."""
    seen = {row.tobytes() for row in np.column_stack([found.x_train, found.y_train])}
    new = [row.tobytes() not in seen for row in np.column_stack([found.x_test, found.y_test])]
    return found.x_train, found.y_train, found.x_test[new], found.y_test[new]


def _gap(x: np.ndarray, y: np.ndarray, feature: int, part: str) -> tuple[np.ndarray, ...]:
    """The middle third of a feature is held out (Foong et al. 2019); for validation, the middle third of the rest."""
    held = _middle(x[:, feature])
    if part == "validation":
        x, y = x[~held], y[~held]
        held = _middle(x[:, (feature + 1) % x.shape[1]])
    return x[~held], y[~held], x[held], y[held]


def _middle(column: np.ndarray) -> np.ndarray:
    place = np.argsort(np.argsort(column, kind="stable"), kind="stable")
    third = len(column) // 3
    return (place >= third) & (place < 2 * third)


# -- methods ---------------------------------------------------------------------------------------
def _bedl(cell: Cell, x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, float]:
    from bedl import BEDLRegressor

    model = BEDLRegressor(method=cell["method"], random_state=cell["split"]).fit(x.astype(np.float32), y)
    return model_scores(model, x_test.astype(np.float32), y_test)


def _ridge(cell: Cell, x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, float]:
    from sklearn.linear_model import BayesianRidge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), BayesianRidge()).fit(x, y)
    return gaussian_scores(y_test, *model.predict(x_test, return_std=True))


_FITS = {"ridge": _ridge}
