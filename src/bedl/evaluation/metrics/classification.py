"""Scores of predicted class probabilities. Labels are class numbers, 0 … C − 1."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bedl.evaluation.metrics._checks import Floats, MetricError, as_labels, as_rows, as_table
from bedl.evaluation.metrics.ranking import aupr, auroc


def nll_categorical(labels: ArrayLike, log_probabilities: ArrayLike) -> float:
    """Negative log-probability of the labels, mean −log p(label), in nats.

    Args:
        labels: shape: (n,)
        log_probabilities: natural logarithms; −inf is a probability of 0. shape: (n, C)

    >>> import math
    >>> round(nll_categorical([0, 1], [[math.log(0.5), math.log(0.5)], [math.log(0.8), math.log(0.2)]]), 4)
    1.1513
    """
    table = as_table("log_probabilities", log_probabilities, len(np.atleast_1d(labels)), finite=False)
    index = as_labels("labels", labels, table.shape[1])
    highest = table.max(1, keepdims=True)
    total = highest[:, 0] + np.log(np.exp(table - np.where(np.isinf(highest), 0, highest)).sum(1))
    if not np.allclose(total, 0, atol=1e-3):
        raise MetricError("log_probabilities do not sum to 1 when exponentiated: are they logits, or probabilities?")
    return float(-table[np.arange(len(index)), index].mean())


def accuracy(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Share of rows whose most probable class is the label. shapes: (n,), (n, C)

    >>> accuracy([0, 1], [[0.9, 0.1], [0.6, 0.4]])
    0.5
    """
    labels_, table = _checked(labels, probabilities)
    return float(np.mean(table.argmax(1) == labels_))


