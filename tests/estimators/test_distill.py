"""Committees of folds, their labels, and the network that is distilled from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris, make_friedman1
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.tree import DecisionTreeRegressor

from bedl import BEDLClassifier, BEDLRegressor
from bedl.estimators.distill import ClassCommittee, TargetCommittee, fitted, near_rows, quantile_edges
from bedl.nn.tabular import QuantileCodes


@pytest.fixture
def line():
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 3))
    return X, (X[:, :1] + 0.3 * random.normal(size=(400, 1)))


def committee_of(makers, X, y, folds=5):
    fold = np.arange(len(X)) % folds
    made = TargetCommittee(fitted(makers, X, y, fold, folds, None))
    made.fit(X, y, fold, None)
    return made


def test_committee_member_that_learns_by_heart_counts_by_its_error_on_rows_held_out(line):
    X, y = line
    by_heart = committee_of([KNeighborsRegressor(1), LinearRegression(), DummyRegressor()], X, y)
    assert by_heart.weights[1, 0] > 0.9
    assert np.isclose(by_heart.weights.sum(), 1.0)
    assert by_heart.shares[0, [0, 2]].sum() > 0.9 * by_heart.shares.sum()  # of the stacked mean, and of the line
    above, below = by_heart.own_labels(np.arange(len(X)))
    assert np.isclose(np.mean(above - below) / 2, 0.3, rtol=0.15)  # the noise, not 0


def test_committee_labels_have_its_mean_and_the_variance_of_the_noise(line):
    X, y = line
    made, random = committee_of([LinearRegression(), DummyRegressor()], X, y), np.random.default_rng(1)
    fold = np.zeros(len(X), dtype=int)
    draws = np.stack([made.drawn(X, fold, random) for _ in range(4000)])
    above, below = made.labels(X, fold)
    np.testing.assert_allclose((above + below) / 2, draws.mean(0), atol=0.08)
    np.testing.assert_allclose((above - below) / 2, draws.std(0), rtol=0.2)
    assert np.abs(draws.mean(0) - X[:, :1]).max() < 0.25
    assert np.isclose(np.sqrt(draws.var(0).mean()), 0.3, rtol=0.15)


def test_committee_of_classes_is_calibrated_on_rows_held_out():
    random = np.random.default_rng(0)
    X = random.normal(size=(2000, 1))
    y = (random.uniform(size=2000) < 1 / (1 + np.exp(-2 * X[:, 0]))).astype(int)
    fold = np.arange(2000) % 5
    made = ClassCommittee(fitted([LogisticRegression(), DummyClassifier()], X, y, fold, 5, None), 2)
    made.fit(X, y, fold, None)
    truth = 1 / (1 + np.exp(-2 * X[:, 0]))
    assert np.abs(made.probabilities[:, 1] - truth).mean() < 0.03
    assert made.weights[0] > 0.8


def test_near_rows_keep_columns_of_two_values_and_rows_of_no_weight_out():
    X = np.column_stack([np.arange(100.0), np.arange(100) % 2])
    weight = np.where(np.arange(100) < 50, 1.0, 0.0)
    rows = near_rows(X, weight, 1000, np.random.default_rng(0))
    assert set(np.unique(rows[:, 1])) == {0.0, 1.0}
    assert np.median(rows[:, 0]) < 50


def test_quantile_codes_are_a_piecewise_linear_interpolation():
    X = np.random.default_rng(0).exponential(size=(640, 2))
    edges = quantile_edges(X, np.zeros(2), np.ones(2))
    codes = QuantileCodes(edges)(torch.tensor(X, dtype=torch.float32))
    bins = len(edges[0]) - 1
    rank = codes[:, 2 : 2 + bins].sum(1).numpy()  # where in its bins a value lies
    assert np.allclose(rank, np.interp(X[:, 0], edges[0].numpy(), np.arange(bins + 1)), atol=1e-3)


@pytest.fixture(scope="module")
def friedman():
    X, y = make_friedman1(300, 6, noise=1.0, random_state=0)
    return X, y, BEDLRegressor(method="distilled", random_state=0, device="cpu").fit(X[:200], y[:200])


def test_distilled_network_predicts_better_than_a_line_and_covers(friedman):
    X, y, model = friedman
    line = LinearRegression().fit(X[:200], y[:200])
    error = np.mean((model.predict(X[200:]) - y[200:]) ** 2)
    assert error < 0.8 * np.mean((line.predict(X[200:]) - y[200:]) ** 2)
    low, high = model.predict_interval(X[200:])
    assert 0.8 <= ((low <= y[200:]) & (y[200:] <= high)).mean() <= 0.99


def test_distilled_network_is_more_uncertain_far_away(friedman):
    X, _, model = friedman
    near, far = model.predict_dist(X[200:]), model.predict_dist(X[200:] + 20.0)
    assert far.epistemic.median() > 3 * near.epistemic.median()


def test_distilled_network_is_loaded_as_it_was_saved(friedman, tmp_path):
    X, _, model = friedman
    loaded = BEDLRegressor.load(model.save(tmp_path / "model.safetensors"))
    for ends in zip(model.predict_interval(X), loaded.predict_interval(X), strict=True):
        np.testing.assert_allclose(*ends, rtol=1e-6)


def test_distilled_network_ignores_rows_of_weight_zero():
    X, y = make_friedman1(160, 5, noise=0.5, random_state=1)
    weight = np.where(np.arange(160) < 120, 1.0, 0.0)
    spoilt = np.where(weight > 0, y, 1e3)
    scale = BEDLRegressor(method="distilled", teacher=DecisionTreeRegressor(max_depth=4), random_state=0, device="cpu")
    prediction = scale.fit(X, spoilt, sample_weight=weight).predict(X[120:])
    assert np.abs(prediction).max() < 100


def test_distilled_classifier_has_classes_of_iris_right():
    X, y = load_iris(return_X_y=True)
    rows = np.random.default_rng(0).permutation(150)
    model = BEDLClassifier(method="distilled", random_state=0, device="cpu").fit(X[rows[:100]], y[rows[:100]])
    assert model.score(X[rows[100:]], y[rows[100:]]) > 0.9
    far = model.predict_dist(X[rows[100:]] + 30.0)
    assert far.vacuity.median() > 3 * model.predict_dist(X[rows[100:]]).vacuity.median()
