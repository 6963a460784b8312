"""Distillation: a committee of scikit-learn models, and the network that learns from its labels and the rows' own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar, nnls
from sklearn.base import clone
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bedl.estimators.fit import TrainingConfig, seeds_of, train
from bedl.estimators.inputs import Inputs, Related, TrainingSet, cut_in_folds
from bedl.methods import registry
from bedl.methods.distilled import SCALES
from bedl.training.data import Points, stream_seed

FOLDS = 5
MANY_ROWS = 20_000  # beyond, one fold is held out
ROWS_PER_CLASS = 300  # with fewer boosting, which grows trees for each class, takes long and brings nothing
LEAST = 1e-6  # probability of a class
NOISE, CROSSED = 0.2, 0.2  # of rows near the data: standard deviation at most, and share of columns from other rows
Members = list[list[Any]]  # for each fold, what has learned without it


def default_members(task: str, n: int, n_targets: int) -> list[Any]:
    """Boosting, extremely randomised trees and a linear model."""
    leaf, few = max(5, min(20, n // 50)), n < 5000
    if task == "regression":
        return [
            HistGradientBoostingRegressor(max_iter=100 if n < 2000 else 300, min_samples_leaf=leaf, random_state=0),
            ExtraTreesRegressor(100 if few else 40, min_samples_leaf=1 if few else 3, random_state=0),
            make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 13))),
        ]
    trees: list[Any] = [ExtraTreesClassifier(100, min_samples_leaf=1 if few else 3, random_state=0)]
    if n >= ROWS_PER_CLASS * n_targets:
        trees.append(
            HistGradientBoostingClassifier(max_iter=100, min_samples_leaf=leaf, early_stopping=False, random_state=0)
        )
    linear = [make_pipeline(StandardScaler(), LogisticRegression(C=c, tol=1e-3, max_iter=300)) for c in (0.03, 1.0)]
    return [*trees, *linear]


class Committee:
    """Members of folds, and what they say.

    Args:
        members: for each fold, what has learned without it; all have `predict(X)` of shape (n, D), or
            `predict_proba(X)` of shape (n, C).
    """

    def __init__(self, members: Members):
        self.members = members

    def outputs(self, X: np.ndarray, fold: np.ndarray) -> np.ndarray:
        """What the members of its fold say of each row. fold: shape (n,); result: shape (n, members, k)"""
        made: np.ndarray | None = None
        for number, members in enumerate(self.members):
            rows = np.flatnonzero(fold == number)
            if not len(rows):
                continue
            said = np.stack([self.said(member, X[rows]) for member in members], 1)
            made = np.zeros((len(X), *said.shape[1:])) if made is None else made
            made[rows] = said
        assert made is not None
        return made

    def said(self, member: Any, X: np.ndarray) -> np.ndarray:
        """shape: (n, k)"""
        raise NotImplementedError

    def fit(self, X: np.ndarray, y: np.ndarray, fold: np.ndarray, weight: np.ndarray | None) -> None:
        """Learn from the rows of all folds that were held out how much members count."""
        raise NotImplementedError

    def labels(self, X: np.ndarray, fold: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Labels of rows, drawn from what the members of each one's fold say."""
        raise NotImplementedError


