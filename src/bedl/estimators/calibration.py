"""What rows that were not learned from say about a fitted model: how wide its intervals, how bold its probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["checked_scores", "fitted_temperature", "held_out_scores", "thinned"]

MOST = 2000  # scores that are kept
Scores = tuple[list[list[float]], list[float]]


def held_out_scores(mean: np.ndarray, std: np.ndarray, y: np.ndarray) -> Scores:
    """By how many standard deviations each target was missed, ascending, and how many rows there are up to each.

    Of many rows only some are kept, such that a quantile of those is never smaller than one of all.

    Args:
        mean, std, y: shape (n, targets)

    Example:
        >>> held_out_scores(np.zeros((3, 1)), np.ones((3, 1)), np.array([[-2.0], [1.0], [0.5]]))
        ([[0.5], [1.0], [2.0]], [1.0, 2.0, 3.0])
    """
    if mean.shape != y.shape:
        raise ValueError(f"y has {y.shape[1]} targets, but was fitted with {mean.shape[1]}")
    scores = np.sort(np.abs(y - mean) / std, axis=0)
    return thinned(scores, np.arange(1.0, len(scores) + 1))


def thinned(scores: np.ndarray, mass: np.ndarray) -> tuple[list[Any], list[Any]]:
    """At most `MOST` of them, the last among them. scores: shape (n, targets); mass: shape (n,) or (n, targets)"""
    kept = np.unique(np.linspace(len(scores) - 1, 0, MOST).round().astype(int)) if len(scores) > MOST else slice(None)
    return scores[kept].tolist(), mass[kept].tolist()


def checked_scores(stored: Any, n_targets: int) -> Scores | None:
    """Scores from a file, or an error if they are none."""
    if stored is None:
        return None
    scores, mass = np.asarray(stored[0], dtype=np.float64), np.asarray(stored[1], dtype=np.float64)
    if scores.shape != (len(mass), n_targets) or not np.isfinite(scores).all() or not np.isfinite(mass).all():
        raise ValueError("the calibration is none of this model")
    return scores.tolist(), mass.tolist()


def fitted_temperature(
    log_probabilities: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray | None = None,
    doubt: float = 0.0,
    vacuity: np.ndarray | float = 0.0,
) -> float:
    """The t that makes labels most likely under p^(1/t), between 1/20 and 20: a convex problem in 1/t.

    Where t is below 1, probabilities are bolder only as far as there is evidence (`CategoricalPredictive.tempered`).

    C. Guo, G. Pleiss, Y. Sun, K. Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Args:
        log_probabilities: shape (n, C)
        labels: numbers of the classes. shape: (n,)
        weight: how much each row counts; None: all the same. shape: (n,)
        doubt: precision of a normal prior of log t around 0, in rows: few rows that are all right are no proof.
        vacuity: lack of evidence, from 0 to 1. shape: (n,)

    Example:
        >>> log_p = np.log([[0.99, 0.01]] * 4)
        >>> t = fitted_temperature(log_p, np.array([0, 0, 0, 1]))  # right in three of four only
        >>> round(float(1 / (1 + np.exp((log_p[0, 1] - log_p[0, 0]) / t))), 3)
        0.75
    """
    gaps = log_probabilities - log_probabilities[np.arange(len(labels)), labels][:, None]  # shape: (n, C)
    share = np.full(len(labels), 1 / len(labels)) if weight is None else weight / weight.sum()
    doubt = doubt / (len(labels) if weight is None else float(weight.sum()))
    low, high = 1 / 20, 20.0
    for _ in range(60):  # the slope of the mean −log p in 1/t rises: bisect its root
        middle = (low + high) / 2
        known = 1 - np.clip(vacuity, 0, 1) if middle > 1 else np.ones(1)
        powered = (1 + (middle - 1) * known)[..., None] * gaps
        p = np.exp(powered - powered.max(1, keepdims=True))
        rise = ((p / p.sum(1, keepdims=True)) * gaps).sum(1) * known
        slope = float(rise @ share + doubt * np.log(middle) / middle)
        low, high = (low, middle) if slope > 0 else (middle, high)
    return 2 / (low + high)