def balanced_accuracy(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Mean recall of the classes that occur, so that rare ones count as much as frequent ones. shapes: (n,), (n, C)

    >>> balanced_accuracy([0, 0, 0, 1], [[0.9, 0.1]] * 4)
    0.5
    """
    labels_, table = _checked(labels, probabilities)
    counts = np.bincount(labels_, minlength=table.shape[1])
    right = np.bincount(labels_[table.argmax(1) == labels_], minlength=table.shape[1])
    return float(np.mean(right[counts > 0] / counts[counts > 0]))


def one_vs_rest(labels: ArrayLike, probabilities: ArrayLike) -> tuple[Floats, Floats]:
    """AUROC and average precision of each class against all others; NaN for a class of no row, or of all rows.

    shapes: (n,), (n, C) -> (C,), (C,)

    >>> areas, precisions = one_vs_rest([0, 1, 1], [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    >>> areas.tolist(), precisions.tolist()
    ([1.0, 1.0], [1.0, 1.0])
    """
    labels_, table = _checked(labels, probabilities)
    found = np.full((2, table.shape[1]), np.nan)
    for number in np.unique(labels_):
        true = labels_ == number
        if not true.all():
            known, searched = table[~true, number], table[true, number]
            found[:, number] = auroc(known, searched), aupr(known, searched)
    return found[0], found[1]


def brier(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Mean over rows of Σ_c (p_c − [label = c])², from 0 (sure and right) to 2 (sure and wrong). shapes: (n,), (n, C)

    G. Brier, Monthly Weather Review 1950: the sum over all classes, also for two.

    >>> round(brier([0], [[0.8, 0.2]]), 4)
    0.08
    """
    labels_, table = _checked(labels, probabilities)
    right = table[np.arange(len(labels_)), labels_]
    return float(np.mean((table**2).sum(1) - 2 * right + 1))


class ReliabilityCurve(NamedTuple):
    """Rows in bins by confidence; an empty bin has 0 rows and NaN for its means."""

    edges: Floats  # shape: (bins + 1,)
    counts: NDArray[np.intp]  # shape: (bins,)
    confidence: Floats  # mean confidence of the rows in the bin. shape: (bins,)
    accuracy: Floats  # share of them that is right. shape: (bins,)


def reliability_curve(
    labels: ArrayLike, probabilities: ArrayLike, *, bins: int = 15, adaptive: bool = False
) -> ReliabilityCurve:
    """Confidence (probability of the most probable class) against accuracy, in bins.

    Args:
        labels: shape: (n,)
        probabilities: shape: (n, C)
        bins: how many.
        adaptive: bins with about equally many rows instead of equal width. Rows of one confidence stay in one bin, so
            there may be fewer.

    >>> curve = reliability_curve([0, 1], [[0.9, 0.1], [0.6, 0.4]], bins=2)
    >>> curve.counts.tolist(), curve.confidence[1].item(), curve.accuracy[1].item()
    ([0, 2], 0.75, 0.5)
    """
    labels_, table = _checked(labels, probabilities)
    if bins < 1:
        raise MetricError(f"bins must be at least 1, not {bins}")
    confidence = np.minimum(table.max(1), 1.0)
    right = table.argmax(1) == labels_
    if adaptive:
        # Edges are values that occur, so that rows of one confidence fall on one side of them.
        inner = np.quantile(confidence, np.arange(1, bins) / bins, method="inverted_cdf")
        edges = np.unique(np.concatenate([[0.0], inner, [1.0]]))
    else:
        edges = np.linspace(0, 1, bins + 1)
    index = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, len(edges) - 2)  # bins (low, high]
    count = np.bincount(index, minlength=len(edges) - 1)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(index, confidence, len(edges) - 1) / count
        share = np.bincount(index, right, len(edges) - 1) / count
    return ReliabilityCurve(edges, count, mean, share)


def ece(labels: ArrayLike, probabilities: ArrayLike, *, bins: int = 15, adaptive: bool = False) -> float:
    """Expected calibration error, Σ_b (n_b/n)·|accuracy_b − confidence_b|. shapes: (n,), (n, C)

    C. Guo et al., ICML 2017: 15 bins of equal width. See `reliability_curve`.

    >>> round(ece([0, 1], [[0.9, 0.1], [0.6, 0.4]], bins=2), 4)
    0.25
    """
    curve = reliability_curve(labels, probabilities, bins=bins, adaptive=adaptive)
    full = curve.counts > 0
    gap = np.abs(curve.accuracy - curve.confidence)[full]
    return float(np.sum(curve.counts[full] * gap) / curve.counts.sum())


def confusion(labels: ArrayLike, predicted: ArrayLike, classes: int) -> NDArray[np.intp]:
    """How often label i (row) was predicted as class j (column). shapes: (n,), (n,) -> (classes, classes)

    >>> confusion([0, 0, 1], [0, 1, 1], 2).tolist()
    [[1, 1], [0, 1]]
    """
    true, said = as_labels("labels", labels, classes), as_labels("predicted", predicted, classes)
    if len(true) != len(said):
        raise MetricError(f"there are {len(true)} labels but {len(said)} predictions")
    return np.bincount(true * classes + said, minlength=classes**2).reshape(classes, classes)


def entropy(probabilities: ArrayLike) -> Floats:
    """Entropy of each row, −Σ_c p_c log p_c, in nats: 0 if sure, log C if uniform. shape: (n, C) -> (n,)

    >>> entropy([[0.5, 0.5], [1.0, 0.0]]).round(4).tolist()
    [0.6931, 0.0]
    """
    table = _as_probabilities(probabilities)
    logs = np.log(table, out=np.zeros_like(table), where=table > 0)
    return np.maximum(-(table * logs).sum(1), 0.0)


def _checked(labels: ArrayLike, probabilities: ArrayLike) -> tuple[NDArray[np.intp], Floats]:
    table = _as_probabilities(probabilities)
    labels_ = as_labels("labels", labels, table.shape[1])
    as_rows(labels=labels_, probabilities=table[:, 0])  # equally many
    return labels_, table


def _as_probabilities(values: ArrayLike) -> Floats:
    table = as_table("probabilities", values)
    if table.min() < 0 or not np.allclose(table.sum(1), 1, atol=1e-3):
        raise MetricError(
            "probabilities must not be negative and sum to 1 in every row: are they logits, or logarithms?"
        )
    return table
