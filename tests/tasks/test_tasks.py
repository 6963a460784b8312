"""Tasks: found by name, one file each, and their columns and records agree with each other."""

import dataclasses
import sys
from importlib import import_module
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas
import pytest
import torch

import bedl.evaluation.report.pages
from bedl.data import DataError
from bedl.estimators import tabular
from bedl.evaluation import tasks
from bedl.evaluation.tasks import _base as base
from bedl.heads.predictive import CategoricalPredictive, NormalMixturePredictive, NormalPredictive
from tests import recipes
from tests.report.data import classification, regression

GOLDEN = Path(__file__).parents[1] / "golden"
TOLD = {
    "regression": {
        "mean": np.array([[1.0, 10.0]]), "std": np.array([[0.5, 5.0]]), "aleatoric": np.array([[0.16, 16.0]]),
        "epistemic": np.array([[0.09, 9.0]]), "data": np.array([[0.16, 16.0]]),
        "distributional": np.array([[0.0, 5.0]]), "model": np.array([[0.09, 4.0]]),
    },
    "classification": {
        "probabilities": np.array([[0.9, 0.1], [0.3, 0.7]]), "aleatoric": np.array([0.2, 0.7]),
        "epistemic": np.array([0.125, 0.0]), "entropy": np.array([0.325, 0.611]),
        "expected_entropy": np.array([0.3, 0.7]), "data": np.array([0.2, 0.7]),
        "distributional": np.array([0.1, 0.0]), "model": np.array([0.025, 0.0]),
    },
}  # fmt: skip


def test_an_unknown_task_is_an_error_that_lists_those_there_are():
    for name in ("nonsense", "_base", "", None, "os"):
        with pytest.raises(tasks.UnknownTaskError, match=r"classification.*regression"):
            tasks.get(name)


@pytest.mark.parametrize("name", tasks.names())
def test_every_task_says_what_it_is(name):
    task = tasks.get(name)
    assert task.name == name
    assert task.outputs
    assert task.column in ("number", "class", "binary")
    assert bedl.evaluation.report.pages.page_of(name).observed
    y = np.full(3, task.missing, dtype=task.dtype)
    y[1] = 1
    assert task.known(y).tolist() == [False, True, False]
    assert task.filled(y).tolist() == [0, 1, 0]


def test_columns_of_several_targets():
    task, outputs = tasks.get("regression"), TOLD["regression"]
    columns = task.columns(outputs, ["a", "b"], coverage=0.5)
    names = "prediction std lower upper aleatoric_std epistemic_std data_std distributional_std model_std".split()
    assert list(columns) == [f"{name}_{target}" for target in "ab" for name in names]
    assert columns["lower_b"][0] == pytest.approx(NormalDist(10, 5).inv_cdf(0.25))
    assert columns["upper_b"][0] == pytest.approx(NormalDist(10, 5).inv_cdf(0.75))
    assert (columns["aleatoric_std_a"][0], columns["epistemic_std_b"][0]) == pytest.approx((0.4, 3.0))
    assert (columns["data_std_b"][0], columns["model_std_b"][0]) == pytest.approx((4.0, 2.0))
    with pytest.raises(ValueError, match="coverage"):
        task.columns(outputs, coverage=90)
    with pytest.raises(ValueError, match="1 target names for 2"):
        task.columns(outputs, ["a"])


def test_a_record_of_several_targets_is_refused():
    with pytest.raises(tasks.ResultsError, match="one target, not 2"):
        tasks.get("regression").results(TOLD["regression"])


def test_a_models_own_interval_comes_before_that_of_a_normal():
    outputs = {name: values[:, :1] for name, values in TOLD["regression"].items()}
    own = {**outputs, "lower": np.array([[-3.0]]), "upper": np.array([[8.0]])}
    columns = tasks.get("regression").columns(own)
    assert (columns["lower"][0], columns["upper"][0]) == (-3.0, 8.0)


def test_a_record_is_made_of_the_same_numbers_as_the_columns():
    outputs = {name: values[:, :1] for name, values in TOLD["regression"].items()}
    record = tasks.get("regression").results({**outputs, "cdf": np.array([[0.25]])}, np.array([2.0]), coverage=0.8)
    columns = tasks.get("regression").columns(outputs, coverage=0.8)
    assert (record.mean[0], record.lower[0], record.pit[0]) == (1.0, columns["lower"][0], 0.25)
    record = tasks.get("classification").results(TOLD["classification"], np.array([0, -1]), names=["no", "yes"])
    columns = tasks.get("classification").columns(TOLD["classification"], ["no", "yes"])
    assert columns["prediction"].tolist() == ["no", "yes"]
    assert record.labelled.tolist() == [True, False]
    np.testing.assert_array_equal(record.aleatoric_entropy + record.epistemic_entropy, record.entropy)
    np.testing.assert_array_equal(record.epistemic_entropy, columns["epistemic_entropy"])
    assert record.epistemic_entropy[1] == 0  # rounding may not make it negative


