"""An out-of-fold committee, which labels rows for a network to learn from.

Its members, whatever scikit-learn's or of this package, each learn without one fold. Their predictions of the rows of
that fold decide how much each kind of member counts, and how far off it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
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

from bedl.estimators.inputs import Related
from bedl.methods.distilled import SCALES

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
