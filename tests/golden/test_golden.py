"""Models written by earlier versions still load, and say what they said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")

from bedl.deploy import OnnxModel
from bedl.estimators import load
from tests.cli.verbs import run

FOLDER = Path(__file__).parent
SAID = json.loads((FOLDER / "predictions.json").read_text())
MODELS = ["houses-model", "houses.onnx", "flowers-model", "flowers.onnx"]


def assert_same(found: dict, said: dict) -> None:
    assert list(found)[: len(said)] == list(said)
    for name, values in said.items():
        if isinstance(values, list) and isinstance(values[0], str):
            assert found[name] == values
        else:
            # relative to the size of the quantity: other processors add up in another order
            size = float(np.abs(values).max())
            np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5 * size, err_msg=name)


@pytest.mark.parametrize("name", MODELS)
def test_tables_are_predicted_as_before(name: str) -> None:
    table = FOLDER / f"{name.replace('-', '.').split('.')[0]}.csv"
    lines = run("predict", FOLDER / name, table, "--json", ok=True).stdout.splitlines()[:6]
    rows = [json.loads(line) for line in lines]
    assert_same({column: [row[column] for row in rows] for column in rows[0]}, SAID[name])
    scores = json.loads(run("evaluate", FOLDER / name, table, "--json", ok=True).stdout)["scores"]
    assert_same({key: scores[key] for key in SAID[f"{name} scores"]}, SAID[f"{name} scores"])


@pytest.mark.parametrize("name", ["regressor.safetensors", "classifier.safetensors"])
def test_estimators_predict_as_before(name: str) -> None:
    x = np.asarray(SAID["X"], dtype=np.float32)
    prediction = load(FOLDER / name).predict_dist(x)
    found = {key: getattr(prediction, key) for key in SAID[name] if key not in ("lower", "upper")}
    if "lower" in SAID[name]:
        found["lower"], found["upper"] = prediction.interval(0.9)
    assert_same({key: value.detach().numpy() for key, value in found.items()}, SAID[name])


def test_onnx_files_keep_their_names() -> None:
    houses, flowers = (OnnxModel(FOLDER / f"{name}.onnx") for name in ("houses", "flowers"))
    assert (houses.task, houses.target_names, houses.feature_names) == (
        "regression", ("price",), ("area", "colour=green", "colour=red")
    )  # fmt: skip
    assert (flowers.task, flowers.class_names) == ("classification", ("iris", "rose", "tulip"))
    assert set(houses.predict(np.zeros((1, 3)))) == {"mean", "std", "aleatoric", "epistemic"}
    assert set(flowers.predict(np.zeros((1, 2)))) == {
        "probabilities", "aleatoric", "epistemic", "entropy", "expected_entropy"
    }  # fmt: skip