@pytest.mark.parametrize("make", [regression, classification])
def test_every_score_has_a_meaning(make):
    results = make()
    if results.task == "classification":
        results = dataclasses.replace(results, sets=results.probabilities > 0.1)
        labels = results.observed[results.labelled]
        sizes = results.sets[results.labelled].sum(1)
        assert tasks.score(results)["set_size"] == pytest.approx(sizes.mean())
        held = results.probabilities[results.labelled, labels] > 0.1
        assert tasks.score(results)["set_coverage"] == pytest.approx(held.mean())
    found = tasks.score(results)
    assert list(found)
    assert set(found) == set(tasks.get(results.task).meanings)


def test_an_exact_likelihood_is_that_of_the_rows_with_a_target():
    results = regression(
        4, ood=False, y=np.array([1.0, np.nan, 2.0, 3.0]), log_density=np.array([-1.0, 9.0, -2.0, -6.0])
    )
    assert tasks.score(results)["nll"] == 3.0


@pytest.mark.parametrize(
    "prediction",
    [
        NormalPredictive(*torch.ones(4, 2, 1)),
        NormalMixturePredictive(*torch.ones(4, 2, 1, 4)),
        CategoricalPredictive(torch.zeros(2, 1), *torch.zeros(3, 2), torch.zeros(2, 1)),
    ],
    ids=lambda prediction: type(prediction).__name__,
)
def test_predictions_give_the_outputs_of_their_task(prediction):
    outputs, task = prediction.outputs(), tasks.get(prediction.task)
    of_method = {"spread", "linked_centre", "linked_spread"}
    known = {name: output for name, output in task.outputs.items() if name not in of_method}
    assert list(outputs) == list(known)
    for name, output in known.items():
        assert outputs[name].shape == ((2, 1) if output.per_name else (2,))


def test_a_file_from_before_an_output_was_added_is_read(monkeypatch):
    pytest.importorskip("onnxruntime")
    from bedl.deploy import ModelFileError, OnnxModel

    task, path = tasks.get("regression"), GOLDEN / "houses.onnx"
    before = OnnxModel(path).predict(np.zeros((2, 3)))
    for optional in (True, False):
        added = {**task.outputs, "data": tasks.Output("target²", optional=optional)}
        monkeypatch.setattr(type(task), "outputs", added)
        if optional:
            assert list(OnnxModel(path).predict(np.zeros((2, 3)))) == list(before)
        else:
            with pytest.raises(ModelFileError, match="outputs are not those"):
                OnnxModel(path)


def test_foreign_rows_of_another_task_are_refused():
    with pytest.raises(tasks.ResultsError, match="another task"):
        dataclasses.replace(regression(ood=False), ood=classification(ood=False))


@pytest.fixture
def shares(tmp_path, monkeypatch):
    """The task that CONTRIBUTING.md adds, as files beside those that are there."""
    for block in recipes.blocks():
        if block.section == "Add a task":
            package = import_module(block.module.rpartition(".")[0])
            folder = tmp_path / package.__name__
            folder.mkdir()
            (folder / Path(block.file).name).write_text(block.code)
            monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    yield tasks.get("shares")
    for name in ("bedl.evaluation.tasks.shares", "bedl.evaluation.report.pages.shares"):
        sys.modules.pop(name, None)
    base._get.cache_clear()


def test_a_new_task_is_one_file_and_its_page_another(shares, tmp_path):
    assert "shares" in tasks.names()
    assert tasks.automatic("number").name == "regression"
    x = np.linspace(0, 1, 60)
    frame = pandas.DataFrame({"x": x, "share": x**2})
    with pytest.raises(DataError, match=r"row 3: 1.5 is no share from 0 to 1"):
        tabular.fit(frame.assign(share=np.where(np.arange(60) == 2, 1.5, frame["share"])), "share", task="shares")
    model = tabular.fit(frame, "share", tmp_path / "m", task="shares", method="bedl+reg", epochs=2, device="cpu")
    model = tabular.load(tmp_path / "m")
    found = model.predict(frame)
    assert found["lower"].min() >= 0
    assert found["upper"].max() <= 1
    assert (found["upper"] == 1).any()  # a normal's would go beyond
    assert model.results(frame).task == "shares"
    assert "Predictions with their intervals" in model.report(frame, tmp_path / "page.html").read_text()
