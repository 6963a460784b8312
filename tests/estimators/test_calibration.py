"""Fresh rows decide how wide intervals are, and how bold probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from sklearn.metrics import log_loss

from bedl import BEDLClassifier, BEDLRegressor
from bedl.estimators import load
from bedl.estimators.calibration import MOST, fitted_temperature, held_out_scores
from bedl.predictive import CategoricalPredictive

QUICK: dict[str, Any] = {"method": "bedl", "epochs": 20, "random_state": 0, "device": "cpu", "early_stopping": False}


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)).astype(np.float32)
    return X, 100 + 10 * X[:, 0] + rng.standard_t(3, size=n) * 5  # tails heavier than any normal's


@pytest.fixture(scope="module")
def model() -> BEDLRegressor:
    return BEDLRegressor(**QUICK).fit(*rows(60, 0)).calibrate(*rows(500, 1))


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.99])
def test_calibrated_intervals_cover(model: BEDLRegressor, coverage: float) -> None:
    X, y = rows(20_000, 2)
    lower, upper = model.predict_interval(X, coverage)
    # 500 rows decide: their quantile varies by sqrt(c (1 − c) / 500)
    found = np.mean((lower <= y) & (y <= upper))
    assert found == pytest.approx(coverage, abs=4 * np.sqrt(coverage * (1 - coverage) / 500))


def test_quantiles_are_the_ends_of_the_intervals(model: BEDLRegressor) -> None:
    X, _ = rows(10, 3)
    frame = model.predict_quantiles(X, [0.05, 0.5, 0.95])
    lower, upper = model.predict_interval(X, 0.9)
    assert list(frame.columns) == [("0", 0.05), ("0", 0.5), ("0", 0.95)]
    np.testing.assert_allclose(frame["0"][0.05], lower)
    np.testing.assert_allclose(frame["0"][0.95], upper)
    assert ((frame["0"][0.05] < frame["0"][0.5]) & (frame["0"][0.5] < frame["0"][0.95])).all()
    np.testing.assert_allclose(model.predict_var(X)["0"], model.predict(X, return_std=True)[1] ** 2)
    with pytest.raises(ValueError, match="between 0 and 1"):
        model.predict_quantiles(X, [1.5])


def test_a_calibration_is_saved(model: BEDLRegressor, tmp_path: Path) -> None:
    X, _ = rows(5, 4)
    model.save(tmp_path / "model.bedl")
    for ours, theirs in zip(model.predict_interval(X), load(tmp_path / "model.bedl").predict_interval(X), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_too_few_rows_are_refused() -> None:
    model = BEDLRegressor(**QUICK).fit(*rows(60, 0)).calibrate(*rows(8, 1))
    with pytest.raises(ValueError, match="8 rows are too few"):
        model.predict_interval(rows(5, 2)[0], 0.95)


def test_fewer_scores_are_kept_and_never_promise_less() -> None:
    y = np.random.default_rng(0).normal(size=(25_000, 1))
    scores, mass = held_out_scores(np.zeros_like(y), np.ones_like(y), y)
    assert len(scores) <= MOST
    assert mass[-1] == 25_000
    for coverage, most in ((0.3, 1.02), (0.9, 1.02), (0.999, 1.2)):
        exact = np.sort(np.abs(y[:, 0]))[int(np.ceil(coverage * 25_001)) - 1]
        kept = scores[int(np.sum(np.array(mass) < coverage * 25_001))][0]
        assert exact <= kept <= exact * most


@pytest.mark.parametrize("doubt", [0.0, 4.0, 400.0])
def test_the_temperature_is_the_most_likely_one(doubt: float) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(400, 3)) * 5
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    y = (logits / 4 + rng.gumbel(size=logits.shape)).argmax(1)
    weight = rng.integers(1, 4, size=400).astype(float)

    def cost(t: float) -> float:
        p = np.exp(log_p / t)
        fit = log_loss(y, p / p.sum(1, keepdims=True), sample_weight=weight)
        return fit + doubt * np.log(t) ** 2 / weight.sum() / 2

    best = scipy.optimize.minimize_scalar(cost, bounds=(0.1, 20), method="bounded", options={"xatol": 1e-6}).x
    assert fitted_temperature(log_p, y, weight, doubt) == pytest.approx(best, rel=1e-3)


def test_bolder_only_as_far_as_there_is_evidence() -> None:
    rng = np.random.default_rng(0)
    logits = torch.as_tensor(rng.normal(size=(400, 3)))
    vacuity = torch.as_tensor(rng.uniform(0, 0.8, size=400))
    log_p = torch.log_softmax(logits, -1)
    y = (3 * logits.numpy() + rng.gumbel(size=(400, 3))).argmax(1)
    p = CategoricalPredictive(log_p, 0 * vacuity, 0 * vacuity, vacuity, 0 * log_p)

    def cost(t: float) -> float:
        return log_loss(y, p.tempered(t).probabilities.numpy())

    best = scipy.optimize.minimize_scalar(cost, bounds=(0.1, 1), method="bounded", options={"xatol": 1e-6}).x
    assert fitted_temperature(log_p.numpy(), y, vacuity=vacuity.numpy()) == pytest.approx(best, rel=1e-3)
    nothing = CategoricalPredictive(log_p, 0 * vacuity, 0 * vacuity, 0 * vacuity + 1, 0 * log_p)
    torch.testing.assert_close(nothing.tempered(0.5).log_probabilities, log_p)
    torch.testing.assert_close(nothing.tempered(2.0).log_probabilities, torch.log_softmax(log_p / 2, -1))


def test_few_rows_that_are_all_right_are_no_proof() -> None:
    log_p = np.log(np.tile([0.9, 0.1], (20, 1)))
    sure, doubtful = (fitted_temperature(log_p, np.zeros(20, dtype=int), doubt=doubt) for doubt in (0.0, 4.0))
    assert sure == pytest.approx(1 / 20, rel=0.01)
    assert 0.4 < doubtful < 0.9


def test_a_classifier_is_calibrated_and_its_parts_add_up(tmp_path: Path) -> None:
    X, value = rows(300, 5)
    y = value > 100
    model = BEDLClassifier(**{**QUICK, "epochs": 3}).fit(X[:100], y[:100])
    before = log_loss(y[200:], model.predict_proba(X[200:]))
    model.calibrate(X[100:200], y[100:200])
    assert log_loss(y[200:], model.predict_proba(X[200:])) < before
    parts = model.uncertainty(X)
    np.testing.assert_allclose(parts.data + parts.distributional + parts.model, parts.total, atol=1e-6)
    model.save(tmp_path / "model.bedl")
    np.testing.assert_allclose(load(tmp_path / "model.bedl").predict_proba(X), model.predict_proba(X), atol=1e-6)
