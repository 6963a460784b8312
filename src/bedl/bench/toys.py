"""Data made here, whose noise is known: what is said of uncertainty can be held against the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["SOURCES", "Source", "in_gap", "noise_of_gap", "spearman", "with_gap"]


class Source(NamedTuple):
    """Rows drawn at will.

    Attributes:
        classes: whether the target is a class.
        noises: how strong the noise is in a sweep: a standard deviation in units of the signal's, or for classes the
            share of labels that are drawn anew.
        draw: (n, noise, generator) -> x of shape (n, features), y of shape (n,)
    """

    classes: bool
    noises: tuple[float, ...]
    draw: Callable[[int, float, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def _sine(n: int, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = rng.uniform(-3, 3, (n, 1))
    return x, np.sin(2 * x[:, 0]) + noise * 0.7 * rng.normal(size=n)


def _friedman(n: int, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """J. Friedman, "Multivariate Adaptive Regression Splines", 1991: five features that matter and five that do not."""
    x = rng.uniform(size=(n, 10))
    signal = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, signal + noise * 4.9 * rng.normal(size=n)


def _blobs(n: int, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Three classes in the plane, well apart, of whose labels some are drawn anew."""
    y = rng.integers(3, size=n)
    angle = 2 * np.pi * y / 3
    x = 3 * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.8 * rng.normal(size=(n, 2))
    return x, np.where(rng.uniform(size=n) < noise, rng.integers(3, size=n), y)


_SPREADS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
SOURCES = {
    "sine": Source(False, _SPREADS, _sine),
    "friedman": Source(False, _SPREADS, _friedman),
    "blobs": Source(True, (0.0, 0.1, 0.2, 0.3, 0.4, 0.6), _blobs),
}


# -- a gap, and noise that grows ---------------------------------------------------------------------
def with_gap(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A sine between −3 and 3 without rows between −1 and 1; noise grows to the right. shapes: (n, 1), (n,)"""
    x = rng.uniform(1, 3, n) * np.where(np.arange(n) % 2, 1, -1)
    return x[:, None], np.sin(x) + noise_of_gap(x) * rng.normal(size=n)


def noise_of_gap(x: np.ndarray) -> np.ndarray:
    """The standard deviation of the noise there. shape: (n,)"""
    return 0.05 + 0.1 * (x + 3)


def in_gap(x: np.ndarray) -> np.ndarray:
    """Whether a place is well inside the gap. shape: (n,)"""
    return np.abs(x) <= 0.5


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Spearman's rank correlation; equal values share their mean rank, and without any spread it is not a number.

    >>> round(spearman([1, 2, 3], [10, 30, 20]), 6), round(spearman([1, 2, 2], [1, 2, 2]), 6)
    (0.5, 1.0)
    """
    first, second = _ranks(np.asarray(a)), _ranks(np.asarray(b))
    spread = first.std() * second.std()
    return float(((first - first.mean()) * (second - second.mean())).mean() / spread) if spread else float("nan")


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    ranks: np.ndarray = (last - (counts - 1) / 2)[place]
    return ranks
