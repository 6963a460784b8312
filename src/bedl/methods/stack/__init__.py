"""Fold ensembles: networks and a linear model, each trained without a fold, stacked by out-of-fold likelihood.

Each member learns without one fold, so every row has an out-of-fold prediction. These set the weights and scales of
the kinds of members, and the width of intervals (cross-conformal).
D. Wolpert, "Stacked Generalization", Neural Networks 1992; Y. Yao, A. Vehtari, D. Simpson, A. Gelman, "Using Stacking
to Average Bayesian Predictive Distributions", Bayesian Analysis 2018.
"""

from __future__ import annotations

import math
from typing import Any

from bedl.methods.presets import evidence
from bedl.methods.registry import Problem, Training, register
from bedl.methods.stack.classification import ClassStack
from bedl.methods.stack.distances import LANDMARKS, Nearness
from bedl.methods.stack.linear import LinearClasses, LinearTargets
from bedl.methods.stack.regression import TargetStack

__all__: list[str] = []

# of each group, the strength of the weight prior and the frequency of the embedding; labels tell less than numbers
GROUPS = {"regression": ((0.5, 0.3), (3.0, 0.1)), "classification": ((8.0, 0.2), (60.0, 0.1))}
MOST_GROUPS = 2
FOLDS = 5
MANY_FOLDS = 50  # each is a network or two
MANY_ROWS = 40_000  # beyond, one group has to do
TOO_MANY_ROWS = 100_000  # beyond, one network and a part held out
MANY_COLUMNS = 1000  # beyond, the covariance of linear coefficients is too large to keep
MANY_COEFFICIENTS = 2000  # of a logistic regression, for the same reason


def training(n: int) -> Training:
    """Some hundred steps for each member, which sees the rows outside its fold, and no early stopping."""
    kept = n - math.ceil(n / sized(n)["folds"]) if n > 1 else 1
    batch_size = min(kept, 64 if n < 3000 else 128)
    steps = 300 + 15 * math.sqrt(n)
    epochs = max(1, round(steps / math.ceil(kept / batch_size)))
    return Training(epochs=epochs, batch_size=batch_size, lr=0.015, early_stopping=False)


def sized(n: int) -> dict[str, Any]:
    """Folds and groups for n rows."""
    if n < 2:
        raise ValueError(f"method 'stack' holds rows out and needs at least 2 of them; there is {n} sample")
    if n > TOO_MANY_ROWS:
        return {"folds": 10, "held": 1, "groups": 1}
    return {"folds": min(FOLDS, n), "groups": MOST_GROUPS if n <= MANY_ROWS else 1}


@register(
    "stack",
    "fold ensemble of such nets and a linear model, stacked by out-of-fold likelihood",
    tasks=("regression", "classification"),
    training=training,
    sized=sized,
    scaling="quartiles",
)
def stack(
    problem: Problem,
    folds: int = FOLDS,
    held: int | None = None,
    groups: int = MOST_GROUPS,
    landmarks: int = LANDMARKS,
) -> TargetStack | ClassStack:
    """Networks of the method "evidence" in folds.

    Args:
        problem: what it is for.
        folds: number of folds; each network learns without one of them.
        held: how many of these are held out by a network; None: all.
        groups: how many networks learn without the same fold, at most 2: one with a weak prior on weights and high
            frequencies, one with a strong prior and low ones.
        landmarks: how many training rows are kept, at most, for distances to the data; 0: none, and uncertainty does
            not grow in gaps between rows.
    """
    if not 2 <= folds <= MANY_FOLDS:
        raise ValueError(f"stack: folds must lie between 2 and {MANY_FOLDS}, not {folds}")
    if held is not None and not 1 <= held <= folds:
        raise ValueError(f"stack: held must lie between 1 and the number of folds, {folds}, not {held}")
    if not 1 <= groups <= MOST_GROUPS:
        raise ValueError(f"stack: groups must lie between 1 and {MOST_GROUPS}, not {groups}")
    if landmarks < 0:
        raise ValueError(f"stack: landmarks must be at least 0, not {landmarks}")
    held = folds if held is None else held
    members = [
        evidence(problem, weight_prior=strength, frequency=frequency)
        for strength, frequency in GROUPS[problem.task][:groups]
        for _ in range(held)
    ]
    kind: Any = ClassStack if problem.task == "classification" else TargetStack
    return kind(members, folds, held, _linear(problem, held), _nearness(problem, landmarks), problem.n_targets)


def _nearness(problem: Problem, landmarks: int) -> Nearness | None:
    """Distances to the data, of tables."""
    if len(problem.input_shape) != 1 or not landmarks:
        return None
    return Nearness(problem.input_shape[0], None if problem.front is None else problem.front(), landmarks)


def _linear(problem: Problem, held: int) -> LinearTargets | LinearClasses | None:
    """The linear member, unless there are too many columns for one."""
    columns = problem.input_shape[0]
    classes = problem.task == "classification"
    many = columns * problem.n_targets > MANY_COEFFICIENTS if classes else columns > MANY_COLUMNS
    if len(problem.input_shape) != 1 or many:
        return None
    front = None if problem.front is None else problem.front()
    return (LinearClasses if classes else LinearTargets)(held, columns, problem.n_targets, front)
