"""Fresh rows decide how wide intervals are, and how bold probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from scipy import stats
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from bedl import BEDLClassifier, BEDLRegressor
from bedl.estimators import load
from bedl.estimators.calibration import MAX_SCORES, OUTLIER_SHARE, fitted_temperatures, held_out_scores
from bedl.evaluation import metrics
from bedl.evaluation.tasks import held_out_factors
from bedl.heads.predictive import CategoricalPredictive

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
    z = np.random.default_rng(0).gamma(2.0, size=(25_000, 1)) - 2
    scores, mass = held_out_scores(z)
    assert len(scores) <= MAX_SCORES
    assert mass[-1] == [25_000]
    in_order = np.sort(z[:, 0])
    for coverage in (0.3, 0.9, 0.99):
        tail = (1 - coverage) / 2 * 25_001
        exact = -in_order[int(np.floor(tail)) - 1], in_order[int(np.ceil(25_001 - tail)) - 1]
        kept = held_out_factors(scores, mass, coverage)
        for least, found in zip(exact, kept, strict=True):
            assert least <= found[0] <= least + 0.02 * np.ptp(in_order)


@pytest.mark.parametrize(("n", "coverage"), [(19, 0.9), (100, 0.9), (400, 0.5)])
def test_each_tail_has_its_share_of_new_rows(n: int, coverage: float) -> None:
    """On average over calibration sets, at least; with ties broken by none, by at most 1/(n + 1) more."""
    rng, tail, found = np.random.default_rng(0), (1 - coverage) / 2, []
    for _ in range(2000):
        z = np.sort(rng.lognormal(size=(n, 1)), 0)
        below, above = held_out_factors(z, np.arange(1.0, n + 1), coverage)
        found.append([stats.lognorm(1).cdf(-below[0]), stats.lognorm(1).sf(above[0])])
    shares = np.mean(found, 0)
    error = 4 * np.sqrt(tail * (1 - tail) / n / 2000)
    assert (shares <= tail + error).all()
    assert (shares >= tail - 1 / (n + 1) - error).all()


def test_few_rows_say_how_far_in_both_directions() -> None:
    z = np.array([[-3.0], [-1.0], *[[0.1 * i] for i in range(8)]])  # ten rows: no tail of 5 % can be told
    below, above = held_out_factors(z, np.arange(1.0, 11.0), 0.9)
    assert (below, above) == (3, 3)
    assert np.isinf(held_out_factors(z[:5], np.arange(1.0, 6.0), 0.9)).all()


def test_weights_are_those_of_rows_that_are_there_more_often() -> None:
    z = np.random.default_rng(0).normal(size=(60, 2))
    twice = held_out_scores(np.repeat(z, 2, 0))
    weighted = held_out_scores(z, np.full(60, 2.0))
    np.testing.assert_allclose(held_out_factors(*twice, 0.8), held_out_factors(*weighted, 0.8))


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
    known, unknown = fitted_temperatures(log_p, y, weight, doubt)
    assert known == pytest.approx(best, rel=1e-3)
    assert unknown == pytest.approx(max(known, 1.0), rel=1e-3)  # of which nothing was seen


@pytest.mark.parametrize(("bold", "careful"), [(3.0, 1.6), (0.6, 0.3), (1.5, 0.7)])
def test_rows_without_evidence_have_a_temperature_of_their_own(bold: float, careful: float) -> None:
    """Against another search, through what is predicted by them; and it finds what labels were drawn by."""
    rng = np.random.default_rng(0)
    log_p = torch.log_softmax(torch.as_tensor(2 * rng.normal(size=(20_000, 3))), -1)
    vacuity = torch.as_tensor(rng.uniform(0, 1.3, size=20_000))
    power = torch.lerp(torch.tensor(bold).double(), torch.tensor(careful).double(), vacuity.clamp(max=1))
    y = ((power[:, None] * log_p).numpy() + rng.gumbel(size=log_p.shape)).argmax(1)
    p = CategoricalPredictive(log_p, 0 * vacuity, 0 * vacuity, vacuity, 0 * log_p)

    def cost(logs: np.ndarray, usual: float, caution: float) -> float:
        loss = -float(p.tempered(*np.exp(logs)).log_prob(y).mean())
        return loss + caution * (logs[1] - usual) ** 2 / len(y) / 2

    def searched(usual: float, caution: float) -> np.ndarray:
        given, few = (usual, caution), {"xatol": 1e-5}
        return scipy.optimize.minimize(cost, [0.1, 0.1], given, method="Nelder-Mead", options=few).x

    best = np.exp(searched(max(searched(0.0, 0.0)[0], 0.0), 4 + OUTLIER_SHARE * len(y)))
    found = fitted_temperatures(log_p.numpy(), y, vacuity=vacuity.numpy())
    assert found == pytest.approx(tuple(best), rel=2e-3)
    assert found[0] == pytest.approx(1 / bold, rel=0.15)  # caution holds back what has no evidence


def test_without_evidence_a_few_rows_do_not_make_it_bold() -> None:
    """Of many rows few lack evidence, all told rightly: those stay nearly as they were. Many do make it bold."""
    log_p, y = np.log(np.tile([0.7, 0.3], (1000, 1))), np.zeros(1000, dtype=int)
    y[:250] = 1
    few, many = (
        fitted_temperatures(log_p, y, vacuity=np.where(np.arange(1000) >= 1000 - lacking, 1.0, 0.0))[1]
        for lacking in (10, 300)
    )
    assert 0.9 < few < 1
    assert many < 0.6
    nothing = CategoricalPredictive(*(torch.as_tensor(part) for part in (log_p, 0 * y, 0 * y, 0 * y + 1, 0 * log_p)))
    torch.testing.assert_close(nothing.tempered(0.5, 1.0).log_probabilities, torch.as_tensor(log_p))


def test_few_rows_that_are_all_right_are_no_proof() -> None:
    log_p = np.log(np.tile([0.9, 0.1], (20, 1)))
    sure, doubtful = (fitted_temperatures(log_p, np.zeros(20, dtype=int), doubt=doubt)[0] for doubt in (0.0, 4.0))
    assert sure < 0.1
    assert 0.4 < doubtful < 0.9


def test_the_bound_on_all_evidence_is_corrected_by_one_temperature() -> None:
    """No p exceeds 0.3 under it, of ten classes that are told by 97 %; the order of scores stays, and so does AUROC."""
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=1, stratify=y)
    settings = {**QUICK, "method": "bedl+reg", "epochs": 60, "early_stopping": "auto"}
    model = BEDLClassifier(**settings).fit(X, y)
    p, (known, unknown) = model.predict_proba(X_test), model.temperatures_
    assert known == unknown < 0.5
    assert metrics.ece(y_test, p) < 0.03
    model.temperatures_ = None
    raw = model.predict_proba(X_test)
    assert metrics.ece(y_test, raw) > 0.6
    np.testing.assert_array_equal(raw.argmax(1), p.argmax(1))
    np.testing.assert_allclose(p, raw ** (1 / known) / (raw ** (1 / known)).sum(1, keepdims=True), rtol=1e-4, atol=1e-6)
    assert BEDLClassifier(**{**settings, "epochs": 1}, temperature_scaling=False).fit(X, y).temperatures_ is None


def test_temperature_scaling_says_what_it_cannot_do() -> None:
    X, y = rows(80, 0)[0], np.arange(80) % 2
    for wrong, said in (
        ({"method": "distilled"}, "calibrate"),
        ({"method": "nngp"}, "calibrate"),
        ({"temperature_scaling": 3}, "temperature_scaling is"),
    ):
        with pytest.raises(ValueError, match=said):
            BEDLClassifier(**{**QUICK, "early_stopping": "auto", "temperature_scaling": True, **wrong}).fit(X, y)
    with pytest.raises(ValueError, match="one label"):
        BEDLClassifier(**QUICK, temperature_scaling=True).fit(X, np.stack([y, 1 - y], 1))


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


@pytest.mark.parametrize(("stored", "read"), [(0.5, (0.5, 1.0)), (2.0, (2.0, 2.0)), ([0.8, 0.6], (0.8, 0.6))])
def test_files_with_one_temperature_are_read_as_they_were_meant(stored: Any, read: tuple[float, float]) -> None:
    model = BEDLClassifier(**{**QUICK, "epochs": 1}).fit(*(rows(40, 0)[0], np.arange(40) % 2))
    model._set_state({**model._state(), "temperature": stored})
    assert model.temperatures_ == read
    with pytest.raises(ValueError, match="the temperatures are"):
        model._set_state({**model._state(), "temperature": [0.0, 1.0]})
