"""Recalibration with held-out rows: widths of intervals, temperatures of probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bedl.evaluation.tasks import LabelScores, label_scores, signed_scores

__all__ = [
    "abstention_threshold",
    "checked_label_scores",
    "checked_scores",
    "fitted_temperatures",
    "held_out_labels",
    "held_out_scores",
    "tempered",
    "thinned",
]


MAX_SCORES = 2000  # scores that are kept
MAX_LABELS = 4000  # labels whose scores are kept: there are some of each class
ENOUGH = 0.6  # of the risk that is allowed, at which tests begin
OUTLIER_SHARE = 0.05  # the share of points that may be of none of the classes
Scores = tuple[list[list[float]], list[list[float]]]


def held_out_scores(z: np.ndarray, weight: np.ndarray | None = None) -> Scores:
    """By how many spreads targets lie above the centre, ascending, and how many rows there are up to each.

    Of many rows only some are kept, such that the quantiles of those lie no nearer to the centre.

    Args:
        z: shape (n, targets)
        weight: how much each row counts; None: all the same. shape: (n,)

    Example:
        >>> held_out_scores(np.array([[-2.0], [1.0], [0.5]]))
        ([[-2.0], [0.5], [1.0]], [[1.0], [2.0], [3.0]])
    """
    order = np.argsort(z, axis=0, kind="stable")
    weight = np.ones(len(z)) if weight is None else weight
    return thinned(np.take_along_axis(z, order, 0), weight[order].cumsum(0))


def thinned(scores: np.ndarray, mass: np.ndarray) -> Scores:
    """At most `MAX_SCORES` of them, the first and the last among them. shapes: (n, targets)"""
    if len(scores) > MAX_SCORES:
        kept = np.unique(np.linspace(len(scores) - 1, 0, MAX_SCORES).round().astype(int))
        scores, mass = scores[kept], mass[kept]
    return scores.tolist(), mass.tolist()


def checked_scores(state: Mapping[str, Any], name: str, n_targets: int) -> Scores | None:
    """Scores from a file, or an error if they are none. Before version 5 of the format they were absolute."""
    stored = state.get(f"{name}_scores")
    if stored is None and state.get(name) is not None:
        stored = signed_scores(*state[name])
    if stored is None:
        return None
    scores, mass = (np.asarray(part, dtype=np.float64) for part in stored)
    if scores.ndim != 2 or scores.shape[1] != n_targets or mass.shape != scores.shape:
        raise ValueError("the calibration is none of this model")
    if not np.isfinite(scores).all() or not np.isfinite(mass).all() or not len(scores):
        raise ValueError("the calibration is none of this model")
    return scores.tolist(), mass.tolist()


def held_out_labels(p: np.ndarray, label: np.ndarray, weight: np.ndarray | None = None) -> LabelScores:
    """Scores of labels that were not learned from, for prediction sets; of many, some at random.

    Args:
        p: what was predicted of them. shape: (n, C)
        label: numbers of the classes. shape: (n,)
        weight: how much each row counts; None: all the same. shape: (n,)
    """
    random = np.random.default_rng(0)
    rows = np.sort(random.permutation(len(p))[:MAX_LABELS])
    p = p / p.sum(1, keepdims=True)
    return label_scores(p[rows], label[rows], random.uniform(size=len(rows)), None if weight is None else weight[rows])


def checked_label_scores(stored: Mapping[str, Any] | None, n_classes: int) -> LabelScores | None:
    """Scores of labels from a file, or an error if they are none."""
    if stored is None:
        return None
    names = ("label", "before", "own", "rank", "top", "u", "weight")
    found = {name: np.asarray(stored[name], dtype=np.int64 if name in ("label", "rank") else float) for name in names}
    shapes, values = {part.shape for part in found.values()}, np.concatenate([part.ravel() for part in found.values()])
    wrong = len(shapes) > 1 or found["u"].ndim != 1 or not len(found["u"]) or (found["label"] >= n_classes).any()
    if wrong or not np.isfinite(values).all() or (values < 0).any():
        raise ValueError("the calibration is none of this model")
    return found


def abstention_threshold(held: LabelScores, max_risk: float, confidence: float) -> float:
    """The probability that the most probable class needs, so that at most a share `max_risk` of such rows is wrong.

    Learn then test: with the rows that were held out in descending order of that probability, the hypothesis "more of
    the rows down to here are wrong" is tested row by row, see `risk_p_values`, until one is not rejected. If rows of a
    larger probability are no more often wrong, the bound holds for the threshold found with probability `confidence`
    over the rows held out. Infinite if there is none. A. Angelopoulos, S. Bates, E. Candès, M. Jordan, L. Lei, "Learn
    then Test: Calibrating Predictive Algorithms to Achieve Risk Control", Annals of Applied Statistics 2025.

    Example:
        >>> p = np.column_stack([np.repeat([0.99, 0.6], 400), np.repeat([0.01, 0.4], 400)])
        >>> label = np.array([0] * 396 + [1] * 4 + [0] * 240 + [1] * 160)  # 1 %, then 40 % are wrong
        >>> held = held_out_labels(p, label)
        >>> abstention_threshold(held, 0.05, 0.95), abstention_threshold(held, 0.3, 0.95)
        (0.99, 0.6)
        >>> abstention_threshold(held, 0.001, 0.95)
        inf
    """
    thresholds, p_values = risk_p_values(held, max_risk, 1 - confidence)
    passed = int(np.logical_and.accumulate(p_values <= 1 - confidence).sum())
    return float(thresholds[passed - 1]) if passed else math.inf


def risk_p_values(held: LabelScores, max_risk: float, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Thresholds of the probability, descending, and the p-value of "more than `max_risk` of the rows above are wrong".

    The errors among the first k rows are binomial, given the probability of the next one. The first threshold is that
    of as many rows as reject the hypothesis at this level if 60 % of the risk is there: it depends on no label.
    """
    from scipy.stats import binom

    counts = held["weight"] > 0
    order = np.argsort(-held["top"][counts], kind="stable")
    top, wrong = held["top"][counts][order], (held["rank"][counts] > 1)[order].cumsum()
    rows = np.arange(1, len(top) + 1)
    enough = binom.cdf(np.floor(ENOUGH * max_risk * rows), rows, max_risk) <= level
    last = np.append(top[1:] < top[:-1] - 1e-9, True)  # of equal ones
    some = np.logical_or.accumulate(enough) & last
    return top[some], binom.cdf(wrong[some], rows[some], max_risk)


