"""Analyses of a table's columns: permutation importance, drift, coverage by slice, causes of uncertainty.

All use encoded rows, a random sample of the table, so that it is read once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from bedl.data.columns import CategoryColumn, Column, DateColumn, TextColumn
from bedl.data.unknown import possible_rows
from bedl.evaluation.report.layout import number
from bedl.evaluation.tasks import ColumnSummary, Results, Slice

__all__ = ["Sample", "causes", "slices", "summaries"]


ROWS = 4_000  # of the sample
PERMUTED = 1_000  # rows whose columns are permuted
PREDICTIONS = 40_000  # for the permutations, and as many for the causes
REPEATS = 3
TYPICAL = 8  # values in place of one whose effect is asked for
FIFTHS = 5
FREQUENT = 3  # categories that are named
FEWEST = 20  # rows of a slice
LEAST = 0.05  # of the uncertainty, for a column to be called a cause

Ask = Callable[[np.ndarray, "np.ndarray | None"], Results]
"""Encoded rows, and their targets or None → the record of their predictions."""


class Sample:
    """Encoded rows drawn uniformly from a table that is read in batches, and their numbers and targets."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._key = np.empty(0)
        self.rows: np.ndarray | None = None
        self.targets: np.ndarray | None = None
        self.index = np.empty(0, dtype=np.intp)

    def add(self, rows: np.ndarray, targets: np.ndarray | None, first_row: int) -> None:
        """A batch. shapes: (n, features), (n, *targets)"""
        key = np.concatenate([self._key, self._random.random(len(rows))])
        index = np.concatenate([self.index, np.arange(first_row, first_row + len(rows))])
        keep = np.sort(np.argsort(key)[:ROWS])
        self._key, self.index = key[keep], index[keep]
        self.rows = _joined(self.rows, rows)[keep]
        self.targets = None if targets is None else _joined(self.targets, targets)[keep]


def _joined(before: np.ndarray | None, more: np.ndarray) -> np.ndarray:
    return more if before is None else np.concatenate([before, more])


def _blocks(columns: Sequence[Column]) -> Iterator[tuple[Column, slice]]:
    start = 0
    for column in columns:
        end = start + len(column.features)
        yield column, slice(start, end)
        start = end


def summaries(ask: Ask, columns: Sequence[Column], x: np.ndarray, y: np.ndarray | None) -> list[ColumnSummary]:
    """Each column's permutation importance and its drift from the training table.

    Args:
        ask: the model.
        columns: what made the features.
        x: encoded rows, NaN where a value is unknown. shape: (n, features)
        y: their targets; None, or a model without densities: no importance. shape: (n, *targets)
    """
    importance = _importance(ask, columns, x, y)
    return [
        ColumnSummary(column.name, rise, error, *_drift(column, x[:, block]))
        for (column, block), (rise, error) in zip(_blocks(columns), importance, strict=True)
    ]


