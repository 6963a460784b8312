"""What predictions are scored by, the same for every method."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

__all__ = ["class_scores", "gaussian_scores", "model_scores"]


def gaussian_scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> dict[str, float]:
    """Of a rival that says a mean and a standard deviation. shapes: (n,)"""
    from scipy.stats import norm

    z = (y - mean) / std
    crps = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    return {
        "log_likelihood": float(norm.logpdf(y, mean, std).mean()),
        "rmse": float(np.sqrt(np.mean((y - mean) ** 2))),
        "crps": float(crps.mean()),
        "coverage": float((np.abs(z) <= norm.ppf(0.95)).mean()),
        "width": float(2 * norm.ppf(0.95) * std.mean()),
    }


def model_scores(model: Any, x: Any, y: np.ndarray) -> dict[str, float]:
    """Of a fitted `BEDLRegressor`: its own density and the intervals that it gives by default."""
    import torch

    prediction = model.predict_dist(x)
    target = torch.as_tensor(np.asarray(y, dtype=np.float64))
    mean, std = prediction.mean[:, 0].numpy(), prediction.std[:, 0].numpy()
    low, high = model.predict_interval(x, 0.9)
    own_low, own_high = (end[:, 0].numpy() for end in prediction.interval(0.9))
    return {
        **gaussian_scores(y, mean, std),  # its CRPS is that of a normal of the same mean and spread
        "log_likelihood": float(prediction.log_prob(target).mean()),
        "coverage": float(((low <= y) & (y <= high)).mean()),
        "coverage_own": float(((own_low <= y) & (y <= own_high)).mean()),
        "width": float((high - low).mean()),
        "epistemic_share": float((prediction.epistemic / prediction.total).mean()),
    }


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
