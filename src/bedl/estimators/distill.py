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
from bedl.estimators.inputs import Inputs, Related, TrainingSet, cut_in_folds, values_of
from bedl.methods import registry
from bedl.methods.distilled import SCALES
from bedl.training.data import Points, stream_seed

FOLDS = 5
MANY_ROWS, MANY_LABELS = 20_000, 500_000  # rows, and rows times classes, beyond which one fold is held out
ROWS_PER_CLASS = 300  # with fewer boosting, which grows trees for each class, takes long and brings nothing
LEAST = 1e-6  # probability of a class, and variance of a target
NOISE, CROSSED = 0.2, 0.2  # of rows near the data: standard deviation at most, and share of columns from other rows
FEW_VALUES = 16  # of a column that keeps to them
LOOKED_AT = 100_000  # rows that quantiles and values are computed of
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

    def labels(self, X: np.ndarray, fold: np.ndarray) -> list[np.ndarray]:
        """Labels of rows, by what the members of each one's fold say: one or several, which count the same."""
        raise NotImplementedError

    def own_labels(self, rows: np.ndarray) -> list[np.ndarray]:
        """Labels of rows that were held out, by their numbers among these."""
        raise NotImplementedError

    def drawn(self, X: np.ndarray, fold: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Targets of rows, drawn from what the members of each one's fold say."""
        raise NotImplementedError


class TargetCommittee(Committee):
    """For real targets: a mixture of normals, each with one of a few factors on its variance.

    One normal is around the stacked mean, one around each member's mean. Its variance is a network's own; elsewhere
    that of the stacked mean's residuals, which a forest predicts from the row, the spread of the members' means and the
    networks' variances.

    Attributes:
        weights: of the members in the stacked mean, for each target. shape: (members, D)
        shares: of the normals and their scales, for each target. shape: (D, members + 1, 8)
    """

    def said(self, member: Any, X: np.ndarray) -> np.ndarray:
        """Means, and of a network the logarithms of the variance and of its epistemic part. shape: (n, 3 D)"""
        if isinstance(member, _Network):
            return member.moments(X)
        mean = np.asarray(member.predict(X), dtype=np.float64).reshape(len(X), -1)
        return np.pad(mean, ((0, 0), (0, 2 * mean.shape[1])))

    def fit(self, X: np.ndarray, y: np.ndarray, fold: np.ndarray, weight: np.ndarray | None) -> None:
        held = self.held = fold < len(self.members)
        X, y, fold = X[held], y[held], fold[held]
        weight = np.ones(len(X)) if weight is None else weight[held]
        said, targets = self.outputs(X, fold), range(y.shape[1])
        self.weights = np.stack([_stacking(said[..., d], y[:, d], weight) for d in targets], 1)
        mean, given = self._described(X, said)
        square = np.square(y - mean)
        logs = np.log(square + 1e-3 * np.average(square, axis=0, weights=weight) + 1e-12)
        log_variance = np.empty_like(square)
        self.noise = []
        for number in range(len(self.members)):
            inside = fold == number
            outside = ~inside if len(self.members) > 1 else np.arange(len(X)) % 2 == 0
            forest = ExtraTreesRegressor(40, min_samples_leaf=10, max_features=0.7, random_state=0)
            self.noise.append(forest.fit(given[outside], logs[outside].squeeze(), weight[outside]))
            log_variance[inside] = forest.predict(given[inside]).reshape(-1, y.shape[1])
        self.normals = self._normals(mean, log_variance, said)
        means, logs = self.normals
        self.shares = np.stack([_normal_shares(y[:, d], means[..., d], logs[..., d], weight) for d in targets])

    def _described(self, X: np.ndarray, said: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The stacked mean of each row, and what its noise is read off. shapes: (n, D), (n, features)"""
        means = said[..., : said.shape[-1] // 3]
        mean = (means * self.weights).sum(1)
        spread = np.log(np.square(means - mean[:, None]).mean(1) + LEAST)
        return mean, np.column_stack([X, mean, spread, said[..., mean.shape[1] :].reshape(len(X), -1)])

    def _normals(self, mean: np.ndarray, log_variance: np.ndarray, said: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and log-variances of all normals. shapes: (n, members + 1, D)"""
        count, log_variance = mean.shape[1], log_variance[:, None]
        own = said[..., count : 2 * count]
        known = np.array([isinstance(member, _Network) for member in self.members[0]])[:, None]
        logs = np.concatenate([log_variance, np.where(known, own, log_variance)], 1)
        return np.concatenate([mean[:, None], said[..., :count]], 1), logs

    def labels(self, X: np.ndarray, fold: np.ndarray) -> list[np.ndarray]:
        return self._two_points(self._predicted(X, fold))

    def _predicted(self, X: np.ndarray, fold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and log-variances of all normals. shapes: (n, members + 1, D)"""
        said = self.outputs(X, fold)
        mean, given = self._described(X, said)
        log_variance = np.empty_like(mean)
        for number, forest in enumerate(self.noise):
            rows = fold == number
            if rows.any():
                log_variance[rows] = forest.predict(given[rows]).reshape(-1, mean.shape[1])
        return self._normals(mean, log_variance, said)

    def own_labels(self, rows: np.ndarray) -> list[np.ndarray]:
        return self._two_points((self.normals[0][rows], self.normals[1][rows]))

    def _two_points(self, normals: tuple[np.ndarray, np.ndarray]) -> list[np.ndarray]:
        """One standard deviation above and below the mean, which is all that a normal can learn. shapes: (n, D)"""
        share, mean = self.shares.sum(2).T, normals[0]
        variance = np.exp(normals[1]) * (self.shares @ SCALES.numpy()).T  # its share in it, too
        middle = (mean * share).sum(1)
        std = np.sqrt((variance + share * np.square(mean - middle[:, None])).sum(1))
        return [middle + std, middle - std]

    def drawn(self, X: np.ndarray, fold: np.ndarray, random: np.random.Generator) -> np.ndarray:
        means, log_variances = self._predicted(X, fold)
        made, rows = np.empty((len(X), len(self.shares))), np.arange(len(X))
        for d, shares in enumerate(self.shares):
            chosen, scale = np.divmod(random.choice(shares.size, len(X), p=shares.ravel() / shares.sum()), len(SCALES))
            variance = SCALES.numpy()[scale] * np.exp(log_variances[rows, chosen, d])
            made[:, d] = means[rows, chosen, d] + np.sqrt(variance) * random.normal(size=len(X))
        return made


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

    def labels(self, X: np.ndarray, fold: np.ndarray) -> list[np.ndarray]:
        return [self._mixed(self.outputs(X, fold))]

    def own_labels(self, rows: np.ndarray) -> list[np.ndarray]:
        return [self.probabilities[rows]]

    def drawn(self, X: np.ndarray, fold: np.ndarray, random: np.random.Generator) -> np.ndarray:
        p = self._mixed(self.outputs(X, fold))
        return (random.uniform(size=(len(p), 1)) > p.cumsum(1)[:, :-1]).sum(1)


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

    Columns of few values keep to these.

    Args:
        X: shape (n, d)
        weight: how often rows are taken; None: all alike. shape: (n,)
        count: how many.
        random: source of randomness.
    """
    n, d = X.shape
    base = X[random.choice(n, count, p=None if weight is None else weight / weight.sum())]
    some = X[:: max(1, n // LOOKED_AT)]
    discrete = np.array([len(np.unique(column)) <= FEW_VALUES for column in some.T])
    size = NOISE * random.uniform(size=(count, 1)) * np.where(discrete, 0.0, X.std(0))
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


def _normal_shares(y: np.ndarray, mean: np.ndarray, log_variance: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Shares of normals, each with the factors `SCALES` on its variance, that make targets most likely.

    shapes: (n,), (n, normals), (n, normals), (n,); result: shape (normals, 8)
    """
    log_s = np.log(SCALES.numpy().astype(np.float64))
    logs = log_variance[..., None] + log_s
    log_density = (-0.5 * (np.square(y[:, None] - mean)[..., None] * np.exp(-logs) + logs)).reshape(len(y), -1)
    density = np.exp(log_density - log_density.max(1, keepdims=True))
    return _mixture(density, weight).reshape(-1, len(log_s))


def scale_mixture(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factors on a variance of 1, and their shares, that make scores most likely. z: shape (n, D); results: (8,)"""
    flat = z.reshape(-1)
    zero = np.zeros((len(flat), 1))
    return SCALES.numpy(), _normal_shares(flat, zero, zero, np.ones(len(flat)))[0]


def _tempered(log_p: np.ndarray, temperature: float) -> np.ndarray:
    """log of p^(1/t), made to add up to 1. shape: (n, C)"""
    q = log_p / temperature
    q = q - q.max(1, keepdims=True)
    return q - np.log(np.exp(q).sum(1, keepdims=True))


# of the networks in the committee, strengths of the weight prior and frequencies of the embedding
NETWORKS = {"regression": ((0.5, 0.3), (3.0, 0.1)), "classification": ((8.0, 0.2), (60.0, 0.1))}
# shares of the rows' own labels, and of the committee's labels of them; the rest is near by
OWN = {"regression": (0.25, 0.1), "classification": (0.1, 0.25)}
NEAR, FRESH = 20_000, 2000  # rows near the data, at least: to learn from, and to calibrate by
BINS, FEWEST = 16, 32  # bins of a column, at most, and rows in each of them, at least
CODES = 256  # of all columns together, at most


def quantile_edges(X: np.ndarray, loc: np.ndarray, scale: np.ndarray) -> list[torch.Tensor]:
    """Edges of each scaled column's bins: its quantiles, or its values if these are few.

    Example:
        >>> X = np.column_stack([np.arange(320.0), np.arange(320) % 2])
        >>> [len(edges) for edges in quantile_edges(X, np.zeros(2), np.ones(2))]
        [11, 2]
    """
    rows = X if len(X) <= LOOKED_AT else X[:: -(-len(X) // LOOKED_AT)]
    several = ((X.min(0) != X) & (X.max(0) != X)).any(0).sum()  # columns of more than two values
    bins = max(1, min(BINS, len(X) // FEWEST, CODES // max(several, 1)))
    found = []
    for column, some, low, size in zip(X.T, rows.T, loc, scale, strict=True):
        inner: Any = np.quantile(some, np.linspace(0, 1, bins + 1), method="inverted_cdf")[1:-1]
        edges = (np.concatenate([[column.min()], inner, [column.max()]]) - low) / size
        found.append(torch.from_numpy(np.unique(edges.astype(np.float32))))
    return found


class _Network:
    """A trained method, as a member of a committee."""

    def __init__(self, method: Any, dtype: torch.dtype, n_classes: int):
        self.method, self.dtype, self.classes_ = method, dtype, np.arange(n_classes)

    def _predicted(self, X: np.ndarray) -> Any:
        return values_of([self.method.predict(x) for x in Inputs(X, None, self.dtype).chunks()])

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """shape: (n, C)"""
        return self._predicted(X).mean.numpy()

    def moments(self, X: np.ndarray) -> np.ndarray:
        """Means, logarithms of variances and of their epistemic parts. shape: (n, 3 D)"""
        p = self._predicted(X)
        logs = (torch.log(part.clamp_min(LEAST)) for part in (p.variance, p.epistemic))
        return torch.cat([p.mean, *logs], 1).double().numpy()


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
    many = n > MANY_ROWS or n * estimator.n_targets_ > MANY_LABELS
    held = 1 if many else FOLDS if related.order is None else FOLDS - 1  # nothing is before the first
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
    share, out_of_fold = OWN["classification" if y.dtype.kind == "i" else "regression"]
    total = near / (1 - share - out_of_fold)
    own = _repeated(np.arange(n), weight, total * share, random)
    again = _repeated(np.arange(len(held)), None if weight is None else weight[held], total * out_of_fold, random)
    pool = near_rows(X, weight, near, random)
    given = np.eye(committee.n_classes)[y[own]] if y.dtype.kind == "i" else y[own]
    parts = zip(
        committee.own_labels(again),
        committee.labels(pool, random.integers(committee.labelling, size=near)),
        strict=True,
    )
    labels = [np.concatenate([given, *part]) for part in parts]
    rows = np.concatenate([X[own], X[held[again]], pool])
    return _points(np.tile(rows, (len(labels), 1)), np.concatenate(labels), points)


def _repeated(rows: np.ndarray, weight: np.ndarray | None, count: float, random: np.random.Generator) -> np.ndarray:
    """Each row as often as the others, or as its weight asks for; about `count` in all."""
    if weight is None:
        return np.tile(rows, max(1, round(count / len(rows))))
    return random.choice(rows, max(len(rows), round(count)), p=weight / weight.sum())


def drawn_points(committee: Any, table: TrainingSet, points: Points, seed: int) -> Points:
    """Rows near the data that are not learned from, with targets drawn from the committee, to calibrate by."""
    X, _, weight = counted(table)
    count, random = min(max(FRESH, len(X) // 10), 10 * FRESH), np.random.default_rng(stream_seed(seed, 5))
    rows = near_rows(X, weight, count, random)
    return _points(rows, committee.drawn(rows, random.integers(committee.labelling, size=count), random), points)


def _points(rows: np.ndarray, targets: np.ndarray, points: Points) -> Points:
    """Points in the precision of others."""
    dtype = points.x.dtype
    if targets.dtype.kind == "f":
        targets = targets.astype(str(dtype).removeprefix("torch."))
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
