"""Several labels, each yes or no, from a table to predictions: Python, the command line, a page, an ONNX file."""

from __future__ import annotations

import json

import numpy as np
import pandas
import pytest
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from bedl.estimators import BEDLClassifier, load, tabular
from tests.cli.verbs import run
from tests.estimators.problems import QUICK


def weather(n: int = 150, seed: int = 0) -> pandas.DataFrame:
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(2, n))
    warm, wet = x + 0.5 * rng.normal(size=n) > 0, z - x + 0.5 * rng.normal(size=n) > 0.5
    return pandas.DataFrame({"x": x, "z": z, "warm": np.where(warm, "yes", "no"), "wet": wet.astype(int)})


def indicators(frame: pandas.DataFrame) -> np.ndarray:
    return np.stack([frame["warm"] == "yes", frame["wet"] == 1], 1).astype(int)


def test_an_estimator_learns_an_indicator_matrix(tmp_path):
    frame = weather(300)
    X, y = frame[["x", "z"]], pandas.DataFrame(indicators(frame), columns=["warm", "wet"])
    model = BEDLClassifier(**QUICK, ensemble=2).fit(X[:200], y[:200])
    p = model.predict_proba(X[200:])
    assert p.shape == (100, 2)
    np.testing.assert_array_equal(model.predict(X[200:]), (p > 0.5).astype(int))
    assert roc_auc_score(y[200:], p) > 0.9
    found = model.uncertainty(X)
    np.testing.assert_allclose(found["aleatoric_wet"] + found["epistemic_wet"], found["total_wet"], atol=1e-6)
    model.save(tmp_path / "m.safetensors")
    np.testing.assert_allclose(load(tmp_path / "m.safetensors").predict_proba(X[200:]), p)
    with pytest.raises(ValueError, match="another kind"):
        model.partial_fit(X, y["warm"])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    weather().to_csv(folder / "weather.csv", index=False)
    run("fit", folder / "weather.csv", "-t", "warm,wet", "--epochs", 4, "--out", folder / "m", ok=True)
    return folder


def test_a_table_of_answers_is_learned_scored_and_shown(place):
    model, frame = tabular.load(place / "m"), weather(seed=1)
    y = indicators(frame)
    found = model.predict(frame)
    p = np.stack([found["probability_warm"], found["probability_wet"]], 1)
    np.testing.assert_array_equal(found["prediction_wet"], p[:, 1] > 0.5)
    parts = sum(found[f"{part}_entropy_warm"] for part in ("data", "distributional", "model"))
    np.testing.assert_allclose(parts, found["entropy_warm"], atol=1e-5)
    foreign = frame.assign(x=frame["x"] * 100)
    scores = model.evaluate(frame, foreign)
    assert scores["label_auroc"] == pytest.approx(roc_auc_score(y, p))
    assert scores["nll"] == pytest.approx(sum(log_loss(y[:, i], p[:, i].astype(float)) for i in (0, 1)), rel=1e-4)
    assert scores["label_brier"] == pytest.approx(
        np.mean([brier_score_loss(y[:, i], p[:, i]) for i in (0, 1)]), rel=1e-5
    )
    assert scores["all_labels_right"] == pytest.approx(((p > 0.5) == y).all(1).mean())
    assert scores.keys() == tabular.model.tasks.get("multilabel").meanings.keys()
    page = model.report(frame, place / "page.html", foreign).read_text()
    for text in ("<h2>Labels</h2>", "Reliability", "Most uncertain rows, OOD", "<bdi>wet</bdi>"):
        assert text in page
    assert "cannot be computed" in model.report(frame[["x", "z"]], place / "bare.html").read_text()


@pytest.mark.slow
def test_the_command_line_and_onnx_say_the_same(place):
    pytest.importorskip("onnxruntime")
    run("export", place / "m", "--onnx", place / "m.onnx", ok=True)
    here, there = tabular.load(place / "m"), tabular.load(place / "m.onnx")
    pandas.testing.assert_frame_equal(there.predict(weather()), here.predict(weather()), check_dtype=False, atol=2e-4)
    said = json.loads(run("evaluate", place / "m.onnx", place / "weather.csv", "--json", ok=True).stdout)
    assert (said["task"], said["target"]) == ("multilabel", "warm, wet")
    assert said["scores"]["nll"] == pytest.approx(here.evaluate(weather())["nll"], rel=1e-4)
    assert there.engine.model.target_names == ("warm", "wet")
