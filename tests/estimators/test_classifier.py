"""Classification: probabilities, labels of any kind, entropies."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.stats
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score

from bedl.estimators import BEDLClassifier, BEDLRegressor
from tests.estimators.problems import QUICK, labels, table


def test_it_learns_texts() -> None:
    X, y = labels(150)
    model = BEDLClassifier(**{**QUICK, "epochs": 30}).fit(X, y)
    assert list(model.classes_) == ["high", "low", "middle"]
    assert model.score(X, y) > 0.8
    p = model.predict_proba(X)
    assert np.allclose(p.sum(1), 1)
    assert np.array_equal(model.predict(X), model.classes_[p.argmax(1)])
    assert np.allclose(np.exp(model.predict_log_proba(X)), p, atol=1e-6)
    assert log_loss(y, p) < 0.6


def test_tables_of_predictions_name_the_classes() -> None:
    X, y = labels()
    model = BEDLClassifier(**QUICK).fit(X, y)
    frame = model.predict_dist(X)[:20].to_frame()
    assert [name for name in frame if name.startswith("prob")] == [f"probabilities_{c}" for c in model.classes_]
    assert frame["label"].tolist() == model.predict(X[:20]).tolist()
    assert np.allclose(frame["probabilities_low"], model.predict_proba(X[:20])[:, 1], atol=1e-6)


def test_uncertainty_is_entropy_in_nats() -> None:
    X, y = labels()
    model = BEDLClassifier(**QUICK).fit(X, y)
    parts = model.uncertainty(X)
    assert np.allclose(parts.total, scipy.stats.entropy(model.predict_proba(X), axis=1), atol=1e-6)
    assert np.allclose(parts.total, parts.aleatoric + parts.epistemic, atol=1e-6)
    assert np.allclose(parts.total, parts.data + parts.distributional + parts.model, atol=1e-6)
    assert (parts >= 0).all().all()
    assert (parts.total <= np.log(3) + 1e-6).all()


def test_frames_of_pandas_and_polars() -> None:
    X, y = labels()
    names = ["width", "height", "depth"]
    a, b = pd.DataFrame(X, columns=names), pl.DataFrame(X, schema=names)
    one = BEDLClassifier(**QUICK).fit(a, pd.Series(y))
    two = BEDLClassifier(**QUICK).fit(b, pl.Series(y))
    assert list(one.feature_names_in_) == list(two.feature_names_in_) == names
    assert np.array_equal(one.predict_proba(a), two.predict_proba(b))
    with pytest.raises(ValueError, match="feature names"):
        one.predict(a[["height", "width", "depth"]])


@pytest.mark.parametrize("values", [[True, False], [-1, 1], [2.0, 3.0], ["b", "a"]])
def test_labels_of_any_kind(values: list) -> None:
    X, y = table(60)
    wanted = np.where(y > 500, values[0], values[1])
    model = BEDLClassifier(**QUICK).fit(X, wanted)
    assert set(model.predict(X)) <= set(values)
    assert (model.predict(X) == wanted).mean() > 0.8


def test_weights_move_the_border() -> None:
    X, y = labels()
    weight = np.where(y == "high", 20.0, 1.0)
    plain = BEDLClassifier(**QUICK).fit(X, y).predict_proba(X)[:, 0].mean()
    weighted = BEDLClassifier(**QUICK).fit(X, y, sample_weight=weight).predict_proba(X)[:, 0].mean()
    assert weighted > plain + 0.1


def test_partial_fit_with_classes_to_come() -> None:
    X, y = labels(200)
    order = np.argsort(y == "middle", kind="stable")  # the class "middle" comes last
    model = BEDLClassifier(**{**QUICK, "batch_size": 64})
    model.partial_fit(X[order[:80]], y[order[:80]], classes=["low", "middle", "high"])
    for _ in range(20):
        model.partial_fit(X, y)
    assert model.score(X, y) > 0.75
    with pytest.raises(ValueError, match="not there before"):
        model.partial_fit(X, np.full(len(X), "other"))
    with pytest.raises(ValueError, match="first call"):
        model.partial_fit(X, y, classes=["low", "high"])


def test_noise_makes_it_less_sure() -> None:
    X, y = labels(150)
    model = BEDLClassifier(**{**QUICK, "epochs": 30}).fit(X, y)
    sure, unsure = model.uncertainty(X).total, model.uncertainty(X, X_var=1.0).total
    assert unsure.mean() > sure.mean() + 0.05
    assert np.allclose(model.predict_proba(X, X_var=0.0), model.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize(
    "wrong, error, complaint",
    [
        ({"method": "bedl-hyer"}, ValueError, "did you mean 'bedl-hyper'"),
        ({"ensemble": 0}, ValueError, "at least 1"),
        ({"epochs": 0}, ValueError, "epochs must be"),
        ({"batch_size": 1.5}, ValueError, "batch_size must be"),
        ({"learning_rate": -1}, ValueError, "positive"),
        ({"validation_fraction": 1.5}, ValueError, "between 0 and 1"),
        ({"activation": "zigzag"}, ValueError, "relu"),
        ({"hidden_layers": (0,)}, ValueError, "widths"),
        ({"net": 3}, TypeError, "n_features, n_outputs"),
    ],
)
def test_wrong_parameters_name_the_remedy(wrong: dict, error: type, complaint: str) -> None:
    X, y = labels(30)
    with pytest.raises(error, match=complaint):
        BEDLClassifier(**{**QUICK, **wrong}).fit(X, y)


def test_decision_function_ranks_as_probabilities_do() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    two, three = (X[:, 0] > 0).astype(int), np.digitize(X[:, 0], [-0.5, 0.5])
    for y, columns in ((two, None), (three, 3), (np.stack([two, X[:, 1] > 0], 1).astype(int), 2)):
        model = BEDLClassifier(method="bedl", epochs=10, random_state=0, device="cpu").fit(X, y)
        found, p = model.decision_function(X), model.predict_proba(X)
        assert found.shape == ((120,) if columns is None else (120, columns))
        expected = np.log(p) if columns == 3 else np.log(p / (1 - p))
        np.testing.assert_allclose(found, expected[:, 1] if columns is None else expected, rtol=1e-4, atol=1e-5)
    binary = BEDLClassifier(method="bedl", epochs=10, random_state=0, device="cpu")
    scores = cross_val_score(binary, X, two, scoring="roc_auc", cv=3)
    assert (scores > 0.9).all()


def test_names_of_features_are_those_of_the_encoding() -> None:
    X = pd.DataFrame({"size": np.arange(40.0), "kind": ["a", "b"] * 20})
    y = X["kind"] == "a"
    model = BEDLClassifier(method="bedl", epochs=1, device="cpu")
    mixed = model.fit(X, y).get_feature_names_out()
    assert len(mixed) == model.encoder_.possible_rows(np.zeros((1, len(mixed))), 1).shape[-1]
    assert mixed[0] == "size"
    assert all("kind" in name for name in mixed[1:])
    assert model.fit(X[["size"]], y).get_feature_names_out().tolist() == ["size"]
    assert model.fit(X[["size"]].to_numpy(), y).get_feature_names_out().tolist() == ["x0"]


def test_one_class_is_refused() -> None:
    X, _ = labels(30)
    with pytest.raises(ValueError, match="at least 2 classes"):
        BEDLClassifier(**QUICK).fit(X, np.zeros(30))


# -- conformal prediction ------------------------------------------------------------------------------
def test_mapies_intervals_cover() -> None:
    from mapie.regression import SplitConformalRegressor

    X, y = table(600)
    model = BEDLRegressor(**QUICK).fit(X[:200], y[:200])
    conformal = SplitConformalRegressor(model, confidence_level=0.9, prefit=True).conformalize(X[200:400], y[200:400])
    _, ends = conformal.predict_interval(X[400:])
    covered = ((y[400:] >= ends[:, 0, 0]) & (y[400:] <= ends[:, 1, 0])).mean()
    assert 0.82 < covered < 0.97


def test_mapies_sets_cover() -> None:
    from mapie.classification import SplitConformalClassifier

    X, y = labels(600)
    model = BEDLClassifier(**QUICK).fit(X[:200], y[:200])
    conformal = SplitConformalClassifier(model, confidence_level=0.9, prefit=True).conformalize(X[200:400], y[200:400])
    _, sets = conformal.predict_set(X[400:])
    covered = sets[np.arange(200), np.searchsorted(model.classes_, y[400:]), 0].mean()
    assert 0.82 < covered < 0.98


def test_numbers_that_look_like_quantities_are_warned_of():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    model = BEDLClassifier(method="bedl", epochs=1, random_state=0, device="cpu")
    with pytest.warns(UserWarning, match=r"100 distinct numbers in 300 rows.*use BEDLRegressor"):
        model.fit(X, 1000 * (np.arange(300) % 100))
    with pytest.warns(UserWarning, match="greater than 50%"):  # scikit-learn's own words
        model.fit(X, np.arange(300) // 1.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, np.char.add("c", (np.arange(300) % 100).astype(str)))  # names are no quantities
