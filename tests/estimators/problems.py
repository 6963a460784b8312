"""Small tables that several tests learn from."""

from __future__ import annotations

import numpy as np

# What estimators do around a method, shown on a quick one; the default has tests of its own.
QUICK = {
    "method": "bedl",
    "hidden_layers": (16,),
    "epochs": 15,
    "batch_size": 32,
    "learning_rate": 0.02,
    "device": "cpu",
    "random_state": 0,
}


def table(n: int = 120, d: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """X: shape (n, d); y: shape (n,), around 500"""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, 500 + 30 * X[:, 0] + 3 * rng.normal(size=n)


def labels(n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """X: shape (n, 3); y: one of "high", "low" and "middle"."""
    X, y = table(n, 3, seed)
    return X, np.select([y > 515, y < 485], ["high", "low"], "middle")