def tempered(
    log_probabilities: np.ndarray, temperatures: tuple[float, float], vacuity: np.ndarray | float
) -> np.ndarray:
    """Log-probabilities at the temperatures that `fitted_temperatures` gives. shape: (n, C)"""
    from scipy.special import log_softmax

    known, unknown = 1 / np.asarray(temperatures)
    power = known + (unknown - known) * np.clip(np.broadcast_to(vacuity, len(log_probabilities)), 0, 1)
    return np.asarray(log_softmax(log_probabilities * power[:, None], 1))


def fitted_temperatures(
    log_probabilities: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray | None = None,
    doubt: float = 0.0,
    vacuity: np.ndarray | float = 0.0,
) -> tuple[float, float]:
    """Temperatures that make labels most likely: where there is evidence, and where there is none; 1/20 to 20.

    The power of p goes from one to the other as evidence does (`CategoricalPredictive.tempered`). What has no evidence
    is foreign, of which no label speaks, or a known thing that is hard to tell. Unless labels of many such points say
    otherwise, it stays as bold as it was trained, or becomes as careful as the rest: a prior that weighs as much as if
    one point in twenty were foreign, and four more.

    Where three in four of the points lack evidence, as under a bound on all of it, evidence says nothing about
    confidence. There is one temperature then, and less doubt: such probabilities are too careful by construction.

    C. Guo, G. Pleiss, Y. Sun, K. Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Args:
        log_probabilities: shape (n, C)
        labels: numbers of the classes. shape: (n,)
        weight: how much each row counts; None: all the same. shape: (n,)
        doubt: precision of a normal prior of log t around 0, in rows: few rows that are all right are no proof.
        vacuity: lack of evidence; from 1 on there is none. shape: (n,)

    Example:
        >>> log_p = np.log([[0.99, 0.01]] * 4)
        >>> t, _ = fitted_temperatures(log_p, np.array([0, 0, 0, 1]))  # right in three of four only
        >>> round(float(1 / (1 + np.exp((log_p[0, 1] - log_p[0, 0]) / t))), 3)
        0.75
    """
    from scipy.optimize import minimize
    from scipy.special import logsumexp, softmax

    gaps = log_probabilities - log_probabilities[np.arange(len(labels)), labels][:, None]  # shape: (n, C)
    weight = np.ones(len(labels)) if weight is None else weight
    lack = np.clip(np.broadcast_to(vacuity, len(labels)), 0, 1)
    single = bool(np.average(lack > 0.5, weights=weight) > 0.75)
    if single:
        lack, doubt = np.zeros(len(labels)), doubt / 8
    mix = np.stack([1 - lack, lack])  # shape: (2, n)

    def cost(logs: np.ndarray, usual: float, caution: float) -> tuple[float, np.ndarray]:
        """Of the logarithms of both powers, 1/t: what labels lack in likelihood and the priors, and its slope."""
        powers = np.exp(logs)
        powered = (powers @ mix)[:, None] * gaps
        rise = weight * (softmax(powered, 1) * gaps).sum(1)
        off, pull = logs - (0.0, usual), np.array([doubt, caution])
        value, slope = weight @ logsumexp(powered, 1) + pull @ off**2 / 2, (mix @ rise) * powers + pull * off
        return float(value / weight.sum()), slope / weight.sum()

    def most_likely(start: np.ndarray, usual: float, caution: float) -> np.ndarray:
        to_the_end = {"bounds": [(-math.log(20), math.log(20))] * 2, "options": {"ftol": 0, "gtol": 1e-12}}
        return np.asarray(minimize(cost, start, (usual, caution), "L-BFGS-B", jac=True, **to_the_end).x)

    free = most_likely(np.zeros(2), 0.0, 0.0)
    if single:
        return (float(np.exp(-free[0])),) * 2
    found = most_likely(free, min(free[0], 0.0), 4 + OUTLIER_SHARE * float(weight.sum()))
    known, unknown = np.exp(-found)
    return float(known), float(unknown)
