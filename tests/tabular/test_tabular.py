"""Tables → models that take tables, in Python: the same as the command line says, from files and from frames."""

from __future__ import annotations

import io
import json
import os

import numpy as np
import pandas
import pytest
from sklearn.metrics import root_mean_squared_error

from bedl._utils.errors import ModelFileError
from bedl._utils.io import OutputExistsError
from bedl.data import DataError, TableEncoder, encoded_batches, open_table
from bedl.estimators import tabular
from bedl.estimators.tabular import TableCallback
from tests.cli.tables import FLOWERS, HOUSES
from tests.cli.verbs import run

QUICK = {"epochs": 2, "device": "cpu"}
PARTS = ["data_std", "distributional_std", "model_std"]


def houses_frame() -> pandas.DataFrame:
    return pandas.read_csv(io.StringIO(HOUSES), parse_dates=["sold"])


@pytest.fixture(scope="module")
def model() -> tabular.TabularModel:
    return tabular.fit(houses_frame(), target="price", **QUICK)


def test_a_frame_is_learned_from_and_predicted(model):
    frame = houses_frame().set_index(np.arange(1000, 1120))  # an index is no column
    found = model.predict(frame)
    assert model.task == "regression"
    assert list(found.index) == list(frame.index)
    assert list(found) == ["prediction", "std", "lower", "upper", "aleatoric_std", "epistemic_std", *PARTS]
    assert np.allclose((found[PARTS] ** 2).sum(axis=1), found["std"] ** 2)
    assert (found["lower"] < found["prediction"]).all()
    assert model.evaluate(frame)["rmse"] == pytest.approx(root_mean_squared_error(frame["price"], found["prediction"]))
    assert model.scores["rmse"] > 0
    assert any("'code' has another text in every row" in note for note in model.card.notes)


def test_files_and_frames_of_others_are_the_same_rows(model, tmp_path):
    polars = pytest.importorskip("polars")
    expected = model.predict(houses_frame())
    (tmp_path / "houses.csv").write_text(HOUSES)
    for data in (
        tmp_path / "houses.csv",
        polars.from_pandas(houses_frame()),
        polars.from_pandas(houses_frame()).to_arrow(),
    ):
        pandas.testing.assert_frame_equal(model.predict(data), expected, rtol=1e-5)


def test_predictions_are_streamed_to_a_file(model, tmp_path):
    written = model.predict(houses_frame(), tmp_path / "p.parquet")
    assert (written.rows, written.columns) == (120, list(model.predict(houses_frame())))
    pandas.testing.assert_frame_equal(
        pandas.read_parquet(written.path), model.predict(houses_frame()), check_dtype=False, rtol=1e-5
    )
    with pytest.raises(OutputExistsError, match="overwrite=True"):
        model.predict(houses_frame(), tmp_path / "p.parquet")


def test_a_model_is_saved_and_loaded_here_and_on_the_command_line(model, tmp_path):
    folder = model.save(tmp_path / "m")
    assert sorted(os.listdir(folder)) == ["MODEL_CARD.md", "model.json", "model.safetensors"]
    again = tabular.load(folder)
    pandas.testing.assert_frame_equal(again.predict(houses_frame()), model.predict(houses_frame()))
    assert again.scores == model.scores
    with pytest.raises(OutputExistsError, match="overwrite"):
        model.save(folder)
    model.save(folder, overwrite=True)
    (tmp_path / "houses.csv").write_text(HOUSES)
    said = run("evaluate", folder, tmp_path / "houses.csv", "--json", ok=True).stdout
    assert json.loads(said)["scores"]["nll"] == pytest.approx(model.evaluate(houses_frame())["nll"], rel=1e-6)


def test_the_same_as_the_command_line(tmp_path):
    (tmp_path / "flowers.csv").write_text(FLOWERS)
    run("fit", tmp_path / "flowers.csv", "-t", "kind", "--epochs", 2, "--seed", 3, "--out", tmp_path / "m", ok=True)
    model = tabular.fit(tmp_path / "flowers.csv", "kind", tmp_path / "n", seed=3, **QUICK)
    assert model.name == str(tmp_path / "n")
    frames = [one.predict(tmp_path / "flowers.csv") for one in (tabular.load(tmp_path / "m"), model)]
    pandas.testing.assert_frame_equal(*frames)


@pytest.mark.slow
def test_an_exported_model_takes_the_same_frames_and_is_not_exported_again(model, tmp_path):
    report = model.export(tmp_path / "m.onnx")
    assert report.task == "regression"
    served = tabular.load(tmp_path / "m.onnx")
    one, two = model.predict(houses_frame()), served.predict(houses_frame())
    np.testing.assert_allclose(two["prediction"], one["prediction"], rtol=1e-4)
    np.testing.assert_allclose(two["std"], one["std"], rtol=1e-4)
    assert served.scores == {}
    for call in (lambda: served.export(tmp_path / "n.onnx"), lambda: served.save(tmp_path / "n")):
        with pytest.raises(ModelFileError, match="already"):
            call()


def test_a_page(model, tmp_path):
    page = model.report(houses_frame(), tmp_path / "page.html", ood=houses_frame()[:20])
    assert "Most uncertain rows" in page.read_text()
    with pytest.raises(OutputExistsError):
        model.report(houses_frame(), page)


def test_who_looks_on_is_told():
    class Notes(TableCallback):
        def __init__(self):
            self.said = []

        def on_columns(self, encoder):
            self.said.append(encoder.target)

        def on_rows(self, encoder, counts):
            self.said.append(counts)

    callback = Notes()
    tabular.fit("iris", epochs=1, device="cpu", callback=callback)
    assert callback.said == ["target", {"training": 135, "held_out": 15}]


