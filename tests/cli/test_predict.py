"""`bedl predict`: the numbers, the formats, streaming, and without PyTorch."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas
import pytest

from bedl.data import open_table
from bedl.estimators import load
from bedl.estimators.tabular import load as load_model
from tests.cli.verbs import run, spawn

NO_TORCH = "import sys; sys.modules['torch'] = None; sys.modules['sklearn'] = None; from bedl.cli import main; main()"

PEAK = """
import atexit, resource, sys
atexit.register(lambda: print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr))
from bedl.cli import main
main()
"""


def frame(text: str) -> pandas.DataFrame:
    return pandas.read_csv(io.StringIO(text))


def test_targets_are_what_the_estimator_says(houses, shelf):
    found = frame(run("predict", houses, shelf / "houses.csv", "--coverage", 0.8, ok=True).stdout)
    model, table = load_model(houses), open_table(shelf / "houses.csv")
    x = np.concatenate([model.encoder.features(batch) for batch in table.batches()])
    estimator = load(houses / "model.safetensors")
    mean, std = estimator.predict(x, return_std=True)
    lower, upper = estimator.predict_interval(x, 0.8)
    parts = estimator.uncertainty(x)
    expected = {
        "prediction": mean, "std": std, "lower": lower, "upper": upper,
        "aleatoric_std": np.sqrt(parts["aleatoric"]), "epistemic_std": np.sqrt(parts["epistemic"]),
        **{f"{part}_std": np.sqrt(parts[part]) for part in ("data", "distributional", "model")},
    }  # fmt: skip
    assert list(found) == list(expected)
    assert len(found) == 120
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6)


def test_classes_are_what_the_estimator_says(flowers, shelf):
    found = frame(run("predict", flowers, shelf / "flowers.csv", ok=True).stdout)
    x = pandas.read_csv(shelf / "flowers.csv")[["length", "width"]].to_numpy(np.float32)
    estimator = load(flowers / "model.safetensors")
    probabilities = estimator.predict_proba(x)
    names = ["iris", "rose", "tulip"]
    np.testing.assert_allclose(found[[f"probability_{name}" for name in names]], probabilities, atol=1e-5)
    assert list(found["prediction"]) == [names[code] for code in estimator.predict(x)]
    np.testing.assert_allclose(found["entropy"], estimator.uncertainty(x)["total"], atol=1e-5)
    np.testing.assert_allclose(found["aleatoric_entropy"] + found["epistemic_entropy"], found["entropy"], atol=1e-6)
    three = found[["data_entropy", "distributional_entropy", "model_entropy"]]
    np.testing.assert_allclose(three.sum(axis=1), found["entropy"], atol=1e-5)


@pytest.mark.parametrize("name", ["houses", pytest.param("flowers", marks=pytest.mark.slow)])
def test_an_onnx_file_takes_the_same_raw_table(name, request, shelf):
    model, onnx = request.getfixturevalue(name), request.getfixturevalue(f"{name}_onnx")
    one, two = (frame(run("predict", which, shelf / f"{name}.csv", ok=True).stdout) for which in (model, onnx))
    assert list(one) == list(two)
    for column in one.columns:
        if one[column].dtype.kind == "f":  # what folds disagree about is a difference of means in single precision
            atol = 1e-3 * float(one["std"].mean()) if column.endswith("_std") else 1e-4 * float(one[column].abs().max())
            np.testing.assert_allclose(one[column], two[column], rtol=1e-3, atol=atol)
        else:
            assert list(one[column]) == list(two[column])


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "jsonl"])
def test_formats(flowers, shelf, tmp_path, suffix):
    out = tmp_path / f"p.{suffix}"
    said = run("predict", flowers, shelf / "flowers.csv", "--out", out, "--json", ok=True)
    assert json.loads(said.stdout)["rows"] == 120
    read = {
        "csv": pandas.read_csv, "tsv": lambda path: pandas.read_csv(path, sep="\t"), "parquet": pandas.read_parquet,
        "jsonl": lambda path: pandas.read_json(path, lines=True),
    }[suffix]  # fmt: skip
    expected = frame(run("predict", flowers, shelf / "flowers.csv", ok=True).stdout)
    pandas.testing.assert_frame_equal(read(out), expected, check_dtype=False, rtol=1e-5)


def test_json_lines_on_stdout(houses, shelf):
    lines = run("predict", houses, shelf / "houses.csv", "--json", ok=True).stdout.splitlines()
    assert len(lines) == 120
    assert json.loads(lines[0])["std"] > 0


def test_batches_make_no_difference(houses, shelf, monkeypatch):
    whole = frame(run("predict", houses, shelf / "houses.csv", ok=True).stdout)
    monkeypatch.setattr("bedl.estimators.tabular.predict.NUMBERS", 100)
    parts = frame(run("predict", houses, shelf / "houses.csv", ok=True).stdout)
    # relative to the size of the numbers: an end of an interval may lie close to 0
    pandas.testing.assert_frame_equal(whole, parts, rtol=1e-5, atol=1e-6 * float(whole["prediction"].abs().max()))


def test_an_onnx_file_needs_no_torch(flowers_onnx, shelf, tmp_path):
    process = spawn("predict", flowers_onnx, shelf / "flowers.csv", "--out", tmp_path / "p.csv", code=NO_TORCH)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 121
    process = spawn("evaluate", flowers_onnx, shelf / "flowers.csv", "--json", code=NO_TORCH)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "accuracy" in json.loads(out)["scores"]


def test_a_reader_that_has_seen_enough(houses, tmp_path):
    row = "50,red,2021-01-01,3,a,1\n"
    (tmp_path / "long.csv").write_text("area,colour,sold,age,code,price\n" + row * 20_000)
    with spawn("predict", houses, tmp_path / "long.csv") as process:
        assert process.stdout.readline().startswith('"prediction"')
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 141


@pytest.mark.slow
def test_an_exported_method_with_named_features_takes_a_table(tmp_path):
    import torch

    import bedl
    from bedl.deploy import export

    method = bedl.BEDL(bedl.GaussianLinear(2, 2), bedl.Normal(1))
    export(method, tmp_path / "m.onnx", example=torch.randn(9, 2), feature_names=["a", "b"], check=False)
    (tmp_path / "t.csv").write_text("b,a\n1,2\n3,4\n")
    found = frame(run("predict", tmp_path / "m.onnx", tmp_path / "t.csv", ok=True).stdout)
    truth = method.predict(torch.tensor([[2.0, 1.0], [4.0, 3.0]])).mean[:, 0].detach()
    np.testing.assert_allclose(found["prediction"], truth, rtol=1e-4)
    export(method, tmp_path / "n.onnx", example=torch.randn(9, 2), check=False)
    assert "which columns" in run("predict", tmp_path / "n.onnx", tmp_path / "t.csv", ok=False).stderr


@pytest.mark.slow
def test_memory_does_not_grow_with_the_table(houses_onnx, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    random, peaks = np.random.default_rng(0), []
    for rows in (200_000, 2_000_000):
        path = tmp_path / f"{rows}.parquet"
        with pq.ParquetWriter(path, _schema(pa)) as writer:
            for _ in range(rows // 200_000):
                writer.write_table(_rows(pa, random, 200_000))
        words = ["predict", houses_onnx, path, "--out", tmp_path / f"{rows}-out.parquet", "--extra", "ignore"]
        with spawn(*words, code=PEAK) as process:
            errors = process.communicate(timeout=300)[1]
        assert process.returncode == 0, errors
        peaks.append(int(errors.split("peak")[1]) / 1024)
    assert peaks[1] < 1024
    assert peaks[1] < peaks[0] + 250


def _schema(pa):
    numbers = [(f"x{i}", pa.float64()) for i in range(16)]
    return pa.schema(
        [("area", pa.float64()), ("colour", pa.string()), ("sold", pa.date32()), ("age", pa.float64())] + numbers
    )


def _rows(pa, random, n):
    columns = {
        "area": random.uniform(30, 200, n), "colour": random.choice(["red", "green", "blue"], n),
        "sold": pa.array(random.integers(18_000, 19_000, n).astype(np.int32)).cast(pa.date32()),
        "age": random.uniform(0, 99, n), **{f"x{i}": random.normal(size=n) for i in range(16)},
    }  # fmt: skip
    return pa.table(columns, _schema(pa))
