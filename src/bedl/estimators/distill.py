"""What a network is distilled from: the rows' own labels, and a committee's labels of them and of rows near them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch

from bedl.estimators.committee import (
    FOLDS,
    MANY_ROWS,
    ClassCommittee,
    TargetCommittee,
    default_members,
    fitted,
    near_rows,
)
from bedl.estimators.fit import TrainingConfig, seeds_of, train
from bedl.estimators.inputs import Inputs, Related, TrainingSet, cut_in_folds
from bedl.methods import registry
from bedl.training.data import Points, stream_seed

# of the networks in the committee, strengths of the weight prior and frequencies of the embedding
NETWORKS = {"regression": ((0.5, 0.3), (3.0, 0.1)), "classification": ((8.0, 0.2), (60.0, 0.1))}
OWN = 0.25  # share of the rows' own labels
HELD = 0.25  # and of the committee's labels of them; the rest is near by
NEAR, FRESH = 20_000, 2000  # rows near the data, at least: to learn from, and to calibrate by
BINS, FEWEST = 16, 32  # bins of a column, at most, and rows in each of them, at least
LOOKED_AT = 100_000  # rows that quantiles are computed of


def quantile_edges(X: np.ndarray, loc: np.ndarray, scale: np.ndarray) -> list[torch.Tensor]:
    """Edges of each scaled column's bins: its quantiles, or its values if these are few.

    Example:
        >>> X = np.column_stack([np.arange(320.0), np.arange(320) % 2])
        >>> [len(edges) for edges in quantile_edges(X, np.zeros(2), np.ones(2))]
        [11, 0]
    """
    rows = X if len(X) <= LOOKED_AT else X[:: -(-len(X) // LOOKED_AT)]
    bins = max(1, min(BINS, len(X) // FEWEST))
    found = []
    for column, low, size in zip(rows.T, loc, scale, strict=True):
        edges = np.unique(
            (np.quantile(column, np.linspace(0, 1, bins + 1), method="inverted_cdf") - low) / size
        ).astype(np.float32)
        edges = np.unique(edges[np.isfinite(edges)])
        found.append(torch.from_numpy(edges if len(edges) > 2 else edges[:0]))
    return found


class _Network:
    """A trained method, as a member of a committee."""

    def __init__(self, method: Any, dtype: torch.dtype, n_classes: int):
        self.method, self.dtype, self.classes_ = method, dtype, np.arange(n_classes)

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.concatenate([self.method.predict(x).mean.numpy() for x in Inputs(X, None, self.dtype).chunks()])

    predict_proba = predict


def committee_of(estimator: Any, table: TrainingSet, points: Points, seed: int) -> Any:
    """A committee of trees, a linear model and networks, fitted in folds.

    Args:
        estimator: whose parameters say how.
        table: the rows.
        points: the same, as training takes them.
        seed: of all random choices.
    """
    X, y, weight = counted(table)
    n, classes = len(X), estimator.task_ == "classification"
    related = table.related if table.weight is None else table.related[table.weight > 0]
    fold = cut_in_folds(n, FOLDS, stream_seed(seed, 2), y if classes else None, related)
    held = (FOLDS if related.order is None else FOLDS - 1) if n <= MANY_ROWS else 1  # nothing is before the first
    teacher = estimator.teacher
    default = isinstance(teacher, str) and teacher == "auto"
    given = teacher if isinstance(teacher, (list, tuple)) else [teacher]
    makers = default_members(estimator.task_, n, estimator.n_targets_) if default else list(given)
    members = fitted(makers, X, y, fold, held, weight, related)
    if default:
        for own, networks in zip(members, _networks(estimator, points, fold, held, related, seed), strict=True):
            own.extend(networks)
    committee: Any = ClassCommittee(members, estimator.n_targets_) if classes else TargetCommittee(members)
    committee.fit(X, y, fold, weight)
    committee.labelling = held if related.order is None else 1  # members of early periods have seen few rows
    committee.row_weights = related[committee.held].weights()
    return committee


def counted(table: TrainingSet) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Rows, targets and weights without the rows that count for nothing; no weights where the others are equal."""
    if table.weight is None:
        return table.X, table.y, None
    rows = table.weight > 0
    weight = table.weight[rows]
    return table.X[rows], table.y[rows], None if (weight == weight[0]).all() else weight


