"""Regression: units, uncertainty, noise in the inputs, weights, going on."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import scipy.stats
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from bedl.estimators import BEDLRegressor
from bedl.heads import Normal
from bedl.nn.tabular import Standardize
from tests.estimators.problems import QUICK, table


def test_it_learns_in_the_targets_units() -> None:
    X, y = table(200)
    model = BEDLRegressor(**{**QUICK, "epochs": 25}).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert model.score(X, y) > 0.95
    assert 2 < std.mean() < 6  # the noise is 3
    inside = np.abs(mean - y) < 2 * std
    assert 0.88 < inside.mean() <= 1


def test_other_units_give_the_same_in_other_units() -> None:
    """X in units of 1e9 and far from 0, y in thousandths: standardisation makes nothing of it."""
    X, y = table()
    one = BEDLRegressor(**QUICK).fit(X, y)
    other = BEDLRegressor(**QUICK).fit(X * 1e9 + 5e9, y * 1e-3 - 7)
    mean, std = one.predict(X, return_std=True)
    mean_other, std_other = other.predict(X * 1e9 + 5e9, return_std=True)
    assert np.allclose(mean_other, mean * 1e-3 - 7, rtol=1e-6)
    assert np.allclose(std_other, std * 1e-3, rtol=1e-6)


def test_intervals_are_the_normals() -> None:
    X, y = table()
    model = BEDLRegressor(**QUICK).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    lower, upper = model.predict_interval(X, coverage=0.8)
    expected = scipy.stats.norm(mean, std).interval(0.8)
    assert np.allclose(lower, expected[0])
    assert np.allclose(upper, expected[1])
    log_p = model.predict_dist(X).log_prob(torch.from_numpy(y)[:, None])
    assert np.allclose(log_p, scipy.stats.norm(mean, std).logpdf(y))
    with pytest.raises(ValueError, match="coverage"):
        model.predict_interval(X, coverage=90)


def test_uncertainty_adds_up_and_is_of_the_right_unit() -> None:
    X, y = table()
    frame = pd.DataFrame(X, columns=["a", "b", "c"], index=range(1000, 1000 + len(X)))
    model = BEDLRegressor(**QUICK).fit(frame, y)
    parts = model.uncertainty(frame)
    assert list(parts) == ["total", "aleatoric", "epistemic", "data", "distributional", "model"]
    assert np.allclose(parts.total, parts.aleatoric + parts.epistemic, rtol=1e-5)
    assert np.allclose(parts.total, parts.data + parts.distributional + parts.model, rtol=1e-5)
    assert np.allclose(parts.total, model.predict(frame, return_std=True)[1] ** 2)
    assert list(parts.index) == list(frame.index)


def test_several_targets() -> None:
    X, y = table()
    both = pd.DataFrame({"up": y, "down": 10 - 2 * X[:, 1]})
    model = BEDLRegressor(**{**QUICK, "epochs": 40}).fit(X, both)
    assert model.predict(X).shape == (len(X), 2)
    assert model.score(X, both) > 0.9
    assert list(model.uncertainty(X)) == [
        f"{part}_{target}" for target in ("up", "down")
        for part in ("total", "aleatoric", "epistemic", "data", "distributional", "model")
    ]  # fmt: skip
    assert BEDLRegressor(**QUICK).fit(X, y[:, None]).predict(X).shape == (len(X), 1)


@pytest.mark.parametrize("shape", ["scalar", "per feature", "per value"])
def test_noise_in_the_inputs_is_what_sampling_says(shape: str) -> None:
    """A linear net, whose mean and the model's part of the variance follow the law of total variance exactly."""
    X, y = table()
    noise = {"scalar": 0.5, "per feature": np.array([0.5, 0.0, 2.0]), "per value": np.full(X.shape, 0.3)}[shape]
    model = BEDLRegressor(**{**QUICK, "hidden_layers": (), "method": "bedl+reg"}).fit(X * 10, y)
    point, n = X[:1] * 10, 40_000
    spread = np.broadcast_to(noise, X.shape)[:1]
    given = noise[:1] if shape == "per value" else noise
    found = model.predict_dist(point, X_var=given)
    draws = point + np.sqrt(spread) * np.random.default_rng(0).normal(size=(n, 3))
    sampled = model.predict_dist(draws)
    means = sampled.mean.numpy()[:, 0]
    assert abs(found.mean.item() - means.mean()) < 5 * means.std() / np.sqrt(n)
    expected = sampled.model.mean().item() + means.var()
    assert found.model.item() == pytest.approx(expected, rel=5 * np.sqrt(2 / n))