@pytest.mark.parametrize(
    "options, words",
    [
        ({}, "which column"),
        ({"target": "prize"}, "Did you mean 'price'"),
        ({"target": "price", "task": "nonsense"}, "the task is one of"),
        ({"target": "price", "task": "classification", "likelihood": "normal"}, "for the task regression"),
        ({"target": ["price", "price"]}, "each once"),
        ({"target": ["price", "area"], "task": "regression"}, "predicts one column"),
    ],
)
def test_what_cannot_be_learned_is_said_and_leaves_nothing(tmp_path, options, words):
    with pytest.raises(DataError, match=words):
        tabular.fit(houses_frame(), out=tmp_path / "m", **options)
    assert os.listdir(tmp_path) == []


def test_frames_that_are_no_tables():
    with pytest.raises(DataError, match="rows"):
        open_table(pandas.DataFrame({"a": []}))
    with pytest.raises(DataError, match="one kind"):
        open_table(pandas.DataFrame({"a": [1, "b", [2]]}))


# -- several targets ------------------------------------------------------------------------------------
@pytest.fixture
def answers(tmp_path):
    """A table of three yes or no targets."""
    rows = [f"{i},{i % 2},{'yes' if i % 3 else 'No'},{'TRUE' if i % 5 else 'false'}" for i in range(30)]
    (tmp_path / "t.csv").write_text("x,a,b,c\n" + "\n".join(rows) + "\n")
    return open_table(tmp_path / "t.csv")


def test_several_columns_of_yes_and_no_are_one_target(answers):
    encoder = TableEncoder.fit(answers, ["a", "b", "c"])
    assert (encoder.task, encoder.names, encoder.columns) == ("multilabel", ["a", "b", "c"], ["x"])
    encoder = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    ((x, y),) = encoded_batches(answers, encoder)
    i = np.arange(30)
    np.testing.assert_array_equal(y, np.stack([i % 2, i % 3 > 0, i % 5 > 0], 1))
    assert y.dtype == np.int64
    assert x.shape == (30, 1)


def test_a_single_column_of_yes_and_no_is_one_of_classes(answers):
    assert TableEncoder.fit(answers, ["b"]).task == "classification"
    with pytest.raises(DataError, match="multilabel predicts several columns"):
        TableEncoder.fit(answers, ["b"], "multilabel")


def test_targets_of_other_values_are_refused(answers, tmp_path):
    text = (tmp_path / "t.csv").read_text()
    (tmp_path / "u.csv").write_text(text + "31,2,yes,true\n")
    with pytest.raises(DataError, match="'a' holds other values than 0 and 1"):
        TableEncoder.fit(open_table(tmp_path / "u.csv"), ["a", "b"])
    (tmp_path / "u.csv").write_text(text + "31,1,maybe,true\n")
    with pytest.raises(DataError, match="'b' holds other values"):
        TableEncoder.fit(open_table(tmp_path / "u.csv"), ["a", "b"])
    with pytest.raises(DataError, match=r"row 31: 'maybe' where 0 or 1, yes or no, true or false is expected"):
        list(encoded_batches(open_table(tmp_path / "u.csv"), TableEncoder.fit(answers, ["a", "b", "c"])))
    (tmp_path / "u.csv").write_text(text + "31,,yes,true\n")
    with pytest.raises(DataError, match="'a' is missing in 1 of 31 rows"):
        TableEncoder.fit(open_table(tmp_path / "u.csv"), ["a", "b"])
    encoder = TableEncoder.fit(open_table(tmp_path / "u.csv"), ["a", "b", "c"], drop_missing_target=True)
    ((_, y),) = encoded_batches(open_table(tmp_path / "u.csv"), encoder)
    assert len(y) == 30


def test_surprising_rows_are_found_among_all_rows_whatever_their_batch(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    noise = np.where(x > 0, 0.5, 0.05)  # uncertain rows are those with x > 0
    frame = pandas.DataFrame({"x": x, "y": x + noise * rng.normal(size=400)})
    model = tabular.fit(frame[:200], target="y", epochs=40, device="cpu", holdout=0.0)
    shown = frame[200:].reset_index(drop=True)
    calm = np.flatnonzero(shown["x"] < -0.3)
    planted = calm[[1, len(calm) // 2, -1]]
    shown.loc[planted, "y"] += 9.0
    monkeypatch.setattr("bedl.estimators.tabular.predict.batch_rows", lambda n_features: 70)
    results = model.results(shown, examples=True)
    predicted = model.predict(shown)
    off = ((shown["y"] - predicted["prediction"]).abs() / predicted["std"]).to_numpy()
    expected = np.argsort(-off)[:20]
    assert set(planted) == set(expected[:3])
    uncertain = np.argsort(-predicted["std"].to_numpy())[:20]
    assert not set(planted) & set(uncertain)
    assert set(results.examples.index.tolist()) == set(expected) | set(uncertain)
    chosen = {int(row): value for row, value in zip(results.examples.index, results.examples.columns["x"], strict=True)}
    assert all(value == shown["x"][row] for row, value in chosen.items())


def test_few_rows_have_no_scores_and_that_is_said():
    frame = houses_frame()[:10]
    with pytest.warns(UserWarning, match=r"no row was held out of 10, so there are no scores"):
        model = tabular.fit(frame, target="price", **QUICK)
    assert model.scores == {}
    assert any("there are no scores" in note for note in model.card.notes)
    quiet = tabular.fit(frame, target="price", holdout=0.0, **QUICK)  # was asked for
    assert not any("there are no scores" in note for note in quiet.card.notes)
