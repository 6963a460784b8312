"""What predictions of classes are scored by, the same for every method; of targets, see `bedl.bench.regression`."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

__all__ = ["class_scores"]


def class_scores(y: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """Of class probabilities; labels are 0, 1, … shapes: (n,), (n, C)"""
    p = np.clip(probabilities, 1e-12, 1)
    p = p / p.sum(1, keepdims=True)
    sure, right = p.max(1), p.argmax(1) == y
    return {
        "log_likelihood": -float(log_loss(y, p, labels=np.arange(p.shape[1]))),
        "error": float(1 - right.mean()),
        "brier": float(((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean()),
        "ece": _ece(sure, right),
        "auroc_of_errors": float(roc_auc_score(~right, -sure)) if 0 < right.mean() < 1 else float("nan"),
    }


def _ece(sure: np.ndarray, right: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error in bins of equal width."""
    place = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = [abs(right[place == b].mean() - sure[place == b].mean()) * (place == b).mean() for b in set(place)]
    return float(sum(gaps))
