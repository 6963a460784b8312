"""Which rows to label next: those whose labels would tell most about all the others."""

from __future__ import annotations

import numpy as np

MIN_VARIANCE = 1e-300
MAX_ROWS = 2000  # of a large pool, that are looked at: so many of the least known, and so many of all


def candidates(unknown: np.ndarray, most: int = MAX_ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Of a large pool: rows that may be labelled, and which of them stand for the pool. shape: (n,) -> (m,), (m,)

    They stand for it by what is not known of them, in whatever order rows come.
    """
    if len(unknown) <= 2 * most:
        return np.arange(len(unknown)), np.ones(len(unknown), dtype=bool)
    order = np.argsort(-unknown, kind="stable")
    spaced = order[np.linspace(0, len(order) - 1, most).astype(np.int64)]
    rows = np.union1d(spaced, order[:most])
    return rows, np.isin(rows, spaced)


def rest_of(unknown: np.ndarray, found: np.ndarray) -> np.ndarray:
    """All other rows, the least known first. shapes: (n,), (m,) -> (n - m,)"""
    order = np.argsort(-unknown, kind="stable")
    return order[~np.isin(order, found)]


def most_telling(
    unknown: np.ndarray, noise: float, places: np.ndarray, n: int, matter: np.ndarray | None = None
) -> np.ndarray:
    """Rows whose labels, one after the other, lower the sum of the epistemic variances most.

    What is not known of two rows is taken for a Gaussian process: they have the variances `unknown`, and their
    correlation falls with the squared distance between them, in units of what is predicted, over the usual epistemic
    variance. (Where predictions differ by more than what is not known, the one says nothing about the other.) Then each
    label's effect on all rows has a closed form, and the best is taken: D. Cohn, Z. Ghahramani, M. Jordan, "Active
    Learning with Statistical Models", JAIR 1996; A. Krause, A. Singh, C. Guestrin, JMLR 2008.

    Args:
        unknown: epistemic variances. shape: (n,)
        noise: the variance of a label's noise.
        places: where rows are, in units of what is predicted. shape: (n, columns)
        n: how many.
        matter: which rows are to be known. shape: (n,)

    Returns:
        which rows, the first one first. shape: (n,)

    Example:
        >>> import numpy as np
        >>> places = np.array([[0.0], [0.01], [0.02], [5.0]])  # three that are alike, and one apart
        >>> most_telling(np.array([1.0, 1.0, 1.0, 1.2]), 0.1, places, 2)
        array([1, 3])
    """
    if matter is None:
        matter = np.ones(len(unknown), dtype=bool)
    sizes = np.einsum("ij,ij->i", places, places)
    squares = np.maximum(sizes[:, None] + sizes - 2 * places @ places.T, 0.0)
    covariance = np.sqrt(np.outer(unknown, unknown)) * np.exp(-squares / (2 * max(unknown.mean(), MIN_VARIANCE)))
    with_all = np.ascontiguousarray(covariance[:, matter])  # of each row with those that are to be known
    left, gain = unknown.astype(np.float64), np.square(with_all).sum(1)  # variances, and sums of squares
    told = np.zeros((n, len(unknown)))  # what each label takes from the covariances is an outer product of these
    free = np.ones(len(unknown), dtype=bool)
    chosen = np.zeros(n, dtype=np.int64)
    for number in range(n):
        best = int(np.where(free, gain / np.maximum(left + noise, MIN_VARIANCE), -np.inf).argmax())
        chosen[number], free[best] = best, False
        before = told[:number]
        said = (covariance[best] - before[:, best] @ before) / np.sqrt(max(left[best] + noise, MIN_VARIANCE))
        across = with_all @ said[matter] - before.T @ (before[:, matter] @ said[matter])
        gain = np.maximum(gain - 2 * said * across + np.square(said) * np.square(said[matter]).sum(), 0.0)
        left = np.maximum(left - np.square(said), 0.0)
        told[number] = said
    return chosen
