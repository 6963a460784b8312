"""What predictions are scored by, the same for every method."""

from __future__ import annotations

from typing import Any

import numpy as np

from bedl import metrics

__all__ = ["gaussian_scores", "regression_scores"]

COVERAGE = 0.9
LEVELS = (np.arange(100) + 0.5) / 100  # of quantiles, whose mean loss is half the CRPS


def regression_scores(model: Any, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Of a fitted `BEDLRegressor` with one target, on rows that it has not seen.

    Args:
        model: the estimator.
        x: shape (n, n_features)
        y: shape (n,)

    Returns:
        ``log_likelihood`` of its own density, ``rmse``, ``crps``, ``coverage`` and ``width`` of the 90 % intervals that
        it gives by default, ``coverage_own`` of the quantiles of its density, ``epistemic_share`` of the variance.
    """
    import torch

    prediction = model.predict_dist(x)
    low, high = (end.numpy()[:, 0] for end in model.interval_of(prediction, COVERAGE))
    own_low, own_high = (end.numpy()[:, 0] for end in prediction.interval(COVERAGE))
    y = np.asarray(y, dtype=np.float64)
    return {
        "log_likelihood": float(prediction.log_prob(torch.as_tensor(y)).mean()),
        "rmse": metrics.rmse(y, prediction.mean[:, 0].numpy()),
        "crps": _crps(prediction, y),
        "coverage": metrics.coverage(y, low, high),
        "width": metrics.interval_width(low, high),
        "coverage_own": metrics.coverage(y, own_low, own_high),
        "epistemic_share": float((prediction.epistemic / prediction.total).mean()),
    }


def gaussian_scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> dict[str, float]:
    """Of anything that says a mean and a standard deviation. shapes: (n,)

    Example:
        >>> round(gaussian_scores(np.zeros(2), np.zeros(2), np.ones(2))["log_likelihood"], 4)
        -0.9189
    """
    reach = 1.6448536269514722 * np.asarray(std)  # the normal's quantile of 0.95
    return {
        "log_likelihood": -metrics.nll_normal(y, mean, std),
        "rmse": metrics.rmse(y, mean),
        "crps": metrics.crps_normal(y, mean, std),
        "coverage": metrics.coverage(y, mean - reach, mean + reach),
        "width": float(2 * reach.mean()),
    }


def _crps(prediction: Any, y: np.ndarray) -> float:
    """In closed form for normals and their mixtures, else from a hundred quantiles."""
    from bedl.predictive import NormalMixturePredictive, NormalPredictive

    if isinstance(prediction, NormalPredictive):
        return metrics.crps_normal(y, prediction.mean[:, 0].numpy(), prediction.std[:, 0].numpy())
    if isinstance(prediction, NormalMixturePredictive):
        weights = prediction.log_weights.exp()[:, 0]
        if bool((weights == weights[:1]).all()):
            variances = prediction.members_data + prediction.members_distributional + prediction.members_model
            means, stds = prediction.means[:, 0].double().numpy(), variances[:, 0].double().sqrt().numpy()
            share = weights[0].double().numpy()
            return metrics.crps_mixture(y, means, stds, share / share.sum())
    quantiles = np.stack([prediction.quantile(float(level))[:, 0].numpy() for level in LEVELS])
    return float(2 * np.mean((y - quantiles) * (LEVELS[:, None] - (y < quantiles))))
