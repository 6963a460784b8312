"""What every task says about itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

import bedl.evaluation.tasks
from bedl._utils.errors import BEDLError
from bedl.evaluation import metrics

if TYPE_CHECKING:
    from bedl.evaluation.tasks._results import Results

MIDDLE = 0.5  # of u: sets that are not random, with the same marginal coverage
LabelScores = Mapping[str, np.ndarray]
"""Of rows held out: ``label``, ``before`` (the probability of the classes before it), ``own`` (its own), ``rank``,
``top`` (the largest probability), ``u`` and ``weight``. shapes: (n,)
"""


def _ranked(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The probability of the classes before each, and its rank from 1 on. shapes: (n, C)"""
    order = np.argsort(-p, axis=1, kind="stable")
    by_rank = np.take_along_axis(p, order, 1)
    before, rank = np.empty_like(p), np.empty(p.shape, dtype=np.int64)
    np.put_along_axis(before, order, by_rank.cumsum(1) - by_rank, 1)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(1, p.shape[1] + 1), p.shape), 1)
    return before, rank


def label_scores(
    p: np.ndarray, label: np.ndarray, u: np.ndarray, weight: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """What scores of labels are made of.

    Args:
        p: probabilities. shape: (n, C)
        label: numbers of the classes. shape: (n,)
        u: numbers between 0 and 1. shape: (n,)
        weight: how much each row counts; None: all the same. shape: (n,)
    """
    before, rank = _ranked(p)
    rows = np.arange(len(p))
    return {
        "label": label, "before": before[rows, label], "own": p[rows, label], "rank": rank[rows, label],
        "top": p.max(1), "u": u, "weight": np.ones(len(p)) if weight is None else weight,
    }  # fmt: skip


def set_threshold(
    held: LabelScores, coverage: float, penalty: float = 0.0, n_free: int = 5, randomized: bool = False
) -> float:
    """The score up to which sets hold classes; infinite if there are too few rows to say.

    Example:
        >>> held = label_scores(np.array([[0.7, 0.3]] * 19), np.array([0] * 14 + [1] * 5), np.zeros(19))
        >>> round(set_threshold(held, 0.7), 3), round(set_threshold(held, 0.9), 3), set_threshold(held, 0.96)
        (0.35, 0.85, inf)
    """
    u = held["u"] if randomized else MIDDLE
    score = held["before"] + u * held["own"] + penalty * np.maximum(held["rank"] - n_free, 0)
    order = np.argsort(score, kind="stable")
    weight = np.asarray(held["weight"], dtype=np.float64)[order]
    # a new row counts as much as these do on average; not one row more for rounding's sake
    wanted = coverage * (weight.sum() + weight.mean()) * (1 - 1e-9) if len(weight) else 1.0
    place = int((weight.cumsum() < wanted).sum())
    return float(score[order[place]]) if place < len(score) else float("inf")


def set_thresholds_by_class(
    held: LabelScores, n_classes: int, coverage: float, penalty: float = 0.0, n_free: int = 5, randomized: bool = False
) -> np.ndarray:
    """The same from the rows of each class alone, so that each class is covered. shape: (C,)"""
    of = [{name: values[held["label"] == c] for name, values in held.items()} for c in range(n_classes)]
    return np.array([set_threshold(own, coverage, penalty, n_free, randomized) for own in of])


def prediction_sets(
    p: np.ndarray,
    threshold: float | np.ndarray,
    u: np.ndarray | float | None = None,
    penalty: float = 0.0,
    n_free: int = 5,
    allow_empty: bool = False,
) -> np.ndarray:
    """Which classes each row's set holds. shape: (n, C), bool

    Args:
        p: probabilities. shape: (n, C)
        threshold: of scores, or one for each class. shape: () or (C,)
        u: numbers of the rows, or one for all; None: 1/2. shape: (n,) or ()
        penalty, n_free: as in the scores of the rows held out.
        allow_empty: otherwise the most probable class is in every set.

    Example:
        >>> prediction_sets(np.array([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]]), 0.7)
        array([[ True, False, False],
               [ True,  True, False]])
    """
    before, rank = _ranked(p)
    score = before + np.reshape(MIDDLE if u is None else u, (-1, 1)) * p + penalty * np.maximum(rank - n_free, 0)
    found = score <= threshold
    return found if allow_empty else found | (rank == 1)


Quantities = Mapping[str, np.ndarray]
"""What is predicted for some points: the outputs of a task by name, and, where the model can say them exactly,
``lower`` and ``upper`` end of the interval, or the classes in a prediction ``set``, ``log_density`` of the observed
targets and ``cdf`` at them.
shapes: (n, names) or (n,)
"""


class UnknownTaskError(BEDLError, ValueError):
    """There is no task of that name."""


@dataclass(frozen=True)
class Output:
    """One output of a model.

    Attributes:
        unit: "target" (that of the target), "linked target" (of which a link makes the target), "target²" (a variance),
            "probability", "probability²" or "nats".
        per_name: whether there is an entry for each class or target, shape (n, names), or one per point, shape (n,).
        optional: whether files that were written before this output existed are read all the same.
    """

    unit: str
    per_name: bool = True
    optional: bool = False


class Task:
    """Base of the tasks. A subclass states the attributes, and how outputs become columns, a record and scores.

    Attributes:
        name: what the task is called, which is also the name of its module.
        outputs: what models predict, by name: the outputs of an ONNX file, and of `Predictive.outputs()`.
        column: what a target column holds: a "number", a "class", or, several columns together, "binary" values.
        automatic: whether this is the task for such columns when nobody names one.
        missing: what stands for a target that is not known.
        dtype: how targets are stored.
        estimator: name of the class in `bedl.estimators` that learns it.
        options: what is passed to that class.
        record: the class of its records, see `Results`.
        observed: the field of a record that holds the targets.
        work: numbers that are held at once for each class or target of a point while it is predicted.
        meanings: the scores by name, and how they are shown.
    """

    name: ClassVar[str]
    outputs: ClassVar[Mapping[str, Output]]
    column: ClassVar[Literal["number", "class", "binary"]]
    automatic: ClassVar[bool] = True
    missing: ClassVar[float]
    dtype: ClassVar[type]
    estimator: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    record: ClassVar[type[Results]]
    observed: ClassVar[str] = "y"
    work: ClassVar[int] = 1
    meanings: ClassVar[Mapping[str, Meaning]]

    # -- targets ----------------------------------------------------------------------------------
    @property
    def named(self) -> Literal["class", "target"]:
        """What the entries of an output are: classes of one target, or targets."""
        return "class" if self.column == "class" else "target"

    def describe(self, names: Sequence[Any]) -> str:
        """The task in a few words, for a person who has just named a target column."""
        return self.name

    def known(self, y: np.ndarray) -> np.ndarray:
        """Which rows have a target. y shape: (n,) or (n, targets) -> (n,)"""
        present = ~np.isnan(y) if np.isnan(self.missing) else y != self.missing
        return present.reshape(len(y), -1).all(1)

    def filled(self, y: np.ndarray) -> np.ndarray:
        """The targets, with 0 for what is not known. shape: that of y"""
        return np.where(np.isnan(y) if np.isnan(self.missing) else y == self.missing, np.zeros_like(y), y)

    def validation_error(self, y: np.ndarray) -> tuple[int, str] | None:
        """The first target that cannot be one of this task, as its row and a sentence; None if all can. shape: (n,)"""
        return None

    # -- predictions ------------------------------------------------------------------------------
    def columns(
        self, quantities: Quantities, names: Sequence[Any] | None = None, coverage: float = 0.9
    ) -> dict[str, np.ndarray]:
        """Predictions as the columns of a table.

        Args:
            quantities: what was predicted.
            names: the names of the classes or targets; 0, 1, 2, … by default.
            coverage: share of the targets that intervals are to hold.
        """
        raise NotImplementedError

    def results(
        self,
        quantities: Quantities,
        y: np.ndarray | None = None,
        *,
        names: Sequence[Any] | None = None,
        target: str = "target",
        coverage: float = 0.9,
    ) -> Results:
        """Predictions as a record that is scored and shown.

        Args:
            quantities: what was predicted.
            y: observed targets, marked where they are missing.
            names: the names of the classes or targets.
            target: what the target is called.
            coverage: share of the targets that intervals are to hold.
        """
        fields: dict[str, Any] = {**self.fields(quantities, names, coverage), self.observed: y}
        return self.record(**fields, log_density=quantities.get("log_density"), target_name=target)

    def fields(self, quantities: Quantities, names: Sequence[Any] | None, coverage: float) -> dict[str, Any]:
        """The fields of the record that hold predictions; arguments as for `results`."""
        raise NotImplementedError

    def scores(self, results: Any) -> dict[str, float]:
        """Every score that the record allows, by the names of `meanings`."""
        raise NotImplementedError

    def baseline(self, results: Any) -> dict[str, float]:
        """What the scores would be for one answer to all rows, made of the record's own targets; {} if none."""
        return {}

    def marginal(self, outputs: Quantities) -> dict[str, np.ndarray]:
        """Outputs where an input is unknown, of those for its possible values: these differ in missing evidence.

        shapes: (values, n, …) -> (n, …)
        """
        raise NotImplementedError

    # -- two models -------------------------------------------------------------------------------
    def differences(self, truth: Quantities, other: Quantities) -> dict[str, float]:
        """Largest difference of each output: probabilities and entropies as they are, others in predicted stds.

        Example:
            >>> from bedl.evaluation.tasks import get
            >>> one = {"mean": np.array([100.0]), "std": np.array([10.0]), "aleatoric": np.array([100.0])}
            >>> two = {"mean": np.array([101.0]), "std": np.array([11.0]), "aleatoric": np.array([110.0])}
            >>> get("regression").differences(one, two)
            {'mean': 0.1, 'std': 0.1, 'aleatoric': 0.1}
        """
        power = {"target": 1, "target²": 2}
        found = {}
        for name, values in truth.items():
            exponent = power.get(self.outputs[name].unit, 0)
            size = truth["std"] ** exponent if exponent else 1.0
            found[name] = float((np.abs(values - other[name]) / size).max(initial=0.0))
        return found

    def cost(self, truth: Quantities, other: Quantities) -> dict[str, float]:
        """What it costs a user to be given the other predictions, in a few numbers."""
        raise NotImplementedError


def names_for(names: Sequence[Any] | None, count: int, what: str) -> list[Any]:
    """As many names as there are classes or targets; numbers if there are none.

    Example:
        >>> names_for(None, 2, "class"), names_for(["price"], 1, "target")
        ([0, 1], ['price'])
    """
    found = list(range(count)) if names is None else list(names)
    if len(found) != count:
        raise ValueError(f"{len(found)} {what} names for {count} outputs")
    return found


# Scores that several tasks share, and what names of scores mean. A score that cannot be computed is left out.


class Meaning(NamedTuple):
    """How a score is shown: its label, in what unit or range, and which way is better."""

    label: str
    note: str
    share: bool = False  # shown as a percentage


NLL = Meaning("NLL", "negative log-likelihood in nats, mean per row; lower is better")
DETECTION = {
    "ood_auroc": Meaning("AUROC, OOD", "OOD against in-domain rows by total uncertainty; 1 perfect, 0.5 chance"),
    "ood_auroc_epistemic": Meaning("AUROC, OOD, epistemic", "the same by epistemic uncertainty alone"),
    "ood_aupr": Meaning("AUPR, OOD", "average precision of detecting OOD rows by total uncertainty"),
    "ood_fpr95": Meaning(
        "FPR95, OOD", "in-domain rows rejected when 95 % of the OOD rows are; lower is better", share=True
    ),
}


def score(results: Results) -> dict[str, float]:
    """Every score that a record of predictions allows, from all rows; `meanings` says what the names mean.

    Regression scores take the predictions for normal, unless the record knows better (`pit`, `log_density`).

    Example:
        >>> import numpy as np
        >>> from bedl.evaluation.tasks.regression import RegressionResults
        >>> one = np.ones(2)
        >>> scores = score(RegressionResults(mean=one, std=one, aleatoric_std=one, epistemic_std=0 * one,
        ...                                  lower=one - 1.645, upper=one + 1.645, y=np.array([0.0, 2.0])))
        >>> scores["rmse"], scores["coverage"]
        (1.0, 1.0)
    """
    return get(results.task).scores(results)


def detection(results: Results) -> dict[str, float]:
    """How well the OOD rows of a record are detected; empty without OOD rows."""
    if results.ood is None:
        return {}
    known, foreign = results.uncertainty, results.ood.uncertainty
    return {
        "ood_auroc": metrics.auroc(known, foreign),
        "ood_auroc_epistemic": metrics.auroc(results.epistemic, results.ood.epistemic),
        "ood_aupr": metrics.aupr(known, foreign),
        "ood_fpr95": metrics.fpr_at_tpr(known, foreign),
    }


# Tasks by their names: each is a module of this package.


def names() -> list[str]:
    """The names of all tasks.

    Example:
        >>> {"classification", "regression"} <= set(names())
        True
    """
    return sorted(
        found.name for found in iter_modules(bedl.evaluation.tasks.__path__) if not found.name.startswith("_")
    )


def get(name: str) -> Task:
    """The task of that name; an unknown one is an error that lists those there are.

    Example:
        >>> list(get("regression").outputs)[:7]
        ['mean', 'std', 'aleatoric', 'epistemic', 'data', 'distributional', 'model']
    """
    return _get(name) if isinstance(name, str) else _refuse(name)


@cache
def _get(name: str) -> Task:
    return import_module(f"bedl.evaluation.tasks.{name}").TASK if name in names() else _refuse(name)


def _refuse(name: object) -> Task:
    raise UnknownTaskError(f"there is no task {name!r}; there are {', '.join(names())}")


def automatic(column: str) -> Task:
    """The task that is meant when nobody says: by what a target column holds, see `Task.column`.

    Example:
        >>> automatic("class").name
        'classification'
    """
    for name in names():
        task = get(name)
        if task.automatic and task.column == column:
            return task
    raise UnknownTaskError(f"no task takes {column} targets by itself; name one of {', '.join(names())}")


def meanings() -> dict[str, Meaning]:
    """What the scores of all tasks mean, by their names.

    Example:
        >>> meanings()["rmse"].label
        'RMSE'
    """
    return {score: meaning for name in names() for score, meaning in get(name).meanings.items()}


# Intervals as wide as rows that were held out ask for: NumPy alone, for models that run without PyTorch.


def held_out_factors(scores: Any, mass: Any, coverage: float) -> tuple[np.ndarray, np.ndarray]:
    """How many spreads an interval reaches below and above the centre, such that each tail holds its share of targets.

    The ⌊(1 − coverage)/2 · (n + 1)⌋-th smallest score and the ⌈(1 + coverage)/2 · (n + 1)⌉-th: V. Vovk,
    "Cross-conformal predictors", Annals of Mathematics and AI 2015. Where so few rows cannot say one of them, both are
    the ⌈coverage · (n + 1)⌉-th smallest absolute score; infinite if they cannot say that, either.

    Args:
        scores: by how many spreads targets that were held out lay above the centre, ascending. shape: (n, targets)
        mass: how many rows there are up to each, itself included. shape: (n,)
        coverage: the probability.

    Returns:
        shapes (targets,)

    Example:
        >>> scores = np.arange(-10.0, 30.0)[:, None]
        >>> held_out_factors(scores, np.arange(1.0, 41.0), 0.9)
        (array([9.]), array([28.]))
    """
    scores, mass = _with_mass(scores, mass)
    ends = [_factors(scores[:, target], mass[:, target], coverage) for target in range(scores.shape[1])]
    below, above = zip(*ends, strict=True)
    return np.array(below), np.array(above)


def _factors(scores: np.ndarray, mass: np.ndarray, coverage: float) -> tuple[float, float]:
    rows, close, own = mass[-1] + 1, 1e-6, np.diff(mass, prepend=0.0)  # not one row more for rounding's sake
    tail = (1 - coverage) / 2 * rows * (1 + close)
    below = int((mass <= tail).sum()) - 1
    above = int((mass[-1] - mass + own > tail).sum())  # as from above: halves of absolute scores end alike
    if below >= 0 and above < len(scores):
        return -scores[below], scores[above]
    order = np.argsort(np.abs(scores), kind="stable")
    place = int((own[order].cumsum() < coverage * rows * (1 - close)).sum())
    both = float(np.abs(scores[order[place]])) if place < len(scores) else math.inf
    return both, both


def widest(scores: Any, coverage: float) -> np.ndarray:
    """How many spreads an interval reaches where too few rows were held out to say it. shape: (targets,)"""
    from statistics import NormalDist

    return np.maximum(np.abs(np.asarray(scores)).max(0), NormalDist().inv_cdf(0.5 + coverage / 2))


def _with_mass(scores: Any, mass: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores, and how many rows there are up to each. shapes: (n, targets)"""
    scores, mass = np.asarray(scores, dtype=np.float64), np.asarray(mass, dtype=np.float64)
    return scores, mass if mass.ndim == 2 else np.broadcast_to(mass[:, None], scores.shape)


def signed_scores(scores: Any, mass: Any) -> tuple[np.ndarray, np.ndarray]:
    """Absolute scores as signed ones, half of each above the centre and half below.

    Args:
        scores: ascending. shape: (n, targets)
        mass: how many rows there are up to each. shape: (n,) or (n, targets)

    Returns:
        shapes (2 n, targets)

    Example:
        >>> scores, mass = signed_scores([[1.0], [3.0]], [1.0, 2.0])
        >>> scores[:, 0].tolist(), mass[:, 0].tolist()
        ([-3.0, -1.0, 1.0, 3.0], [0.5, 1.0, 1.5, 2.0])
    """
    scores, mass = _with_mass(scores, mass)
    each = np.diff(mass, axis=0, prepend=0.0) / 2
    return np.concatenate([-scores[::-1], scores]), np.concatenate([each[::-1], each]).cumsum(0)


def _exp(u: np.ndarray, knee: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(u, knee)) * (1 + np.maximum(u - knee, 0))


LINKS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "log": _exp, "logit": lambda u, knee: 1 / (1 + np.exp(-u))
}  # fmt: skip
"""Of positive and of bounded targets, by name: see `bedl.heads.predictive.LinkedPredictive`."""


def with_intervals(
    outputs: Mapping[str, np.ndarray], intervals: Mapping[str, Any] | None, coverage: float
) -> dict[str, np.ndarray]:
    """The outputs of a model with ``lower`` and ``upper`` as rows held out ask for, where the model knows of such; of
    classes with a prediction ``set``.

    Args:
        outputs: of the model, among them ``mean`` and ``spread``; for positive and bounded targets also
            ``linked_centre`` and ``linked_spread``, from which `LINKS` lead to the targets. shapes: (n, targets)
        intervals: ``signed`` scores and ``mass``, as for `held_out_factors`, or absolute ``scores``; ``link`` and
            ``knee``, if there is a link; of classes the scores of labels. None: nothing was held out.
        coverage: the probability.
    """
    found = dict(outputs)
    if intervals is not None and "own" in intervals:
        p = found["probabilities"].astype(np.float64)
        threshold = set_threshold({name: np.asarray(values) for name, values in intervals.items()}, coverage)
        return {**found, "set": prediction_sets(p / p.sum(1, keepdims=True), threshold)}
    if intervals is None or not {"spread", "linked_spread"} & set(outputs):
        return found
    scores, mass = (
        (intervals["signed"], intervals["mass"])
        if "signed" in intervals
        else signed_scores(intervals["scores"], intervals["mass"])
    )
    few = widest(scores, coverage)
    below, above = (np.where(np.isfinite(f), f, few) for f in held_out_factors(scores, mass, coverage))
    if "link" not in intervals:
        centre, spread = outputs["mean"], outputs["spread"]
        return {**found, "lower": centre - below * spread, "upper": centre + above * spread}
    link, knee = LINKS[intervals["link"]], np.asarray(intervals["knee"])
    centre, spread = found.pop("linked_centre"), found.pop("linked_spread")
    return {**found, "lower": link(centre - below * spread, knee), "upper": link(centre + above * spread, knee)}
