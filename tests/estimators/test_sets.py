"""Prediction sets and risk control: against MAPIE on the same scores, by simulation, and through files and graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from scipy.stats import binom
from sklearn import datasets
from sklearn.base import BaseEstimator, ClassifierMixin

from bedl import BEDLClassifier
from bedl.deploy import OnnxModel, export
from bedl.estimators.calibration import abstention_threshold, held_out_labels, risk_p_values
from bedl.evaluation.tasks import label_scores, prediction_sets, set_threshold, set_thresholds_by_class
from tests.cli.verbs import run

CLASSES = 4


def drawn(n: int, seed: int, sharpness: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and labels that other probabilities draw: a model that is not calibrated."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, CLASSES))
    p, truth = (np.exp(t * logits) / np.exp(t * logits).sum(1, keepdims=True) for t in (sharpness, 1.0))
    return p, (rng.uniform(size=(n, 1)) > truth.cumsum(1)[:, :-1]).sum(1)


class Given(ClassifierMixin, BaseEstimator):
    """A classifier whose inputs are its probabilities."""

    def fit(self, X: Any, y: Any) -> Given:
        self.classes_ = np.arange(CLASSES)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        return np.asarray(X)

    def predict(self, X: Any) -> np.ndarray:
        return np.asarray(X).argmax(1)


@pytest.mark.parametrize("coverage", [0.6, 0.9])
def test_randomized_sets_are_those_of_mapie(coverage: float) -> None:
    mapie = pytest.importorskip("mapie.classification")
    (p, y), (q, _) = drawn(301, 0), drawn(200, 1)
    theirs = mapie.SplitConformalClassifier(
        Given().fit(p, y), confidence_level=coverage, prefit=True, conformity_score="aps", random_state=3
    )
    theirs.conformalize(p, y)
    sets = theirs.predict_set(q, conformity_score_params={"include_last_label": "randomized"})[1][:, :, 0]
    u, v = (1 - np.random.RandomState(3).uniform(size=n) for n in (len(p), len(q)))  # what is left of the last class
    threshold = set_threshold(label_scores(p, y, u), coverage, randomized=True)
    np.testing.assert_array_equal(prediction_sets(q, threshold, v, allow_empty=True), sets)


@pytest.mark.parametrize("randomized", [True, False])
@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_the_coverage_of_sets_is_the_nominal_one_over_many_draws(randomized: bool, penalty: float) -> None:
    covered, by_class = [], []
    for seed in range(300):
        (p, y), (q, z) = drawn(99, seed), drawn(100, 1000 + seed)
        u = np.random.default_rng(seed).uniform(size=(2, 100))
        held, rows = label_scores(p, y, u[0, :99]), np.arange(100)
        v = u[1] if randomized else None
        threshold = set_threshold(held, 0.8, penalty, 2, randomized)
        covered.append(prediction_sets(q, threshold, v, penalty, 2, allow_empty=True)[rows, z].mean())
        each = set_thresholds_by_class(held, CLASSES, 0.8, penalty, 2, randomized)
        own = prediction_sets(q, each, v, penalty, 2, allow_empty=True)[rows, z]
        by_class.append([own[z == c].mean() if (z == c).any() else np.nan for c in range(CLASSES)])
    # ⌈0.8 · 100⌉ / 100: exact without ties; of a class ⌈0.8 (n + 1)⌉ / (n + 1), up to 0.03 more
    assert np.mean(covered) == pytest.approx(0.8, abs=4 * np.std(covered) / 300**0.5)
    error = 4 * np.nanstd(by_class, 0) / 300**0.5
    means = np.nanmean(by_class, 0)
    assert ((means > 0.8 - error) & (means < 0.83 + error)).all()


def test_a_penalty_makes_large_sets_smaller() -> None:
    (p, y), (q, _) = drawn(500, 0, 0.3), drawn(500, 1, 0.3)
    held = label_scores(p, y, np.zeros(500))
    sizes = [prediction_sets(q, set_threshold(held, 0.93, w, 2), None, w, 2).sum(1) for w in (0.0, 0.3)]
    assert sizes[1].max() <= sizes[0].max()
    assert sizes[1].std() < sizes[0].std()


def test_tests_of_the_risk_are_binomial_and_rejected_as_by_mapie() -> None:
    control = pytest.importorskip("mapie.risk_control")
    for seed, risk in ((0, 0.3), (1, 0.2), (2, 0.3)):
        p, y = drawn(800, seed)
        p = p.round(2) / p.round(2).sum(1, keepdims=True)  # some are equal
        thresholds, p_values = risk_p_values(held_out_labels(p, y), risk, 0.1)
        above = p.max(1) >= thresholds[:, None] - 1e-9
        np.testing.assert_allclose(p_values, binom.cdf((above & (p.argmax(1) != y)).sum(1), above.sum(1), risk))
        rejected = control.control_fwer(p_values, 0.1, control.FWERFixedSequenceTesting(n_starts=1))
        assert len(rejected)
        assert abstention_threshold(held_out_labels(p, y), risk, 0.9) == thresholds[rejected.max()]


@pytest.mark.parametrize("risk, least", [(0.1, 0.25), (0.3, 0.8)])
def test_the_risk_is_below_its_bound_as_often_as_stated(risk: float, least: float) -> None:
    q, z = drawn(200_000, 10_000)
    top, wrong = q.max(1), q.argmax(1) != z
    over, kept = [], []
    for seed in range(200):
        accepted = top >= abstention_threshold(held_out_labels(*drawn(500, seed)), risk, 0.9)
        kept.append(accepted.mean())
        over.append(bool(accepted.any()) and wrong[accepted].mean() > risk)
    assert np.mean(over) <= 0.1 + 3 * (0.09 / 200) ** 0.5
    most = max(share for share in np.linspace(0.01, 1, 100) if wrong[top >= np.quantile(top, 1 - share)].mean() <= risk)
    assert np.mean(kept) >= least * most  # of what the risk allows


def table(n: int, seed: int, kind: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Tables of 2 to 8 classes, even and uneven, easy and hard."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    zero = np.zeros(n)
    scores = [
        [2 * X[:, 0], 2 * X[:, 1], 2 * np.sin(3 * X[:, 2])],
        [zero, 1.5 * X[:, 0] - 2],
        [X @ np.random.default_rng(7).normal(size=(4, 8))[:, c] for c in range(8)],
        [6 * (X[:, 0] ** 2 + X[:, 1] ** 2 - 1.4), zero],
        list(0.3 * X.T),
    ][kind]
    return X, (np.stack(scores, 1) + rng.gumbel(size=(n, len(scores)))).argmax(1)


@pytest.fixture(scope="module")
def model() -> BEDLClassifier:
    X, y = table(400, 0)
    return BEDLClassifier(random_state=0, device="cpu").fit(X, np.array(["a", "b", "c"])[y])


def test_sets_hold_labels_that_were_not_learned_from(model: BEDLClassifier) -> None:
    X, y = table(1000, 1)
    prediction = model.predict_dist(X)
    for options in ({}, {"by_class": True}, {"randomized": True}, {"penalty": 0.1, "n_free": 1}):
        sets = model.set_of(prediction, 0.9, **options)
        assert sets.shape == (1000, 3)
        assert sets.dtype == bool
        assert sets.any(1).all()
        assert 0.86 <= sets[np.arange(1000), y].mean() <= 0.97
    np.testing.assert_array_equal(model.predict_set(X[:9], 0.9), model.set_of(prediction, 0.9)[:9])
    assert model.set_of(prediction, 0.5).sum() < model.set_of(prediction, 0.9).sum()
    frame = model.predict_dist(X[:50]).to_frame()
    assert (frame["set_size"] == model.predict_set(X[:50]).sum(1)).all()
    assert frame["prediction_set"].tolist() == [
        "|".join(np.array(["a", "b", "c"])[order][held[order]])
        for held, order in zip(model.predict_set(X[:50]), np.argsort(-model.predict_proba(X[:50]), 1), strict=True)
    ]
    top = prediction.probabilities.numpy().argmax(1)
    assert model.set_of(prediction, 0.3)[np.arange(1000), top].all()
    assert not model.set_of(prediction, 0.3, allow_empty=True).any(1).all()


def test_abstaining_keeps_the_risk(model: BEDLClassifier) -> None:
    X, y = table(1000, 2)
    plain, labels = model.predict(X), np.array(["a", "b", "c"])[y]
    some = model.predict(X, max_risk=0.3, confidence=0.9)
    assert isinstance(some, np.ma.MaskedArray)
    np.testing.assert_array_equal(some.data, plain)
    kept = ~some.mask
    assert kept.mean() > 0.1
    assert (plain != labels)[kept].mean() <= 0.3 < (plain != labels).mean()
    assert model.predict(X[:9], max_risk=0.001).mask.all()
    with pytest.raises(ValueError, match="max_risk must lie between 0 and 1"):
        model.predict(X, max_risk=5)


def test_calibrate_gives_a_network_sets_of_its_own() -> None:
    (X, y), (Z, z) = table(300, 0), table(500, 1)
    one = BEDLClassifier(method="deterministic", epochs=5, random_state=0, device="cpu").fit(X, y)
    p = one.predict_proba(Z)
    before = np.sort(p, 1)[:, ::-1].cumsum(1)
    np.testing.assert_array_equal(one.predict_set(Z, 0.8).sum(1), (before < 0.8).sum(1) + 1)
    for options, words in (({"by_class": True}, "by_class needs rows"), ({"coverage": 90}, "between 0 and 1")):
        with pytest.raises(ValueError, match=words):
            one.predict_set(Z, **options)
    with pytest.raises(ValueError, match="max_risk needs rows that were not learned from"):
        one.predict(Z, max_risk=0.1)
    one.calibrate(Z, z)
    W, w = table(2000, 2)
    assert one.predict_set(W, 0.9)[np.arange(2000), w].mean() == pytest.approx(0.9, abs=0.04)
    several = BEDLClassifier(method="bedl", epochs=2, device="cpu").fit(X, np.stack([y == 0, y == 1], 1))
    with pytest.raises(ValueError, match="several labels at once"):
        several.predict_set(Z)


def test_sets_are_the_same_from_files_and_graphs(tmp_path: Path) -> None:
    (X, y), (Z, z) = table(300, 0), table(300, 1)
    model = BEDLClassifier(method="deterministic", epochs=5, random_state=0, device="cpu").fit(X, y).calibrate(Z, z)
    X, _ = table(300, 3)
    sets = model.predict_set(X, 0.8)
    loaded = BEDLClassifier.load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(loaded.predict_set(X, 0.8), sets)
    np.testing.assert_array_equal(loaded.predict_set(X, 0.8, by_class=True), model.predict_set(X, 0.8, by_class=True))
    np.testing.assert_array_equal(loaded.predict(X, max_risk=0.3).mask, model.predict(X, max_risk=0.3).mask)
    export(model, tmp_path / "model.onnx")
    graph = OnnxModel(tmp_path / "model.onnx").predict_columns(X.astype(np.float32), coverage=0.8)
    assert (graph["set_size"] == sets.sum(1)).mean() > 0.99  # probabilities are in single precision
    assert [text.split("|")[0] for text in graph["prediction_set"]] == [str(c) for c in graph["prediction"]]


def test_the_command_line_writes_sets_and_scores_them(tmp_path: Path) -> None:
    X, y = table(400, 0)
    frame = pandas.DataFrame(X, columns=list("pqrs")).assign(kind=np.array(["a", "b", "c"])[y])
    frame[:300].to_csv(tmp_path / "old.csv", index=False)
    frame[300:].to_csv(tmp_path / "new.csv", index=False)
    run("fit", tmp_path / "old.csv", "--target", "kind", "--out", tmp_path / "m", ok=True)
    run("predict", tmp_path / "m", tmp_path / "new.csv", "--out", tmp_path / "p.csv", "--coverage", 0.8, ok=True)
    found = pandas.read_csv(tmp_path / "p.csv")
    names = found["prediction_set"].str.split("|")
    assert (names.str.len() == found["set_size"]).all()
    assert (names.str[0] == found["prediction"]).all()
    held = [kind in some for some, kind in zip(names, frame["kind"][300:], strict=True)]
    assert abs(np.mean(held) - 0.8) < 0.15
    run("report", tmp_path / "m", tmp_path / "new.csv", "--out", tmp_path / "page.html", "--coverage", 0.8, ok=True)
    assert "Prediction sets" in (tmp_path / "page.html").read_text()
    assert "Set coverage" in run("evaluate", tmp_path / "m", tmp_path / "new.csv", ok=True).stdout


@pytest.mark.parametrize("name", ["wine", "breast_cancer", "digits", "made of 8", "made of 4"])
def test_calibrated_sets_cover_rows_and_classes_over_100_splits(name: str) -> None:
    if name.startswith("made"):
        X, y = table(1500, 0, 2 if name == "made of 8" else 4)
    else:
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    first, rest = order[: len(y) // 4], order[len(y) // 4 :]
    one = BEDLClassifier(method="deterministic", epochs=3, random_state=0, device="cpu").fit(X[first], y[first])
    p, classes, half = one.predict_proba(X[rest]).astype(np.float64), len(one.classes_), len(rest) // 2
    covered, by_class = [], []
    for split in range(100):
        rows = np.random.default_rng(split).permutation(len(rest))
        held = held_out_labels(p[rows[:half]], y[rest][rows[:half]])
        q, z = p[rows[half:]], y[rest][rows[half:]]
        each = set_thresholds_by_class(held, classes, 0.9)
        sets = (prediction_sets(q, t, allow_empty=True) for t in (set_threshold(held, 0.9), each))
        whole, own = (found[np.arange(len(z)), z] for found in sets)
        covered.append(whole.mean())
        by_class.append(np.bincount(z, own, classes) / np.bincount(z, minlength=classes))
    assert np.mean(covered) == pytest.approx(0.9, abs=1 / half + 4 * np.std(covered) / 10)
    assert (np.mean(by_class, 0) >= 0.9 - 4 * np.std(by_class, 0) / 10).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", range(5))
def test_out_of_fold_scores_cover_new_rows_and_classes(kind: int) -> None:
    """Not guaranteed, but close: over 20 tables of each kind, of all rows and of both frequent classes."""
    covered, by_class = [], []
    for seed in range(20):
        (X, y), (Z, z) = table(400, 2 * seed, kind), table(1000, 2 * seed + 1, kind)
        fitted = BEDLClassifier(random_state=seed, device="cpu").fit(X, y)
        rows, numbers = np.isin(z, fitted.classes_), np.searchsorted(fitted.classes_, z)
        Z, numbers = Z[rows], numbers[rows]
        prediction = fitted.predict_dist(Z)
        covered.append(fitted.set_of(prediction, randomized=True, allow_empty=True)[np.arange(len(Z)), numbers].mean())
        own = fitted.set_of(prediction, by_class=True, allow_empty=True)[np.arange(len(Z)), numbers]
        by_class.append([own[numbers == c].mean() for c in range(2)])
    print(f"table {kind}: {np.mean(covered):.3f} ± {np.std(covered) / 20**0.5:.3f}, by class {np.mean(by_class, 0)}")
    assert 0.87 <= np.mean(covered) <= 0.95
    assert (np.mean(by_class, 0) >= 0.85).all()