class TargetCommittee(Committee):
    """For real targets: means that are stacked, and noise that a forest reads off the residuals of rows held out.

    Attributes:
        weights: of the members, for each target. shape: (members, D)
        log_weights, scales: of the mixture of scales of all residuals. shapes: (8,)
        scores: of rows held out, (y − mean) / std. shape: (n, D)
    """

    def said(self, member: Any, X: np.ndarray) -> np.ndarray:
        return np.asarray(member.predict(X), dtype=np.float64).reshape(len(X), -1)

    def fit(self, X: np.ndarray, y: np.ndarray, fold: np.ndarray, weight: np.ndarray | None) -> None:
        held = self.held = fold < len(self.members)
        means = self.outputs(X[held], fold[held])
        X, y, fold = X[held], y[held], fold[held]
        weight = np.ones(len(X)) if weight is None else weight[held]
        self.weights = np.stack([_stacking(means[..., d], y[:, d], weight) for d in range(y.shape[1])], 1)
        self.mean = (means * self.weights).sum(1)
        residual = y - self.mean
        square = np.square(residual)
        self.floor = 1e-3 * np.average(square, axis=0, weights=weight) + 1e-12
        logs, given = np.log(square + self.floor), np.column_stack([X, self.mean])
        folds = range(len(self.members))
        variance = np.empty_like(square)
        self.noise = []
        for number in folds:
            inside = fold == number
            outside = ~inside if len(self.members) > 1 else np.arange(len(X)) % 2 == 0
            forest = ExtraTreesRegressor(40, min_samples_leaf=10, max_features=0.7, random_state=0)
            self.noise.append(forest.fit(given[outside], logs[outside].squeeze(), weight[outside]))
            variance[inside] = np.exp(forest.predict(given[inside]).reshape(-1, y.shape[1]))
        z = square / variance
        shares = _scale_mixture(z, weight)
        size = shares @ SCALES.numpy()
        self.size = size  # the variance of a mixture whose scales have mean 1
        self.scales, self.log_weights = SCALES.numpy() / size, np.log(shares)
        self.variance = variance * size
        self.scores = residual / np.sqrt(self.variance)

    def labels(self, X: np.ndarray, fold: np.ndarray, random: np.random.Generator) -> np.ndarray:
        mean = (self.outputs(X, fold) * self.weights).sum(1)
        given, variance = np.column_stack([X, mean]), np.empty_like(mean)
        for number, forest in enumerate(self.noise):
            rows = fold == number
            if rows.any():
                variance[rows] = np.exp(forest.predict(given[rows]).reshape(-1, mean.shape[1])) * self.size
        return mean + np.sqrt(variance) * random.choice([-1.0, 1.0], mean.shape)

    def own_labels(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Of rows that were held out, by their numbers among these. shape: (n, D)"""
        return self.mean[rows] + np.sqrt(self.variance[rows]) * random.choice([-1.0, 1.0], self.mean[rows].shape)


class ClassCommittee(Committee):
    """For classes: a mixture of tempered probabilities.

    Attributes:
        temperatures, weights: of the members. shapes: (members,)
        probabilities, observed: of rows held out, and their labels. shapes: (n, C), (n,)
    """

    def __init__(self, members: Members, n_classes: int):
        super().__init__(members)
        self.n_classes = n_classes

    def said(self, member: Any, X: np.ndarray) -> np.ndarray:
        p = np.full((len(X), self.n_classes), LEAST)
        p[:, np.asarray(member.classes_, dtype=int)] = np.maximum(member.predict_proba(X), LEAST)
        return np.log(p)

    def fit(self, X: np.ndarray, y: np.ndarray, fold: np.ndarray, weight: np.ndarray | None) -> None:
        held = self.held = fold < len(self.members)
        said, y = self.outputs(X[held], fold[held]), y[held]
        weight = np.ones(len(y)) if weight is None else weight[held]
        rows = np.arange(len(y))

        def loss(log_t: float, log_p: np.ndarray) -> float:
            return -float(weight @ _tempered(log_p, math.exp(log_t))[rows, y])

        members = range(said.shape[1])
        best = [minimize_scalar(loss, bounds=(-2.0, 2.0), args=(said[:, m],), method="bounded").x for m in members]
        self.temperatures = np.exp(best)
        density = np.exp(np.stack([_tempered(said[:, m], t)[rows, y] for m, t in enumerate(self.temperatures)], 1))
        self.weights = _mixture(density, weight)
        self.probabilities, self.observed = self._mixed(said), y

    def _mixed(self, said: np.ndarray) -> np.ndarray:
        """Probabilities, of what members say. shape: (n, C)"""
        tempered = np.stack([np.exp(_tempered(said[:, m], t)) for m, t in enumerate(self.temperatures)], 1)
        return np.einsum("nmc,m->nc", tempered, self.weights)

    def labels(self, X: np.ndarray, fold: np.ndarray, random: np.random.Generator) -> np.ndarray:
        return _drawn(self._mixed(self.outputs(X, fold)), random)

    def own_labels(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Of rows that were held out, by their numbers among these. shape: (n,)"""
        return _drawn(self.probabilities[rows], random)


def fitted(
    makers: Sequence[Any],
    X: np.ndarray,
    y: np.ndarray,
    fold: np.ndarray,
    held: int,
    weight: np.ndarray | None,
    related: Related | None = None,
) -> Members:
    """Each maker's members, one for each fold that is held out, without the rows of that fold, or in time the later."""
    members: Members = []
    for number in range(held):
        rows = (related or Related()).training(fold, number)
        members.append(
            [fit_member(maker, X[rows], y[rows], None if weight is None else weight[rows]) for maker in makers]
        )
    return members


def fit_member(maker: Any, X: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> Any:
    """A copy of the maker, fitted."""
    several = y.ndim == 2 and y.shape[1] > 1
    if several and isinstance(maker, HistGradientBoostingRegressor):
        from sklearn.multioutput import MultiOutputRegressor

        maker = MultiOutputRegressor(maker)
    y = y[:, 0] if y.ndim == 2 and not several else y
    member = clone(maker)
    if weight is None:
        return member.fit(X, y)
    name = f"{member.steps[-1][0]}__sample_weight" if hasattr(member, "steps") else "sample_weight"
    return member.fit(X, y, **{name: weight})


def near_rows(X: np.ndarray, weight: np.ndarray | None, count: int, random: np.random.Generator) -> np.ndarray:
    """Rows near the data: half with a little noise, half with a fifth of their columns from other rows.

    Columns of two values keep to these.

    Args:
        X: shape (n, d)
        weight: how often rows are taken; None: all alike. shape: (n,)
        count: how many.
        random: source of randomness.
    """
    n, d = X.shape
    base = X[random.choice(n, count, p=None if weight is None else weight / weight.sum())]
    binary = ((X.min(0) == X) | (X.max(0) == X)).all(0)
    size = NOISE * random.uniform(size=(count, 1)) * np.where(binary, 0.0, X.std(0))
    noisy = base + size * random.normal(size=base.shape)
    others = np.stack([X[random.integers(n, size=count), column] for column in range(d)], 1)
    crossed = np.where(random.uniform(size=base.shape) < CROSSED, others, base)
    return np.where(random.uniform(size=(count, 1)) < 0.5, noisy, crossed)


def _stacking(means: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weights that are not negative, add up to 1 and make the squares least. means: shape (n, members)"""
    root, much = np.sqrt(weight)[:, None], 100 * math.sqrt(weight.sum())
    a = np.vstack([root * means, np.full((1, means.shape[1]), much)])
    found = nnls(a, np.append(root[:, 0] * y, much))[0]
    return found / found.sum()


def _mixture(density: np.ndarray, weight: np.ndarray, steps: int = 200) -> np.ndarray:
    """Weights of a mixture that make points most likely, by EM; a point more is spread evenly. shape: (components,)"""
    k = density.shape[1]
    shares = np.full(k, 1 / k)
    for _ in range(steps):
        shares = (shares * ((weight / (density @ shares)) @ density) + 1 / k) / (weight.sum() + 1)
    return shares


def _scale_mixture(z: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Shares of the scales, of squared residuals over their variance. z: shape (n, D); result: shape (8,)"""
    s = SCALES.numpy().astype(np.float64)
    log_density = (-0.5 * (z[..., None] / s + np.log(s))).reshape(-1, len(s))
    density = np.exp(log_density - log_density.max(1, keepdims=True))
    return _mixture(density, np.repeat(weight, z.shape[1]))


def _tempered(log_p: np.ndarray, temperature: float) -> np.ndarray:
    """log of p^(1/t), made to add up to 1. shape: (n, C)"""
    q = log_p / temperature
    q = q - q.max(1, keepdims=True)
    return q - np.log(np.exp(q).sum(1, keepdims=True))


def _drawn(p: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A class of each row. shape: (n,)"""
    return (random.uniform(size=(len(p), 1)) > p.cumsum(1)[:, :-1]).sum(1)


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
    committee.row_weights, committee.symmetric = related[committee.held].weights(), related.order is not None
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