def _importance(ask: Ask, columns: Sequence[Column], x: np.ndarray, y: np.ndarray | None) -> list[tuple[float, float]]:
    """Rise of −log p(target) where a column is permuted (L. Breiman 2001), and its standard error over rows."""
    rows = min(PERMUTED, len(x), PREDICTIONS // (REPEATS * len(columns)))
    unknown = [(np.nan, np.nan)] * len(columns)
    if y is None or rows < FEWEST:
        return unknown
    random = np.random.default_rng(0)
    chosen = random.permutation(len(x))[:rows]
    x, y = x[chosen], y[chosen]
    record = ask(x, y)
    some = record.labelled
    if record.log_density is None or some.sum() < FEWEST:
        return unknown
    before, found = np.asarray(record.log_density, float), []
    for _, block in _blocks(columns):
        rise = np.zeros(rows)
        for _ in range(REPEATS):
            permuted = x.copy()
            permuted[:, block] = x[random.permutation(rows), block]
            rise += (before - np.asarray(ask(permuted, y).log_density, float)) / REPEATS
        found.append((float(rise[some].mean()), float(rise[some].std(ddof=1) / np.sqrt(some.sum()))))
    return found


def _drift(column: Column, values: np.ndarray) -> tuple[float, str, float]:
    """Distance of a column from that of training, its values, and the share of rows with values not in training.

    For categories the distance is the total variation; else the difference of the means in standard deviations.
    """
    unseen = np.isnan(values).any(1)
    outside = float(unseen.mean())
    known = values[~unseen]
    if not len(known) or isinstance(column, TextColumn):
        return np.nan, "text" if isinstance(column, TextColumn) else "–", outside
    if isinstance(column, CategoryColumn):
        here = np.append(known.sum(0) / len(values), outside)
        order = np.argsort(-here, kind="stable")[:FREQUENT]
        said = ", ".join(f"{_labels(column)[i]} {here[i]:.0%}" for i in order if here[i] > 0)
        if not column.counts:
            return np.nan, said, outside
        before = np.append(np.asarray(column.counts, float) / sum(column.counts), 0.0)
        return float(np.abs(here - before).sum() / 2), said, outside
    first, mean, std = known[:, 0].astype(float), 0.0, getattr(column, "std", None) or 0.0
    said = f"{number(first.mean() + _shift(column), 3)} ± {number(first.std(), 3)}"
    if isinstance(column, DateColumn):
        said = f"{_date(first.min() + column.mean)} to {_date(first.max() + column.mean)}"
    else:
        mean = column.mean - column.shift
        std = std or np.sqrt(max(column.mean * (1 - column.mean), 0.0))  # of a boolean
        if column.low is not None and column.high is not None:
            near = 1e-6 * (column.high - column.low)  # features are in single precision
            far = (first < column.low - column.shift - near) | (first > column.high - column.shift + near)
            outside += float(far.sum() / len(values))
    return (float((first.mean() - mean) / std) if std > 0 else np.nan), said, outside


def _labels(column: CategoryColumn) -> list[str]:
    """What each feature of a category stands for, and last a value that training did not have."""
    rest = ["other"] * column.has_other + ["missing"] * column.has_missing
    return [*column.categories, *rest, "not in training"]


def _shift(column: Column) -> float:
    return column.mean if isinstance(column, DateColumn) else getattr(column, "shift", 0.0)


def slices(record: Results, columns: Sequence[Column], x: np.ndarray) -> list[Slice]:
    """How often predictions hit in parts of the table, and how often they should: by prediction and by column.

    Args:
        record: the predictions of the rows.
        columns: what made the features.
        x: encoded rows. shape: (n, features)
    """
    if record.hits is None:
        return []
    hit, expected, by, name = record.hits
    some = record.labelled
    found = [Slice(name, *part) for part in _parts(by[some], hit[some], expected[some])]
    for column, block in _blocks(columns):
        values = x[some, block].astype(float)
        if isinstance(column, CategoryColumn):
            codes = np.where(np.isnan(values).any(1), values.shape[1], np.nan_to_num(values).argmax(1))
            labels = _labels(column)
            parts = _parts(codes, hit[some], expected[some], partial(_label, labels), len(labels))
        elif isinstance(column, TextColumn):
            continue
        else:
            form = _date if isinstance(column, DateColumn) else number
            parts = _parts(values[:, 0] + _shift(column), hit[some], expected[some], form)
        found += [Slice(column.name, *part) for part in parts]
    return found


def _label(labels: Sequence[str], code: float) -> str:
    return labels[int(code)]


def _date(days: float) -> str:
    return str(np.datetime64(int(days), "D"))


def _parts(
    values: np.ndarray,
    hit: np.ndarray,
    expected: np.ndarray,
    form: Callable[[float], str] = number,
    most: int = FIFTHS,
) -> Iterator[tuple[str, int, float, float, float]]:
    """Each value, if there are at most `most`, else fifths: label, rows, share of hits, expected, standard error."""
    known = values[np.isfinite(values)]
    edges = np.unique(known)
    single = len(edges) <= most
    if not single:
        edges = np.unique(np.quantile(known, np.linspace(0, 1, 1 + max(1, min(FIFTHS, len(known) // FEWEST)))))
    for low, high in zip(edges, edges, strict=True) if single else itertools.pairwise(edges):
        part = (values >= low) & ((values <= high) if single or high == edges[-1] else (values < high))
        rows = int(part.sum())
        if rows >= FEWEST:
            chance = expected[part]
            error = float(np.sqrt((chance * (1 - chance)).mean() / rows))
            label = form(low) if single else f"{form(low)} to {form(high)}"
            yield label, rows, float(hit[part].mean()), float(chance.mean()), error


def causes(ask: Ask, columns: Sequence[Column], x: np.ndarray) -> list[str]:
    """For each row the column without whose value it would be least uncertain, and its uncertainty before and then.

    The value is replaced by typical ones of training; "–" where no column accounts for a share of `LEAST`.

    Args:
        ask: the model.
        columns: what made the features.
        x: encoded rows. shape: (n, features)
    """
    if not len(x) or len(x) * len(columns) * TYPICAL > PREDICTIONS:
        return []
    before = np.asarray(ask(x, None).uncertainty, float)
    after = []
    for _, block in _blocks(columns):
        without = x.copy()
        without[:, block] = np.nan
        rows = np.repeat(x[None], TYPICAL, axis=0)  # with what is unknown elsewhere
        rows[:, :, block] = possible_rows(without, columns, TYPICAL)[:, :, block]
        after.append(
            np.asarray(ask(rows.reshape(-1, x.shape[1]), None).uncertainty, float).reshape(TYPICAL, -1).mean(0)
        )
    best = np.argmin(after, axis=0)
    least = np.min(after, axis=0)
    return [
        f"{columns[i].name}: {number(a, 3)} → {number(b, 3)}" if b < (1 - LEAST) * a else "–"
        for i, a, b in zip(best.tolist(), before.tolist(), least.tolist(), strict=True)
    ]