def test_noise_while_learning_is_heeded() -> None:
    """A feature that is mostly noise is trusted less."""
    X, _ = table(64)  # one batch
    y = X[:, 0] + X[:, 1]
    settings = {**QUICK, "hidden_layers": (), "epochs": 80, "batch_size": 64, "learning_rate": 0.1, "method": "bedl"}
    clean = BEDLRegressor(**settings).fit(X, y)
    noisy = BEDLRegressor(**settings).fit(X, y, X_var=[4.0, 0.0, 0.0])

    def slope(model: BEDLRegressor) -> float:
        return float(np.diff(model.predict([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))[0])

    assert slope(clean) > 0.9
    assert slope(noisy) < 0.5


@pytest.mark.parametrize(
    "wrong, complaint", [(-1.0, "at least 0"), (np.ones(5), "per feature"), (np.nan, "finite"), ("x", "numbers")]
)
def test_wrong_noise_is_refused(wrong: object, complaint: str) -> None:
    X, y = table()
    with pytest.raises(ValueError, match=complaint):
        BEDLRegressor(**QUICK).fit(X, y, X_var=wrong)


# -- going on ------------------------------------------------------------------------------------------
def test_partial_fit_learns_from_a_stream() -> None:
    X, y = table(2000)
    model = BEDLRegressor(**QUICK)
    for start in range(0, 2000, 200):
        model.partial_fit(X[start : start + 200], y[start : start + 200])
    assert model.n_seen_ == 2000
    assert model.score(X, y) > 0.9


def test_partial_fit_keeps_adams_memory() -> None:
    """Two calls with one batch each are one run over both, by torch's own Adam."""
    X, y = table(64)
    model = BEDLRegressor(**{**QUICK, "batch_size": 64, "method": "bedl"}).partial_fit(X, y)
    steps = [int(state["step"]) for state in model._optimizers[0].state.values()]
    model.partial_fit(X, y)
    assert set(steps) == {1}
    assert {int(state["step"]) for state in model._optimizers[0].state.values()} == {2}


def test_warm_start_goes_on() -> None:
    X, y = table()
    cold = BEDLRegressor(**QUICK, precision="double").fit(X, y)  # as what goes on learns by default
    warm = BEDLRegressor(**QUICK, warm_start=True).fit(X, y)
    first = warm.history_[-1]["loss"]
    assert first == cold.history_[-1]["loss"]
    warm.fit(X, y)
    cold.fit(X, y)
    assert warm.history_[0]["loss"] < cold.history_[0]["loss"]
    assert cold.history_[-1]["loss"] == first
    with pytest.raises(ValueError, match="features"):
        warm.fit(X[:, :2], y)


def test_the_same_seed_gives_the_same_and_touches_no_global_generator() -> None:
    X, y = table()
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    one, same, other = (BEDLRegressor(**{**QUICK, "random_state": s}).fit(X, y).predict(X) for s in (0, 0, 1))
    BEDLRegressor(**{**QUICK, "random_state": None, "epochs": 1}).fit(X, y)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


# -- among scikit-learn's tools ------------------------------------------------------------------------
def test_in_pipelines_and_searches() -> None:
    X, y = table(90)
    quick = BEDLRegressor(**{**QUICK, "epochs": 5})
    pipeline = make_pipeline(PolynomialFeatures(2), quick)
    search = GridSearchCV(pipeline, {"bedlregressor__hidden_layers": [(4,), (8, 8)]}, cv=2).fit(X, y)
    assert search.best_params_["bedlregressor__hidden_layers"] in [(4,), (8, 8)]
    scores = cross_val_score(clone(quick), X, y, cv=2, scoring="neg_mean_absolute_error")
    assert np.isfinite(scores).all()


def test_not_fitted() -> None:
    with pytest.raises(NotFittedError):
        BEDLRegressor().predict_interval([[0.0]])


# -- tables that are hard to learn from ----------------------------------------------------------------
@pytest.mark.parametrize("n", [2, 3, 20, 70])
@pytest.mark.parametrize("trouble", ["none", "constant feature", "constant target", "huge", "tiny", "one feature"])
def test_odd_tables(n: int, trouble: str) -> None:
    X, y = table(n)
    if trouble == "constant feature":
        X[:, 1] = 1e9
    elif trouble == "constant target":
        y[:] = 7.0
    elif trouble == "one feature":
        X = X[:, :1]
    else:
        X = X * {"none": 1.0, "huge": 1e9, "tiny": 1e-12}[trouble]
    model = BEDLRegressor(**QUICK).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    if trouble == "constant target":
        assert np.allclose(mean, 7.0, atol=2.0)


def test_a_shared_scale_is_that_of_all_features_together() -> None:
    X, y = table(60)
    X = X.copy()
    X[:, 0] *= 100
    model = BEDLRegressor(**{**QUICK, "epochs": 1, "standardize": "shared"}).fit(X, y)
    (scaling,) = [module for module in model.method_.modules() if isinstance(module, Standardize)]
    np.testing.assert_allclose(scaling.loc, X.mean(), rtol=1e-5)
    np.testing.assert_allclose(scaling.scale, X.std(), rtol=1e-5)


def test_heads_see_the_targets_that_count_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list = []
    monkeypatch.setattr(Normal, "prepare", lambda self, y: seen.append(y.clone()))
    X, y = table(30)
    weight = np.ones(30)
    weight[3] = 0.0
    BEDLRegressor(**{**QUICK, "epochs": 1}, ensemble=2).fit(X, y, weight)
    assert len(seen) == 2
    kept = np.delete(y, 3)
    loc, scale = np.average(y, weights=weight), np.sqrt(np.cov(y, aweights=weight, ddof=0))
    np.testing.assert_allclose(seen[1][:, 0], (kept - loc) / scale)


@pytest.mark.parametrize("name, last", [("cosine", 0.0), ("warmup", 1.0), ("constant", 1.0)])
def test_the_learning_rate_falls_or_stays(monkeypatch, name, last):
    from bedl.estimators import fit

    seen = []
    real = fit.fit_replicas
    monkeypatch.setattr(fit, "fit_replicas", lambda *a, **k: (seen.append(k["schedule"]), real(*a, **k))[1])
    X = np.linspace(-1, 1, 40)[:, None]
    BEDLRegressor(method="bedl", epochs=2, schedule=name, device="cpu", random_state=0).fit(X, X[:, 0])
    assert seen[0](1000, 1000) == pytest.approx(last, abs=1e-12)
    assert seen[0](100, 1000) > 0.9
    assert (seen[0](0, 1000) == 1.0) == (name == "constant")


def test_a_schedule_that_is_none():
    with pytest.raises(ValueError, match="schedule is 'cosine' or 'warmup' or 'constant', not 'steps'"):
        BEDLRegressor(schedule="steps").fit(np.zeros((10, 1)), np.arange(10.0))


def test_a_large_offset_of_the_targets_changes_nothing():
    """Weights of a mixture add up to 1 but for rounding, which 1.7e9 seconds would show."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    y = 2 * X[:, 0] + 0.5 * rng.normal(size=120)
    near, far = (BEDLRegressor(method="bedl", random_state=0, epochs=10).fit(X, y + offset) for offset in (0.0, 1.7e9))
    np.testing.assert_allclose(far.predict(X) - 1.7e9, near.predict(X), atol=1e-4)
    np.testing.assert_allclose(far.predict(X, return_std=True)[1], near.predict(X, return_std=True)[1], rtol=1e-3)
    widths = [np.subtract(*model.predict_interval(X)[::-1]) for model in (near, far)]
    np.testing.assert_allclose(widths[1], widths[0], rtol=1e-3)


def test_targets_that_are_all_the_same_lie_in_their_interval():
    X = np.random.default_rng(0).normal(size=(80, 3))
    lower, upper = BEDLRegressor(random_state=0).fit(X, np.full(80, 3.0)).predict_interval(X)
    assert ((lower <= 3.001) & (upper >= 2.999)).all()
    assert (upper - lower < 0.01).all()


def test_densities_of_targets_of_any_type():
    X = np.linspace(-1, 1, 60)[:, None]
    y = X[:, 0] ** 2
    prediction = BEDLRegressor(method="bedl", epochs=2, random_state=0).fit(X, y).predict_dist(X)
    truth = prediction.log_prob(torch.from_numpy(y))
    for given in (y, list(y), pd.Series(y), pd.DataFrame({"y": y}), torch.from_numpy(y)[:, None]):
        assert torch.equal(prediction.log_prob(given), truth)


def test_weights_that_look_like_shares_are_spoken_of():
    X = np.linspace(-1, 1, 60)[:, None]
    with pytest.warns(UserWarning, match=r"adds up to 1 for 60 rows.*divide relative weights by their mean"):
        BEDLRegressor(method="bedl", epochs=1).fit(X, X[:, 0], sample_weight=np.full(60, 1 / 60))


def test_parameters_that_are_none_are_named():
    with pytest.raises(TypeError, match=r"^BEDLRegressor has no parameter 'hidden'; did you mean 'hidden_layers'\?$"):
        BEDLRegressor(hidden=-3)
    with pytest.raises(TypeError, match=r"^BEDLRegressor: too many positional arguments$"):
        BEDLRegressor((5,), "relu", 3)


def test_partial_fit_after_fit_says_what_helps():
    x, y = table(80)[:2]
    model = BEDLRegressor(epochs=1, random_state=0, device="cpu").fit(x, y)
    with pytest.raises(ValueError, match=r"fit chose method 'distilled'.*on a fresh estimator") as error:
        model.partial_fit(x, y)
    assert "auto" not in str(error.value)
    clone(model).partial_fit(x, y).partial_fit(x, y)  # what it says does help
    with pytest.raises(ValueError, match=r"choose a method that learns by steps, such as method='bedl'"):
        BEDLRegressor(method="distilled", epochs=1).partial_fit(x, y)
    BEDLRegressor(method="bedl", epochs=1).partial_fit(x, y)


@pytest.mark.parametrize("form", [scipy.sparse.csr_matrix, scipy.sparse.coo_array])
def test_a_sparse_table_is_the_same_as_a_dense_one(form, monkeypatch):
    x, y = table(80)[:2]
    x = np.where(np.abs(x) > 0.5, x, 0.0)
    one, other = (BEDLRegressor(**QUICK).fit(part, y) for part in (x, form(x)))
    np.testing.assert_allclose(other.predict(form(x)), one.predict(x), rtol=1e-6)
    monkeypatch.setattr("bedl.estimators.inputs.MAX_DENSE_NUMEL", 100)
    with pytest.raises(ValueError, match=r"zeros written out.*TruncatedSVD"):
        other.predict(form(x))
