"""Ranking: how well a score, such as the entropy, separates positives from negatives, or OOD from in-domain inputs.

`scores_in` are the scores of negatives (in-domain inputs), `scores_out` those of positives (out-of-distribution ones).
Higher means more likely positive.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bedl.evaluation.metrics._checks import Floats, MetricError, as_rows


def auroc(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Area under the ROC curve: P(out > in) + ½ P(out = in). 0.5 is chance, 1 is perfect. shapes: (n,), (m,)

    >>> auroc([0.1, 0.2, 0.3], [0.3, 0.9])
    0.9166666666666666
    """
    known, foreign = _scores(scores_in, scores_out)
    known = np.sort(known)
    below = np.searchsorted(known, foreign, side="left").astype(np.float64)
    upto = np.searchsorted(known, foreign, side="right")
    return float(np.mean(below + upto) / 2 / len(known))


def aupr(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Average precision, Σ_k (recall_k − recall_{k−1})·precision_k, over thresholds.

    shapes: (n,), (m,). Chance is the share of positives, m / (n + m).

    >>> aupr([0.1, 0.2, 0.3], [0.3, 0.9])
    0.8333333333333333
    """
    _, false, true = _counts_above(*_scores(scores_in, scores_out))
    return float(np.sum(np.diff(true, prepend=0) * true / (true + false)) / true[-1])


def fpr_at_tpr(scores_in: ArrayLike, scores_out: ArrayLike, tpr: float = 0.95) -> float:
    """False-positive rate at the strictest threshold whose true-positive rate is at least `tpr`.

    shapes: (n,), (m,). Lower is better; scores that tie with the threshold count as positive.

    >>> fpr_at_tpr([0.1, 0.2, 0.3, 0.4], [0.35, 0.9])
    0.25
    """
    if not 0 < tpr <= 1:
        raise MetricError(f"tpr must lie in (0, 1], not {tpr}")
    known, foreign = _scores(scores_in, scores_out)
    needed = math.ceil(tpr * len(foreign) - 1e-9)  # 0.95 · 20 is 19, whatever the rounding says
    threshold = np.sort(foreign)[len(foreign) - needed]
    return float(np.mean(known >= threshold))


class ThresholdCurve(NamedTuple):
    """What each threshold leads to, strictest first; scores at or above it count as positive. shapes: (k,)"""

    threshold: Floats  # distinct, descending
    recall: Floats  # true-positive rate
    false_positive_rate: Floats
    precision: Floats


def threshold_curve(scores_in: ArrayLike, scores_out: ArrayLike) -> ThresholdCurve:
    """The points of the ROC curve and of the precision–recall curve, one for each distinct score. shapes: (n,), (m,)

    >>> curve = threshold_curve([0.1, 0.4], [0.4, 0.9])
    >>> curve.recall.tolist(), curve.false_positive_rate.tolist(), curve.precision.round(3).tolist()
    ([0.5, 1.0, 1.0], [0.0, 0.5, 1.0], [1.0, 0.667, 0.5])
    """
    threshold, false, true = _counts_above(*_scores(scores_in, scores_out))
    return ThresholdCurve(threshold, true / true[-1], false / false[-1], true / (true + false))


class ECDF(NamedTuple):
    """Empirical distribution function: the share of values at or below `x`. shapes: (k,), x ascending and distinct"""

    x: Floats
    share: Floats


def ecdf(values: ArrayLike) -> ECDF:
    """The empirical cumulative distribution function of the values. shape: (n,)

    >>> ecdf([2.0, 1.0, 2.0]).x.tolist(), ecdf([2.0, 1.0, 2.0]).share.round(3).tolist()
    ([1.0, 2.0], [0.333, 1.0])
    """
    (values_,) = as_rows(values=values)
    x, count = np.unique(values_, return_counts=True)
    return ECDF(x, np.cumsum(count) / values_.size)


def ecdf_auc(entropy: ArrayLike, classes: int) -> float:
    """Area under the empirical distribution function of the entropy, on [0, log C]; equals log C − mean entropy.

    Low on OOD inputs is good (uniform predictions), *high* on in-domain ones: predictions that are uniform everywhere
    have a perfect 0 on OOD inputs, so never look at it alone. entropy in nats. shape: (n,)

    >>> import math
    >>> ecdf_auc([math.log(10)], 10), round(ecdf_auc([0.0], 10), 4)
    (0.0, 2.3026)
    """
    (entropy_,) = as_rows(entropy=entropy)
    if classes < 2:
        raise MetricError(f"classes must be at least 2, not {classes}")
    top = math.log(classes)
    if entropy_.min() < -1e-3 or entropy_.max() > top + 1e-3:
        raise MetricError(f"entropy must lie between 0 and log {classes} = {top:.4f} nats: is it in bits?")
    return float(top - np.clip(entropy_, 0, top).mean())


def _scores(scores_in: ArrayLike, scores_out: ArrayLike) -> tuple[Floats, Floats]:
    (known,), (foreign,) = as_rows(scores_in=scores_in), as_rows(scores_out=scores_out)
    return known.ravel(), foreign.ravel()


def _counts_above(known: Floats, foreign: Floats) -> tuple[Floats, Floats, Floats]:
    """Distinct thresholds, descending, and how many negatives and positives score at least that much."""
    scores = np.concatenate([known, foreign])
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.diff(scores[order], append=-np.inf))  # ties are decided together
    true = np.cumsum(order >= len(known))[last].astype(np.float64)
    return scores[order][last], last + 1 - true, true


# Selective prediction: the error that remains if the least certain rows are rejected.


class RiskCoverage(NamedTuple):
    """Share of rows that are answered, and the mean loss among these. shapes: (n,), coverage ascending"""

    coverage: Floats
    risk: Floats


def risk_coverage(loss: ArrayLike, uncertainty: ArrayLike) -> RiskCoverage:
    """Mean loss of the k most certain rows, for k = 1 … n. Rows that tie have the mean loss of their group.

    Args:
        loss: of every row: 0 or 1 for right or wrong, a squared error, … shape: (n,)
        uncertainty: the rows with the highest are refused first. shape: (n,)

    >>> risk_coverage([0, 0, 1, 1], [0.1, 0.2, 0.3, 0.4]).risk.round(3).tolist()
    [0.0, 0.0, 0.333, 0.5]
    """
    loss_, uncertainty_ = as_rows(loss=loss, uncertainty=uncertainty)
    if loss_.ndim != 1:
        raise MetricError(f"loss has shape {loss_.shape}: one number per row is needed, shape (n,)")
    _, group, size = np.unique(uncertainty_, return_inverse=True, return_counts=True)
    mean = np.bincount(group, loss_) / size
    kept = np.arange(1, len(loss_) + 1)
    return RiskCoverage(kept / len(loss_), np.cumsum(np.repeat(mean, size)) / kept)


def aurc(loss: ArrayLike, uncertainty: ArrayLike) -> float:
    """Area under the risk-coverage curve: its mean over all coverages. Lower is better. shapes: (n,)

    Y. Geifman et al., ICLR 2019.

    >>> round(aurc([0, 0, 1, 1], [0.1, 0.2, 0.3, 0.4]), 4)
    0.2083
    """
    return float(risk_coverage(loss, uncertainty).risk.mean())
