"""Identifiers and row numbers beside predictions, class weights, the model card, and equal bytes of equal fits."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pandas
import pytest

from bedl.data import DataError
from bedl.estimators import tabular

N = 60
FRAME = pandas.DataFrame({"x": np.linspace(-1, 1, N), "key": [2**60 + i for i in range(N)]})
FRAME["y"] = 3 * FRAME["x"] + 1
QUICK = {"epochs": 1, "method": "bedl", "hidden": (3,), "device": "cpu"}


@pytest.fixture(scope="module")
def model():
    return tabular.fit(FRAME[["x", "y"]], "y", **QUICK)


def test_kept_columns_come_first_and_as_they_are(model, tmp_path):
    new = FRAME[["key", "x"]].assign(name=["=1+1", None, "c"] * (N // 3))
    found = model.predict(new, keep=["key", "name"], row_numbers=True)
    assert list(found)[:4] == ["row", "key", "name", "prediction"]
    assert found["row"].tolist() == list(range(1, N + 1))
    assert found["key"].tolist() == FRAME["key"].tolist()  # no detour by floats, which could not hold them
    plain = model.predict(FRAME[["x"]])
    np.testing.assert_array_equal(found["prediction"], plain["prediction"])
    model.predict(new, tmp_path / "o.csv", keep=["key", "name"])
    written = pandas.read_csv(tmp_path / "o.csv", dtype={"key": "int64"})
    assert written["key"].tolist() == FRAME["key"].tolist()
    assert written["name"][0] == "'=1+1"  # nothing that a spreadsheet would compute


def test_keys_with_gaps_stay_whole_numbers(model):
    import pyarrow as pa

    new = pa.table({"x": pa.array([0.1, 0.2]), "key": pa.array([2**60 + 1, None])})
    assert model.predict(new, keep=["key"])["key"].tolist() == [2**60 + 1, None]


def test_what_cannot_be_kept(model):
    import pyarrow as pa

    with pytest.raises(DataError, match=r"no column 'keys' to keep\. Did you mean 'key'"):
        model.predict(FRAME[["key", "x"]], keep=["keys"])
    with pytest.raises(DataError, match="a column 'std' of their own"):
        model.predict(FRAME[["x"]].assign(std=1), keep=["std"])
    with pytest.raises(DataError, match=r"type list<.*cannot be kept. Keep another"):
        model.predict(pa.table({"x": pa.array([0.1]), "l": pa.array([[1]])}), keep=["l"])


def test_balanced_classes_are_asked_for_of_the_estimator():
    frame = pandas.DataFrame({"x": FRAME["x"], "kind": np.where(FRAME["x"] > 0.8, "rare", "usual")})
    model = tabular.fit(frame, "kind", class_weight="balanced", **QUICK)
    assert model.estimator.class_weight == "balanced"  # whose own test compares it with weights of the points
    assert model.card.settings["class_weight"] == "balanced"


def test_class_weights_are_for_classes():
    with pytest.raises(DataError, match=r"class_weight is for classes.*Leave it out"):
        tabular.fit(FRAME[["x", "y"]], "y", class_weight="balanced", **QUICK)


def test_a_holdout_leaves_something_to_learn_from():
    with pytest.raises(DataError, match=r"leaves 1 of 60 rows .*--holdout"):
        tabular.fit(FRAME[["x", "y"]], "y", holdout=0.99, **QUICK)


def test_the_card_says_what_there_is_and_nothing_in_it_works_as_markup(tmp_path):
    odd = "<script>`|\x1b[31m\nx"
    frame = pandas.DataFrame({"x": FRAME["x"], "kind": np.where(FRAME["x"] > 0, odd, "plain")})
    tabular.fit(frame, "kind", tmp_path / "m", **QUICK)
    text = (tmp_path / "m" / "MODEL_CARD.md").read_text()
    for part in ("54 rows; 6 were held out", "| `x` | number, -1 to 1", "Accuracy", "`epochs`: `1`", "`torch`"):
        assert part in text
    assert "`<script>'¦\\x1b[31m\\nx`" in text
    assert text.count("`") % 2 == 0
    assert "\x1b" not in text


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    FRAME[["x", "y"]].to_csv(tmp_path / "t.csv", index=False)
    words = "fit ../t.csv --target y --epochs 2 --method bedl --hidden 3 --seed 5 --device cpu --out m".split()
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        code = "from bedl.cli import main; main()"
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(len(found))}
        subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path / name, env=env, check=True,
                       capture_output=True)  # fmt: skip
        found.append({path.name: path.read_bytes() for path in (tmp_path / name / "m").iterdir()})
    assert sorted(found[0]) == ["MODEL_CARD.md", "model.json", "model.safetensors"]
    assert found[0] == found[1]
