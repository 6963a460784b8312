"""Prediction sets of classes that rows held out calibrate: adaptive prediction sets (APS), regularised or not.

Classes are taken in the order of their probabilities. With a number u of a row, uniform or 1/2 for all rows, the score
of a class is

    s_c = Σ_{c' before c} p_c' + u · p_c + penalty · max(0, rank_c − n_free),   rank_c = 1, 2, …

and a set holds the classes whose score is at most the ⌈coverage · (n + 1)⌉-th smallest score of n labels that were held
out. Y. Romano, M. Sesia, E. Candès, "Classification with Valid and Adaptive Coverage", NeurIPS 2020; A. Angelopoulos,
S. Bates, M. Jordan, J. Malik, "Uncertainty Sets for Image Classifiers using Conformal Prediction", ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

__all__ = ["LabelScores", "label_scores", "prediction_sets", "set_threshold", "set_thresholds_by_class"]


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
