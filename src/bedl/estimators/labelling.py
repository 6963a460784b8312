"""Which rows to label next: those whose labels would tell most about all the others."""

from __future__ import annotations

import numpy as np

__all__ = ["MOST_ROWS", "candidates", "most_telling"]

MOST_ROWS = 2000  # of a large pool, that are looked at: so many evenly spaced, and so many of the least known


def candidates(unknown: np.ndarray, most: int = MOST_ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Of a large pool: rows that may be labelled, and which of them stand for the pool. shape: (n,) -> (m,), (m,)"""
    if len(unknown) <= 2 * most:
        return np.arange(len(unknown)), np.ones(len(unknown), dtype=bool)
    spaced = np.linspace(0, len(unknown) - 1, most).astype(np.int64)
    rows = np.union1d(spaced, np.argsort(-unknown, kind="stable")[:most])
    return rows, np.isin(rows, spaced)


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
    covariance = np.sqrt(np.outer(unknown, unknown)) * np.exp(-squares / (2 * max(unknown.mean(), 1e-300)))
    free = np.ones(len(unknown), dtype=bool)
    chosen = []
    for _ in range(n):
        own = np.maximum(covariance.diagonal(), 0.0) + noise
        gain = np.square(covariance[matter]).sum(0) / np.maximum(own, 1e-300)
        best = int(np.where(free, gain, -np.inf).argmax())
        chosen.append(best)
        free[best] = False
        said = covariance[best].copy()
        covariance -= np.outer(said, said / max(own[best], 1e-300))
    return np.array(chosen, dtype=np.int64)
