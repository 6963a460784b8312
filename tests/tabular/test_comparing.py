"""Methods compared on the same splits: scores that can be checked by hand, interrupted and gone on with, as a page."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.model_selection import PredefinedSplit, cross_val_predict

import bedl
from bedl import BEDLRegressor
from bedl._utils.errors import ModelFileError
from bedl.cli.console import print_comparison
from bedl.estimators.distill import default_members
from bedl.estimators.inputs import cut_in_folds, held_out
from bedl.estimators.tabular import comparison
from bedl.estimators.tabular.baselines import Baseline
from bedl.estimators.tabular.comparison import Comparison
from bedl.evaluation.report.parts import comparison_section
from bedl.methods import Method, Problem, register, registry
from tests.cli.verbs import run

QUICK = {"epochs": 2, "device": "cpu", "hidden": (8,)}


def table(n: int = 80) -> pandas.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2)).astype(np.float32)
    kind = np.array(["low", "middle", "high"])[(x[:, 0] > -0.5).astype(int) + (x[:, 0] > 0.5)]
    return pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": 3 * x[:, 0] + 0.1 * rng.normal(size=n), "kind": kind})


def numbers() -> pandas.DataFrame:
    return table().drop(columns="kind")


def test_scores_are_those_of_the_estimator_on_the_same_rows() -> None:
    found = bedl.compare(numbers(), "y", ["deterministic"], splits=2, seed=3, **QUICK)
    frame = numbers()
    x, y = frame[["a", "b"]].to_numpy(), frame["y"].to_numpy()
    for row in found.rows:
        seed = int(np.random.SeedSequence([3, row["split"]]).generate_state(1)[0])
        kept, out = held_out(80, 16, seed)
        model = BEDLRegressor((8,), method="deterministic", epochs=2, random_state=3 + row["split"], device="cpu")
        mean = model.fit(x[kept], y[kept]).predict(x[out])
        assert row["rmse"] == pytest.approx(np.sqrt(np.mean((mean - y[out]) ** 2)), rel=1e-3)
    (line,) = found.summary()
    values = [row["rmse"] for row in found.rows]
    assert line["rmse"] == pytest.approx(np.mean(values))
    assert line["rmse_se"] == pytest.approx(abs(values[0] - values[1]) / 2)
    assert line["fit_seconds"] > 0 < line["predict_seconds"]
    assert found.constant["rmse"] > 0
    assert list(found.to_frame().index) == ["deterministic"]


def test_methods_within_a_standard_error_are_tied(capsys: pytest.CaptureFixture) -> None:
    scores = {"one": [1.0, 2.0, 3.0], "alike": [1.3, 1.8, 3.1], "worse": [1.2, 2.2, 3.2], "failed": [0.5, 1.0]}
    rows: list[dict[str, Any]] = [{"method": name, "split": split, "nll": value}
                                  for name, values in scores.items() for split, value in enumerate(values)]  # fmt: skip
    rows.append({"method": "failed", "split": 2, "error": "out of breath"})
    found = Comparison("t.csv", "y", "regression", rows)
    assert (found.best, found.tied) == ("one", ["alike"])  # worse is so on every split, however these differ
    assert found.to_dict()["tied"] == ["alike"]
    print_comparison(found)
    assert "Lowest negative log-likelihood: one, tied with alike (within" in capsys.readouterr().err
    assert "error of the difference: <bdi>alike</bdi>." in comparison_section(found.to_dict())


def test_a_class_that_is_left_out_is_foreign() -> None:
    frame = table().drop(columns="y")
    found = bedl.compare(frame, "kind", ["deterministic", "edl", "evidential-regression"], splits=1, leave_out="high",
                         **QUICK)  # fmt: skip
    assert {row["method"] for row in found.rows} == {"deterministic", "edl"}
    assert all(0 <= row["ood_auroc"] <= 1 for row in found.rows)
    assert "take 'edl'" in found.refused["evidential-regression"]
    assert found.record.class_names == ["low", "middle"]
    assert len(found.record.ood) == int((frame["kind"] == "high").sum())
    with pytest.raises(ValueError, match="no class 'tall'"):
        bedl.compare(frame, "kind", ["edl"], leave_out="tall", **QUICK)
    with pytest.raises(ValueError, match="not both"):
        bedl.compare(frame, "kind", ["edl"], leave_out="high", ood=frame, **QUICK)


def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "compared"
    first = bedl.compare(numbers(), "y", ["deterministic"], splits=1, out=place, **QUICK)
    fits: list[str] = []
    whole = BEDLRegressor.fit
    monkeypatch.setattr(BEDLRegressor, "fit", lambda self, *a, **k: (fits.append(self.method), whole(self, *a, **k))[1])
    more = bedl.compare(numbers(), "y", ["deterministic", "laplace"], splits=2, out=place, **QUICK)
    assert sorted(fits[:3]) == ["deterministic", "laplace", "laplace"]  # and perhaps the best, for the page
    assert more.rows[0] == first.rows[0]
    with pytest.raises(ModelFileError, match="holds a comparison with epochs 2, now 3"):
        bedl.compare(numbers(), "y", ["laplace"], splits=1, out=place, **{**QUICK, "epochs": 3})
    anew = bedl.compare(numbers(), "y", ["laplace"], splits=1, out=place, overwrite=True, **{**QUICK, "epochs": 3})
    assert len(anew.rows) == 1


def test_a_method_that_fails_does_not_end_the_comparison() -> None:
    class Broken(Method):
        def fit(self, x: Any, y: Any) -> None:
            raise ZeroDivisionError("out of luck")

    register("broken", "fails")(lambda problem: Broken())
    try:
        found = bedl.compare(numbers(), "y", ["broken", "deterministic"], splits=1, **QUICK)
    finally:
        del registry._METHODS["broken"]  # and no other, as baselines are registered when they are first asked for
    assert found.best == "deterministic"
    assert [row.get("error") for row in found.summary()] == [None, "ZeroDivisionError: out of luck"]


def test_standard_errors_of_differences_know_that_splits_share_rows() -> None:
    scores = {"one": [1.0, 2.0, 3.0], "other": [1.4, 2.0, 3.2]}
    rows: list[dict[str, Any]] = [{"method": name, "split": split, "nll": value}
                                  for name, values in scores.items() for split, value in enumerate(values)]  # fmt: skip
    gaps = np.array([0.4, 0.0, 0.2])
    for holdout in (0.0, 0.2):
        _, row = Comparison("t.csv", "y", "regression", rows, holdout=holdout).summary()
        assert row["difference"] == pytest.approx(0.2)
        assert row["difference_se"] == pytest.approx(np.sqrt((1 / 3 + holdout / (1 - holdout)) * gaps.var(ddof=1)))


def test_baselines_are_scikit_learn_with_out_of_fold_noise() -> None:
    frame = numbers()
    x, y = frame[["a", "b"]].to_numpy(), frame["y"].to_numpy()
    model = Baseline("linear", "regression", seed=0).fit(x, y[:, None])
    prediction = model.predict_dist(x[:5])
    reference = default_members("regression", 80, 1)[-1]
    np.testing.assert_allclose(prediction.mean[:, 0], clone(reference).fit(x, y).predict(x[:5]), rtol=1e-8)
    fold = cut_in_folds(80, 5, 0)
    residual = y - cross_val_predict(reference, x, y, cv=PredefinedSplit(fold))
    np.testing.assert_allclose(prediction.std[:, 0], np.sqrt(np.mean(residual**2)), rtol=1e-8)
    lower, upper = model.interval_of(model.predict_dist(x), 0.9)
    inside = (lower[:, 0].numpy() <= y) & (y <= upper[:, 0].numpy())
    assert 0.85 <= inside.mean() <= 0.97
    labels = (y > 0).astype(int)
    p = Baseline("linear", "classification", seed=0).fit(x, labels).predict_dist(x).probabilities.numpy()
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-9)
    assert (p.argmax(1) == labels).mean() > 0.95


def test_what_auto_stands_for_is_trained_once() -> None:
    meant = registry.resolve("auto", Problem("regression", 1, (2,)))[0]
    found = bedl.compare(numbers(), "y", ["auto", meant], splits=1, **QUICK)
    assert [row["method"] for row in found.rows] == ["auto"]
    assert "is what 'auto' stands for" in found.refused[meant]


def test_groups_and_periods_are_held_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = numbers().assign(who=np.repeat(np.arange(20), 4), day=np.arange(80.0)[::-1], w=1.0)
    cuts: list[tuple[np.ndarray, np.ndarray]] = []
    whole = comparison._Trial._split
    monkeypatch.setattr(comparison._Trial, "_split", lambda self, k: (cuts.append(whole(self, k)), cuts[-1])[1])
    bedl.compare(frame, "y", ["linear"], splits=2, group="who", weight="w", ignore=["day"])
    for kept, out in cuts[:2]:
        assert not set(frame["who"][kept]) & set(frame["who"][out])
        assert len(out) >= 12
    cuts.clear()
    bedl.compare(frame, "y", ["linear"], splits=2, time="day", holdout=0.2, ignore=["who", "w"])
    for number, (kept, out) in enumerate(cuts[:2]):
        np.testing.assert_array_equal(np.sort(frame["day"][out]), np.arange(80 - 16 * (number + 1), 80 - 16 * number))
        assert frame["day"][kept].max() < frame["day"][out].min()
    with pytest.raises(ValueError, match="Ask for fewer"):
        bedl.compare(frame, "y", ["linear"], splits=5, time="day")
    with pytest.raises(TypeError, match="no argument 'ignored'"):
        bedl.compare(frame, "y", ["linear"], ignored=["day"])


def test_the_default_list_ends_in_a_command_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = table()
    frame.loc[:5, "y"] = np.nan
    frame.loc[6:9, "a"] = -999
    frame.to_csv("with space.csv", index=False)
    words = ("compare", "with space.csv", "--target", "y", "--epochs", 2, "--splits", 1, "--hidden", 8)
    refused = run(*words, ok=False)
    assert "--drop-missing-target" in refused.stderr
    said = run(*words, "--drop-missing-target", "--na-values", -999, "--ignore", "kind", ok=True)
    names = {line.split()[0] for line in said.stdout.splitlines()[2:]}
    assert names >= {"auto", "ensemble", "bedl", "linear", "extra-trees", "boosting"}
    assert "is for" not in said.stderr
    command = shlex.split(said.stderr.strip().splitlines()[-1])
    assert command[:2] == ["bedl", "fit"]
    run(*command[1:], "--epochs", 2, ok=True)


def test_the_command_line(tmp_path: Path) -> None:
    file, page = tmp_path / "table.csv", tmp_path / "page.html"
    numbers().to_csv(file, index=False)
    words = ("compare", file, "--target", "y", "--methods", "deterministic,edl", "--splits", 1, "--epochs", 2)
    said = run(*words, "--hidden", 8, "--page", page, "--out", tmp_path / "kept", ok=True)
    assert "deterministic" in said.stdout
    assert "constant baseline" in said.stdout
    assert "edl: method 'edl' is for classification" in said.stderr
    html = page.read_text()
    assert "Methods compared" in html
    assert "constant baseline" in html
    again = json.loads(run(*words, "--hidden", 8, "--out", tmp_path / "kept", "--json", ok=True).stdout)
    assert again["best"] == "deterministic"
    assert again["rows"][0]["rmse"] > 0
    assert again["summary"][0]["splits"] == 1
    refused = run("compare", file, "--target", "y", "--methods", "determinist", ok=False)
    assert "did you mean 'deterministic'" in refused.stderr
