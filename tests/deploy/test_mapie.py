"""MAPIE's jackknife+ with standard deviations takes the regressor as it is: its `predict` knows `return_std`."""

from __future__ import annotations

import numpy as np
import pytest

import bedl

pytest.importorskip("mapie")


def test_standardised_scores_cover_and_widen_where_noise_is_larger() -> None:
    from mapie.conformity_scores.bounds.std_normalised import StdConformityScore
    from mapie.regression import CrossConformalRegressor

    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (700, 1))
    y = np.sin(5 * X[:, 0]) + (0.05 + 0.5 * X[:, 0]) * rng.normal(size=700)
    model = bedl.BEDLRegressor(method="evidence", epochs=30, device="cpu", random_state=0)
    conformal = CrossConformalRegressor(model, confidence_level=0.9, conformity_score=StdConformityScore(), cv=3)
    conformal.fit_conformalize(X[:300], y[:300])
    _, ends = conformal.predict_interval(X[300:])
    lower, upper = ends[:, 0, 0], ends[:, 1, 0]
    covered = (lower <= y[300:]) & (y[300:] <= upper)
    assert covered.mean() > 0.9 - 4 * np.sqrt(0.09 * (1 / 300 + 1 / 400))  # four standard errors of both samples
    width, left = upper - lower, X[300:, 0] < 0.5
    assert width[~left].mean() > 1.5 * width[left].mean()
