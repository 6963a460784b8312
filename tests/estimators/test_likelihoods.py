"""Positive and bounded targets, skewed and with heavy tails: which likelihood is chosen, and what intervals hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from bedl import BEDLRegressor
from bedl.deploy import OnnxModel, export
from bedl.estimators import inputs, load
from bedl.estimators.inputs import Related
from bedl.estimators.likelihood import Link, likeliest_link

Array = NDArray[np.float64]
RELATED = Related()


def rows(kind: str, n: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    u = X[:, 0] + 0.8 * rng.normal(size=n)
    y = {
        "log-normal": np.exp(u),
        "logit-normal": 1 / (1 + np.exp(-2 * u)),
        "normal": 20 + u,
        "gamma": rng.gamma(2.0, np.exp(X[:, 0])),
        "student": 50 + X[:, 0] + rng.standard_t(3, size=n),
    }[kind]
    return X, y


@pytest.mark.parametrize(
    ("kind", "likelihood"),
    [("log-normal", "log-normal"), ("logit-normal", "logit-normal"), ("normal", "normal"), ("student", "normal"),
     ("gamma", "log-normal")],
)  # fmt: skip
def test_what_fits_best_is_chosen(kind: str, likelihood: str) -> None:
    X, y = rows(kind, 600)
    assert likeliest_link(X, y[:, None], None, RELATED).likelihood == likelihood


def test_few_rows_and_targets_below_0_stay_normal() -> None:
    X, y = rows("log-normal", 40)
    assert likeliest_link(X, y[:, None], None, RELATED).likelihood == "normal"
    X, y = rows("log-normal", 200)
    assert likeliest_link(X, y[:, None] - 0.5, None, RELATED).likelihood == "normal"
    assert likeliest_link(X, np.ones((200, 1)), None, RELATED).likelihood == "normal"


def test_a_link_is_its_inverse_and_its_slope() -> None:
    y = np.linspace(0.05, 0.95, 19)[:, None]
    for name in ("log-normal", "logit-normal"):
        link = Link.of(name, y)
        assert link.kind is not None
        base = torch.zeros(19, 1, 1, dtype=torch.float64)
        p = link.kind(base, base + 1, base, base, base, torch.full((19, 1), link.knee[0], dtype=torch.float64))
        np.testing.assert_allclose(p.inverse(torch.tensor(y)), link.inverse(y), atol=1e-12)
        slope = np.gradient(link.inverse(np.hstack([y - 1e-6, y + 1e-6])), 2e-6, axis=1)[:, 0]
        np.testing.assert_allclose(link.log_slope(y)[:, 0], np.log(slope), rtol=1e-4, atol=1e-6)
        assert Link.from_dict(link.to_dict(), 1) == link


@pytest.fixture(scope="module")
def model() -> BEDLRegressor:
    return BEDLRegressor(method="distilled", random_state=0, device="cpu").fit(*rows("log-normal", 800))


def test_tables_of_any_size_and_with_unknown_values_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows("log-normal", 120)
    frame = pandas.DataFrame(X, columns=list("abc")).assign(d=np.where(X[:, 1] > 0, "p", "q"))
    one = BEDLRegressor(method="bedl", likelihood="log-normal", epochs=3, random_state=0, device="cpu").fit(frame, y)
    expected = one.predict(frame)
    monkeypatch.setattr(inputs, "ROWS", 50)  # rows that are predicted at once
    np.testing.assert_allclose(one.predict(frame), expected, rtol=1e-5)
    with pytest.warns(UserWarning, match="did not see"):
        found = one.predict(frame.assign(d=frame["d"].mask(np.arange(120) % 7 == 0, "new")))
    np.testing.assert_allclose(found[np.arange(120) % 7 > 0], expected[np.arange(120) % 7 > 0], rtol=1e-5)
    assert np.isfinite(found).all()


def test_each_tail_holds_its_share(model: BEDLRegressor) -> None:
    assert model.link_.likelihood == "log-normal"
    X, y = rows("log-normal", 6000, 1)
    lower, upper = model.predict_interval(X, 0.9)
    assert (lower > 0).all()
    # 800 rows tell a tail of 5 % with a standard error of 0.8 points; three of them
    assert np.mean(y < lower) == pytest.approx(0.05, abs=0.024)
    assert np.mean(y > upper) == pytest.approx(0.05, abs=0.024)
    fifth = np.argsort(np.argsort(model.predict(X))) * 5 // len(X)
    covered = [np.mean(((lower <= y) & (y <= upper))[fifth == number]) for number in range(5)]
    assert np.abs(np.array(covered) - 0.9).max() < 0.06
    frame = model.predict_quantiles(X, [0.05, 0.5, 0.95])["0"]
    assert np.mean(y[:, None] < frame.to_numpy(), 0) == pytest.approx([0.05, 0.5, 0.95], abs=0.03)


def test_density_mean_and_parts(model: BEDLRegressor) -> None:
    X, y = rows("log-normal", 4000, 2)
    prediction: Any = model.predict_dist(X)
    truth = stats.lognorm(0.8, scale=np.exp(X[:, 0])).logpdf(y).mean()
    assert prediction.log_prob(torch.tensor(y)).mean().item() > truth - 0.1
    parts = model.uncertainty(X)
    np.testing.assert_allclose(parts["total"], parts["data"] + parts["distributional"] + parts["model"])
    # the mean of a log-normal, not its median
    usual = np.abs(X[:, 0]) < 1
    ratio = model.predict(X)[usual] / np.exp(X[usual, 0] + 0.32)
    assert np.median(ratio) == pytest.approx(1, abs=0.12)


def test_saved_and_exported(model: BEDLRegressor, tmp_path: Path) -> None:
    X, _ = rows("log-normal", 50, 3)
    X = X.astype(np.float32)
    model.save(tmp_path / "model.bedl")
    other = load(tmp_path / "model.bedl")
    for ours, theirs in zip(model.predict_interval(X), other.predict_interval(X), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    export(model, tmp_path / "model.onnx")
    columns = OnnxModel(tmp_path / "model.onnx").predict_columns(X, coverage=0.9)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(columns["prediction"], mean, rtol=1e-3)
    np.testing.assert_allclose(columns["std"], std, rtol=1e-3)
    lower, upper = model.predict_interval(X)
    np.testing.assert_allclose(columns["lower"], lower, rtol=1e-3)
    np.testing.assert_allclose(columns["upper"], upper, rtol=1e-3)
    assert not {"linked_centre", "linked_spread"} & set(columns)


def test_by_name_for_any_method_and_calibrated() -> None:
    X, y = rows("logit-normal", 400)
    model = BEDLRegressor(method="bedl", likelihood="logit-normal", epochs=20, random_state=0, device="cpu")
    model.fit(X[:200], y[:200]).calibrate(X[200:], y[200:])
    X, y = rows("logit-normal", 3000, 1)
    lower, upper = model.predict_interval(X)
    assert (lower > 0).all()
    assert (upper < 1).all()
    assert np.mean((lower <= y) & (y <= upper)) == pytest.approx(0.9, abs=0.06)
    with pytest.raises(ValueError, match=r"'log-normal' is for positive targets; y holds -1 in row 3"):
        BEDLRegressor(likelihood="log-normal").fit(np.zeros((9, 1)), [1.0, 2, 3, -1, 5, 6, 7, 8, 9])