def labelled_points(committee: Any, table: TrainingSet, points: Points, seed: int) -> Points:
    """What a network learns from: the rows, with their own labels and the committee's, and rows near them."""
    X, y, weight = counted(table)
    n, random = len(X), np.random.default_rng(stream_seed(seed, 1))
    near, held = max(NEAR, n), np.flatnonzero(committee.held)
    total = near / (1 - HELD - OWN)
    own = _repeated(np.arange(n), weight, total * OWN, random)
    again = _repeated(np.arange(len(held)), None if weight is None else weight[held], total * HELD, random)
    pool, labels = _near(committee, X, weight, near, random)
    rows = np.concatenate([X[own], X[held[again]], pool])
    return _points(rows, np.concatenate([y[own], committee.own_labels(again, random), labels]), y, points)


def _repeated(rows: np.ndarray, weight: np.ndarray | None, count: float, random: np.random.Generator) -> np.ndarray:
    """Each row as often as the others, or as its weight asks for; about `count` in all."""
    if weight is None:
        return np.tile(rows, max(1, round(count / len(rows))))
    return random.choice(rows, max(len(rows), round(count)), p=weight / weight.sum())


def near_points(committee: Any, table: TrainingSet, points: Points, seed: int) -> Points:
    """Rows near the data that are not learned from, with the committee's labels."""
    X, y, weight = counted(table)
    count = min(max(FRESH, len(X) // 10), 10 * FRESH)
    rows, labels = _near(committee, X, weight, count, np.random.default_rng(stream_seed(seed, 5)))
    return _points(rows, labels, y, points)


def _near(
    committee: Any, X: np.ndarray, weight: np.ndarray | None, count: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    rows = near_rows(X, weight, count, random)
    return rows, committee.labels(rows, random.integers(committee.labelling, size=count), random)


def _points(rows: np.ndarray, targets: np.ndarray, y: np.ndarray, points: Points) -> Points:
    """Points in the precision of others. y: the targets of those"""
    dtype = points.x.dtype
    targets = targets.astype(y.dtype if y.dtype.kind == "i" else str(dtype).removeprefix("torch."))
    made = Points((Inputs(rows, None, dtype), targets, None))
    made.scaled, made.n_train = True, points.n_train
    return made


def of_points(plan: TrainingConfig, n: int, points: Points) -> TrainingConfig:
    """As many steps on these points as the plan has on n."""
    steps = plan.epochs * math.ceil(n / plan.batch_size)
    return dataclasses.replace(plan, epochs=max(1, round(steps * plan.batch_size / points.n)))


def _networks(
    estimator: Any, points: Points, fold: np.ndarray, held: int, related: Related, seed: int
) -> list[list[_Network]]:
    """For each fold that is held out, the networks that have learned without it: one for each strength of prior."""
    method, settings = registry.get("evidence"), NETWORKS[estimator.task_]
    dtype = next(p.dtype for p in estimator.method_.parameters())
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(stream_seed(seed, 3))
        members = [
            method(estimator._problem_, weight_prior=prior, frequency=frequency).to(dtype)
            for prior, frequency in settings
            for _ in range(held)
        ]
    parts: list[Any] = []
    for number in range(len(members)):
        part = points.subset(np.flatnonzero(related.training(fold, number % held)))
        part.n_train = points.n_train * part.n / points.n
        parts.append((part, None))
    size = min(64 if points.n < 3000 else 128, parts[0][0].n)
    steps = 300 + 15 * math.sqrt(points.n)
    plan = TrainingConfig(max(1, round(steps / math.ceil(parts[0][0].n / size))), size, 0, 0, 0.015)
    train(estimator, members, parts, plan, seeds_of(stream_seed(seed, 4), len(members)))
    n_classes = estimator.n_targets_ if estimator.task_ == "classification" else 0
    networks = [_Network(member, dtype, n_classes) for member in members]
    return [networks[number::held] for number in range(held)]
