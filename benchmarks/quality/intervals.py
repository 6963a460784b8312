"""What 90 % intervals cover: in each tail and by fifths of the prediction, of new groups, of the next period.

`tails`, `groups` and `time`, on tables made in code and on real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from benchmarks.quality.rows import Cell
from benchmarks.quality.tables import Source, load

__all__ = ["cells", "work"]


class Related(NamedTuple):
    """A real table whose rows belong together, and the column that says how."""

    source: Source
    column: str


TAILS = [
    Source("BudgetFood", "wfood", most=2000),
    Source("Bwages", "wage"),
    Source("Computers", "price", most=2000),
    Source("diamonds", "price", most=2000),
    Source("Hedonic", "mv"),
    Source("Housing", "price"),
]
GROUPS = [
    Related(Source("sleepstudy", "Reaction"), "Subject"),
    Related(Source("Males", "wage", most=3000), "nr"),
    Related(Source("EmplUK", "wage"), "firm"),
    Related(Source("Crime", "crmrte"), "county"),
]
TIME = [
    Related(Source("Cigar", "sales"), "year"),
    Related(Source("Computers", "price", most=3000), "trend"),
    Related(Source("EmplUK", "wage"), "year"),
    Related(Source("Crime", "crmrte"), "year"),
]
MADE = {"tails": ("log-normal", "incomes", "bounded"), "groups": ("patients",), "time": ("periods",)}
TRAINED, TEST = 1000, 4000  # rows of tables made in code
NEXT = 0.15  # of the periods are predicted


def cells(table: str, methods: list[str], part: str, splits: list[int], only: list[str]) -> Iterator[Cell]:
    """The cells, table by table."""
    real = [source.name for source in TAILS] if table == "tails" else [r.source.name for r in _related(table)]
    for dataset in (*MADE[table], *real):
        if only and dataset not in only:
            continue
        for method in methods:
            for split in splits:
                yield {"table": table, "dataset": dataset, "method": method, "part": part, "split": split}


def _related(table: str) -> list[Related]:
    return GROUPS if table == "groups" else TIME


def work(cell: Cell) -> dict[str, float]:
    """Coverage, the shares of targets below and above, and the coverage of fifths of the predicted mean."""
    from bedl import BEDLRegressor

    table, split = cell["table"], cell["split"]
    X, y, related, train = _cut(table, cell["dataset"], np.random.default_rng(split))
    name = {"groups": "groups", "time": "order"}.get(table)
    given = {} if name is None else {name: related[train]}
    model = BEDLRegressor(random_state=split, handle_unknown="ignore", method=cell["method"])
    model.fit(X[train], y[train], **given)
    prediction = model.predict_dist(X[~train])
    lower, upper = (end.numpy()[:, 0] for end in model.interval_of(prediction, 0.9))
    below, above = y[~train] < lower, y[~train] > upper
    inside, mean = ~below & ~above, prediction.mean[:, 0].numpy()
    fifths = [inside[rows].mean() for rows in np.array_split(np.argsort(mean, kind="stable"), 5)]
    return {
        "coverage": float(inside.mean()), "below": float(below.mean()), "above": float(above.mean()),
        **{f"fifth_{k + 1}": float(value) for k, value in enumerate(fifths)},
        "lower_ends_below_0": float((lower < 0).mean()), "width": float((upper - lower).mean() / y[train].std()),
    }  # fmt: skip


def _cut(table: str, dataset: str, rng: np.random.Generator) -> tuple[Any, np.ndarray, Any, np.ndarray]:
    """X, y, which rows belong together, and which are learned from."""
    if table == "tails":
        if dataset in MADE[table]:
            X, y = _skewed(dataset, rng)
            return X, y, None, np.arange(len(y)) < TRAINED
        X, y = load(next(source for source in TAILS if source.name == dataset))
        return X, y, None, rng.permutation(len(y)) < 0.75 * len(y)
    if dataset in MADE[table]:
        X, y, related = _patients(rng) if table == "groups" else _periods(rng)
    else:
        source, column = next(r for r in _related(table) if r.source.name == dataset)
        X, y = load(source)
        related = X[column].to_numpy()
        X = X.drop(columns=column) if table == "groups" else X
    kinds = np.unique(related)
    if table == "groups":
        return X, y, related, np.isin(related, rng.permutation(kinds)[: round(0.75 * len(kinds))])
    ahead = max(1, round(NEXT * len(kinds)))
    last = int(rng.integers(len(kinds) // 2, len(kinds) - ahead + 1))  # how many periods have passed
    seen = related < kinds[last] if last < len(kinds) else np.ones(len(y), bool)
    rows = related < kinds[last + ahead] if last + ahead < len(kinds) else np.ones(len(y), bool)
    return X[rows], y[rows], related[rows], seen[rows]


def _skewed(kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    n = TRAINED + TEST
    X = rng.normal(size=(n, 4))
    u = X[:, 0] + 0.5 * np.sin(2 * X[:, 1])
    if kind == "log-normal":
        return X, np.exp(u + 0.8 * rng.normal(size=n))
    if kind == "incomes":  # a body with a heavier upper tail, and more noise for some
        heavy = np.where(rng.uniform(size=n) < 0.1, rng.exponential(1.0, n), 0.0)
        return X, 30_000 * np.exp(0.4 * u + (0.2 + 0.2 * (X[:, 2] > 0)) * rng.normal(size=n) + heavy)
    return X, rng.beta(4 / (1 + np.exp(-u)), 4 / (1 + np.exp(u)))


def _patients(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """60 patients with 20 visits each: three measurements of a visit, three of a patient, and the patient's own."""
    group = np.repeat(np.arange(60), 20)
    X = np.c_[rng.normal(size=(1200, 3)), rng.normal(size=(60, 3))[group]]
    return X, X[:, 0] + rng.normal(size=60)[group] + 0.3 * rng.normal(size=1200), group


def _periods(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """60 periods of 20 rows, each of which moves all targets."""
    time = np.repeat(np.arange(60), 20)
    X = np.c_[rng.normal(size=(1200, 2)), time + rng.uniform(size=1200)]
    return X, X[:, 0] + 0.7 * rng.normal(size=60)[time] + 0.3 * rng.normal(size=1200), time
