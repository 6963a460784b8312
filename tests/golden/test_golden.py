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


# What aleatoric and epistemic mean has changed since: lack of evidence belonged to the former, and for classes the two
# were variances. An .onnx file brings its own arithmetic and says them as before.
NOW_OTHERWISE = ("aleatoric", "epistemic")


def assert_same(found: dict, said: dict, leave_out: tuple[str, ...] = NOW_OTHERWISE) -> None:
    said = {name: values for name, values in said.items() if not (leave_out and name.startswith(leave_out))}
    assert [name for name in found if name in said] == list(said)
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
    leave_out = () if name.endswith(".onnx") else NOW_OTHERWISE
    assert_same({column: [row[column] for row in rows] for column in rows[0]}, SAID[name], leave_out)
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
    # the split that was told is still there, under the name of whose it is
    paper = prediction.paper_split()
    told = {key: SAID[name][key] for key in ("aleatoric", "epistemic")}
    assert_same({key: value.detach().numpy() for key, value in paper._asdict().items()}, told, leave_out=())


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
