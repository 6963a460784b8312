"""Counts, from a table to predictions: Python, the command line, a page, an ONNX file."""

from __future__ import annotations

import json

import numpy as np
import pandas
import pytest
import torch
from scipy import stats

from bedl.data import DataError
from bedl.estimators import BEDLRegressor, load, tabular
from tests.cli.verbs import run
from tests.estimators.problems import QUICK


def visits(n: int = 150, seed: int = 0) -> pandas.DataFrame:
    """Counts around 50, of shape 5 given x."""
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(2, n))
    mean = np.exp(3.5 + 0.8 * x)
    return pandas.DataFrame({"x": x, "z": z, "visits": rng.negative_binomial(5, 5 / (5 + mean)), "mean": mean})


def test_an_estimator_learns_counts(tmp_path):
    frame, test = visits(300), visits(200, seed=1)
    X, y = test[["x", "z"]].to_numpy(), test["visits"].to_numpy()
    model = BEDLRegressor(**QUICK, likelihood="count").fit(frame[["x", "z"]].to_numpy(), frame["visits"])
    assert model.method_.head.log_level.exp().item() == pytest.approx(frame["visits"].mean())
    mean, std = model.predict(X, return_std=True)
    assert np.corrcoef(np.log(mean), np.log(test["mean"]))[0, 1] > 0.95
    found = model.predict_dist(X)
    best = -stats.nbinom(5, 5 / (5 + test["mean"])).logpmf(y).mean()
    assert -found.log_prob(torch.tensor(y)).mean().item() < best + 0.2
    lower, upper = model.predict_interval(X, 0.9)
    assert (lower == lower.round()).all()
    assert 0.82 < ((lower <= y) & (y <= upper)).mean() <= 1
    np.testing.assert_allclose(model.uncertainty(X)["total"], std**2, rtol=1e-6)
    model.save(tmp_path / "m.safetensors")
    np.testing.assert_allclose(load(tmp_path / "m.safetensors").predict(X), mean)
    with pytest.raises(ValueError, match=r"row 1: 0\.5 is no whole number"):
        model.fit(X[:3], [1, 0.5, 2])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counts")
    visits().drop(columns="mean").to_csv(folder / "visits.csv", index=False)
    words = ("-t", "visits", "--likelihood", "count", "--epochs", 3, "--ensemble", 2, "--out", folder / "m")
    run("fit", folder / "visits.csv", *words, ok=True)
    return folder


def test_a_table_of_counts_is_learned_scored_and_shown(place):
    model, frame = tabular.load(place / "m"), visits(seed=1).drop(columns="mean")
    y, found = frame["visits"], model.predict(frame)
    assert (found["lower"] == found["lower"].round()).all()
    foreign = frame.assign(x=frame["x"] * 100)
    scores = model.evaluate(frame, foreign)
    assert scores["coverage"] == pytest.approx(((found["lower"] <= y) & (y <= found["upper"])).mean())
    assert scores.keys() == tabular.model.tasks.get("count").meanings.keys()
    record = model.results(frame)
    shape = record.mean**2 / (record.std**2 - record.mean)
    law = stats.nbinom(shape, shape / (shape + record.mean))
    np.testing.assert_allclose(record.pit, law.cdf(y) - law.pmf(y) / 2, atol=1e-5)
    page = model.report(frame, place / "page.html", foreign).read_text()
    for text in ("Frequencies of the counts", "Calibration", "mid-PIT", "Most uncertain rows, OOD"):
        assert text in page
    assert "cannot be computed" in model.report(frame[["x", "z"]], place / "bare.html").read_text()
    with pytest.raises(DataError, match=r"row 1: .* is no whole number from 0 on"):
        tabular.fit(frame.assign(visits=frame["visits"] + 0.5), "visits", likelihood="count")


@pytest.mark.slow
def test_the_command_line_and_onnx_say_the_same(place):
    pytest.importorskip("onnxruntime")
    run("export", place / "m", "--onnx", place / "m.onnx", ok=True)
    here, there = tabular.load(place / "m"), tabular.load(place / "m.onnx")
    frame = visits().drop(columns="mean")
    expected, found = here.predict(frame), there.predict(frame)
    for ends in ("lower", "upper"):  # a probability may be reached just so, or just not
        assert (found.pop(ends) - expected.pop(ends)).abs().max() <= 1
    pandas.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-3)
    said = json.loads(run("evaluate", place / "m.onnx", place / "visits.csv", "--json", ok=True).stdout)
    assert said["task"] == "count"
    assert said["scores"]["rmse"] == pytest.approx(here.evaluate(frame)["rmse"], rel=1e-3)
    assert said["scores"]["nll"] == pytest.approx(here.evaluate(frame)["nll"], abs=0.1)
