"""Several estimators, each on a table of its own, fitted as one vectorised run: splits of a data set, seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bedl.estimators.train import seeds_of, train

__all__ = ["fit_together"]


def fit_together(estimators: Sequence[Any], tables: Sequence[tuple[Any, Any]]) -> None:
    """Fit estimators that differ in their `random_state` alone, each on its own (X, y), in place.

    A small network keeps no processor busy; twenty at once take little longer than one. Each ends up where its own
    `fit` would have taken it, up to rounding and to what a method draws while it learns, such as dropout. Methods that
    take no gradient steps, hold out folds or set points aside, and tables whose sizes ask for other batches or epochs,
    are fitted one after the other.

    Args:
        estimators: fresh ones.
        tables: (X, y) for each, as for `fit`.

    Example:
        >>> import numpy as np
        >>> from bedl import BEDLRegressor
        >>> X = np.linspace(-1, 1, 60)[:, None]
        >>> models = [BEDLRegressor(method="bedl", epochs=2, random_state=seed, device="cpu") for seed in (0, 1)]
        >>> fit_together(models, [(X, 2 * X[:, 0]), (X, -X[:, 0])])
        >>> [model.predict(X).shape for model in models]
        [(60,), (60,)]
    """
    if len(estimators) != len(tables) or not estimators:
        raise ValueError(f"fit_together takes a table for each estimator, not {len(tables)} for {len(estimators)}")
    if len({_settings(estimator) for estimator in estimators}) > 1:
        raise ValueError("fit_together takes estimators that differ in their random_state alone")
    begun = [_begun(estimator, *table) for estimator, table in zip(estimators, tables, strict=True)]
    first = estimators[0]
    if any(one is None or one[1] != begun[0][1] for one in begun) or first.warm_start or first.checkpoint is not None:
        for estimator, (x, y) in zip(estimators, tables, strict=True):
            estimator.fit(x, y)
        return
    members = [member for estimator in estimators for member in estimator._members()]
    parts = [part for one in begun for part in one[0]]
    seeds = [seed for one in begun for seed in one[2]]
    rows = train(first, members, parts, begun[0][1], seeds)
    each = len(members) // len(estimators)
    for number, estimator in enumerate(estimators):
        own = range(number * each, (number + 1) * each)
        estimator.history_ = [{**row, "member": row["member"] - own.start} for row in rows if row["member"] in own]
        estimator._conclude()


def _settings(estimator: Any) -> str:
    given = estimator.get_params(deep=False)
    return repr([type(estimator), sorted((name, repr(v)) for name, v in given.items() if name != "random_state")])


def _begun(estimator: Any, x: Any, y: Any) -> Any:
    """What `fit` does before the steps: (parts, recipe, seeds); None where there are no steps to take together."""
    table, seed = estimator._check(x, y, None, None, reset=True), estimator._seed()
    estimator._build(table, seed, steps=False)
    if estimator._members()[0].learns != "by steps" or estimator.method_.folds:
        return None
    plan = estimator._plan(len(table.X))
    if plan.judges:
        return None
    estimator._optimizers, estimator.n_seen_ = [], table.size
    points = estimator._points(table)
    points.n_train = table.size
    parts = list(estimator._parts(points, plan, seed))
    return parts, plan, seeds_of(seed, len(parts))
