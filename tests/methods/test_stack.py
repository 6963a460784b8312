"""Fold ensembles: what was held out decides, and everything that estimators promise holds for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.base import clone

from bedl import BEDLClassifier, BEDLRegressor
from bedl.estimators import load
from bedl.methods import Problem, Stack, registry
from bedl.methods.stack.linear import LinearTargets
from bedl.methods.stack.regression import TargetStack
from tests.methods.test_evidence import check_gap_and_beyond, sine, std

QUICK: dict[str, Any] = {"method": "stack", "hidden_layers": (16,), "epochs": 40, "random_state": 0, "device": "cpu"}


def linear(n: int, d: int = 3, seed: int = 0, noise: float = 1.0, signal: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    return X, 500 + signal * X[:, 0] - signal * X[:, 1] + noise * rng.normal(size=n)


@pytest.fixture(scope="module")
def model() -> BEDLRegressor:
    return BEDLRegressor(**QUICK).fit(*linear(100))


def test_the_linear_member_wins_on_a_linear_table(model: BEDLRegressor) -> None:
    assert isinstance(model.method_, Stack)
    assert sum(model.method_.shares) == pytest.approx(1, abs=1e-5)
    assert model.method_.shares[-1] > 0.5
    X, y = linear(2000, seed=1)
    assert np.sqrt(np.mean((model.predict(X) - y) ** 2)) < 1.1


def test_networks_win_where_nothing_is_linear() -> None:
    X = np.linspace(-2, 2, 60, dtype=np.float32)[:, None]
    y = np.cos(3 * X[:, 0]) + 0.05 * np.random.default_rng(0).normal(size=60)
    model = BEDLRegressor(**{**QUICK, "epochs": 100}).fit(X, y)
    assert model.method_.shares[-1] < 0.1
    assert np.sqrt(np.mean((model.predict(X) - np.cos(3 * X[:, 0])) ** 2)) < 0.15


@pytest.mark.parametrize("signal", [0.0, 2.0])
def test_intervals_cover_on_small_tables(signal: float) -> None:
    """Five tables of 40 rows: the share of 90 % intervals that hold the truth, within four standard errors."""
    shares = []
    for seed in range(5):
        X, y = linear(40, seed=seed, signal=signal)
        fresh, truth = linear(2000, seed=100 + seed, signal=signal)
        lower, upper = BEDLRegressor(**{**QUICK, "epochs": 8}).fit(X, y).predict_interval(fresh)
        shares.append(np.mean((lower <= truth) & (truth <= upper)))
    # a quantile of 40 scores varies by about sqrt(0.9 · 0.1 / 40) from table to table
    assert np.mean(shares) == pytest.approx(0.9, abs=4 * np.sqrt(0.09 / 40 / 5))


def test_parts_add_up_and_the_density_is_the_mixture(model: BEDLRegressor) -> None:
    p: Any = model.predict_dist(3 * linear(4, seed=2)[0])
    torch.testing.assert_close(p.data + p.distributional + p.model, p.variance)
    grid = torch.linspace(440, 560, 6001, dtype=torch.float64)[:, None, None]
    step = 0.02
    density = p.log_prob(grid.expand(-1, 4, 1)).exp()
    mean = (density * grid[..., 0]).sum(0) * step
    torch.testing.assert_close(density.sum(0) * step, torch.ones(4, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(mean, p.mean[:, 0], atol=1e-3, rtol=0)
    square = (density * (grid[..., 0] - mean).square()).sum(0) * step
    torch.testing.assert_close(square, p.variance[:, 0], rtol=1e-3, atol=0)
    entropy = -(density * (density + 1e-300).log()).sum(0) * step
    torch.testing.assert_close(p.entropy, entropy, atol=0.02, rtol=0)


def test_the_weights_are_those_of_rows_held_out(model: BEDLRegressor) -> None:
    """The score of a row: it is about a member that has not seen it, so residuals are not those of a fit."""
    scores = model.method_.intervals.scores[:, 0].double().numpy()
    assert len(scores) == 100
    assert (np.diff(scores) >= 0).all()
    assert scipy.stats.kstest(scores, scipy.stats.halfnorm.cdf).pvalue > 1e-3
    assert model.method_.interval_factor(0.9).item() == pytest.approx(scores[90])  # ⌈0.9 · 101⌉ = 91
    _, upper = model.predict_interval(linear(5)[0], 0.9)
    mean, std = model.predict(linear(5)[0], return_std=True)
    p: Any = model.predict_dist(linear(5)[0])
    usual, unusual, within, middles = [], [], [], []  # a fold's members alone, as a mixture of their own
    for fold in range(5):
        own = slice(fold, None, 5)
        weights = 5 * p.log_weights[:, 0, own].exp().numpy()
        data, lack, own_model = (
            (weights * part[:, 0, own].numpy()).sum(1)
            for part in (p.members_data, p.members_distributional, p.members_model)
        )
        means = p.means[:, 0, own].numpy()
        middles.append((weights * means).sum(1))
        within.append((weights * (means - middles[-1][:, None]) ** 2).sum(1))
        usual.append(data + own_model)
        unusual.append(lack)
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
    usual, unusual, within, across = *(np.mean(x, 0) for x in (usual, unusual, within)), np.var(middles, 0)
    intervals = model.method_.intervals
    apart = np.maximum(within + across - intervals.usual_apart.item() * usual, 0)
    variance = usual + np.maximum(within - apart, 0) + intervals.widening.item() * (unusual + apart)
    np.testing.assert_allclose(upper - mean, scores[90] * np.sqrt(variance), rtol=1e-5)
    assert (usual + unusual + within <= std**2 + 1e-9).all()
    plain = model.predict_interval(linear(5)[0], 0.9, calibrated=False)
    np.testing.assert_allclose(plain[0], model.predict_dist(linear(5)[0]).interval(0.9)[0][:, 0])


def test_one_component_can_be_all_that_is_kept(tmp_path: Path) -> None:
    """Its tensors have to be such as files take."""
    model = BEDLRegressor(**{**QUICK, "epochs": 1}).fit(*linear(60, noise=1e-3))
    stack = model.method_
    y = torch.zeros(60, 1)
    known, doubted = torch.full((60, 1, 1), 1e-4), torch.full((60, 1, 2), 1e6)
    stack._weigh(
        torch.zeros(60, 1, 3).double(),
        torch.cat([doubted, known], -1).double(),
        None,
        y.double(),
        torch.ones(60).double(),
    )
    assert set(stack.groups.tolist()) == {2}
    assert all(part.stride() == (1,) for part in (stack.groups, stack.scales, stack.reaches, stack.weights))
    again = load(model.save(tmp_path / "model.safetensors"))
    torch.testing.assert_close(again.method_.weights, stack.weights.to(again.method_.weights))


def test_members_have_not_seen_their_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def watched_train(estimator: Any, members: Any, parts: Any, *rest: Any) -> list[dict]:
        seen["rows"] = [set(part.index) for part, held in parts if held is None]
        return []

    def watched_finish(self: Stack, x: Any, y: Any, fold: torch.Tensor, weight: Any) -> None:
        seen["folds"] = [set(np.flatnonzero(fold.numpy() == k)) for k in range(self.folds)]

    monkeypatch.setattr("bedl.estimators.base.train", watched_train)
    monkeypatch.setattr(TargetStack, "finish", watched_finish)
    BEDLRegressor(**QUICK).fit(*linear(33))
    assert sorted(map(len, seen["folds"])) == [6, 6, 7, 7, 7]
    assert set().union(*seen["folds"]) == set(range(33))
    assert len(seen["rows"]) == 10
    for member, rows in enumerate(seen["rows"]):
        assert rows == set(range(33)) - seen["folds"][member % 5]


def test_a_row_says_nothing_to_the_linear_model_that_holds_it_out() -> None:
    member = LinearTargets(5, 3, 1).double()
    X, y = (torch.tensor(part) for part in linear(40))
    fold, other = torch.arange(40) % 5, y.clone()
    other[3] += 100
    coefficients = []
    for values in (y, other):
        member.fit(X.double(), values[:, None], fold, None)
        coefficients.append(member.coefficients.clone())
    changed = (coefficients[0] - coefficients[1]).abs().amax((1, 2)) > 0
    assert changed.tolist() == [True, True, True, False, True]


def test_the_line_ends_somewhere(model: BEDLRegressor) -> None:
    far = np.array([[1e3, 0, 0], [1e6, 0, 0], [1e30, 0, 0]], dtype=np.float32)
    mean, std = model.predict(far, return_std=True)
    assert (abs(mean - 500) < 40).all()
    assert (std > 1.2).all()
    assert (std < 40).all()
    outside = linear(1, noise=0.0)[0] * [[0, 0, 1]] + [[4.0, -4.0, 0.0]]  # a little: it still holds
    assert model.predict(outside)[0] == pytest.approx(516, abs=2.5)  # networks, which have a say, bend earlier


def test_files_clones_and_seeds(model: BEDLRegressor, tmp_path: Path) -> None:
    X, _ = linear(20, seed=3)
    again = load(model.save(tmp_path / "model.safetensors"))
    assert again.built_ == ("stack", {"folds": 5, "groups": 2})
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.predict_interval(X)[0], model.predict_interval(X)[0])
    same = clone(model).fit(*linear(100))
    np.testing.assert_array_equal(same.predict(X), model.predict(X))
    other = clone(model).set_params(random_state=1, epochs=1).fit(*linear(100))
    assert not np.array_equal(other.predict(X), model.predict(X))


@pytest.mark.slow
def test_onnx_says_the_same(tmp_path: Path) -> None:
    deploy = pytest.importorskip("bedl.deploy")
    model = BEDLRegressor(**{**QUICK, "epochs": 5}, method_options={"folds": 2, "groups": 1}).fit(*linear(40))
    deploy.export(model, tmp_path / "model.onnx")
    X, _ = linear(50, seed=4)
    outputs = deploy.OnnxModel(tmp_path / "model.onnx").predict(X)
    p: Any = model.predict_dist(X)
    for name in ("mean", "std", "data", "distributional", "model"):
        np.testing.assert_allclose(outputs[name], getattr(p, name), rtol=2e-3, err_msg=name)


def test_weights_of_rows_count() -> None:
    X, y = linear(60)
    weight = np.where(np.arange(60) < 30, 1.0, 0.0)
    y[30:] += 1000
    model = BEDLRegressor(**{**QUICK, "epochs": 5}).fit(X, y, sample_weight=weight)
    assert model.method_.linear.size.sum() == 4 * 30
    assert abs(model.predict(X[:30]) - y[:30]).mean() < 2


def test_several_targets_and_noisy_inputs() -> None:
    X, y = linear(50)
    Y = np.stack([y, -2 * y], 1)
    model = BEDLRegressor(**{**QUICK, "epochs": 5}).fit(X, Y, X_var=0.01)
    lower, upper = model.predict_interval(X)
    assert lower.shape == (50, 2)
    assert (lower < upper).all()
    assert np.corrcoef(model.predict(X)[:, 1], Y[:, 1])[0, 1] > 0.9
    certain, noisy = (model.predict_dist(X, X_var=v) for v in (0.0, 1.0))
    assert (noisy.epistemic > certain.epistemic).all()


@pytest.mark.parametrize("n", [2, 3, 7])
def test_few_rows(n: int) -> None:
    X, y = linear(n)
    with pytest.warns(UserWarning, match=f"{n} rows are too few to calibrate"):
        model = BEDLRegressor(**{**QUICK, "epochs": 2}).fit(X, y)
    assert model.method_.folds == min(5, n)
    lower, upper = model.predict_interval(X)
    assert np.isfinite(lower).all()
    assert (lower < upper).all()


def test_refusals() -> None:
    X, y = linear(20)
    short = {**QUICK, "epochs": 1}
    with pytest.raises(ValueError, match="at least 2"):
        BEDLRegressor(**short).fit(X[:1], y[:1])
    with pytest.raises(ValueError, match="leave ensemble at 1"):
        BEDLRegressor(**short, ensemble=2).fit(X, y)
    with pytest.raises(ValueError, match="all points at once"):
        BEDLRegressor(**short).partial_fit(X, y)
    with pytest.raises(ValueError, match="warm_start"):
        BEDLRegressor(**short, warm_start=True).fit(X, y).fit(X, y)
    with pytest.raises(ValueError, match="early_stopping"):
        BEDLRegressor(**short, early_stopping=True).fit(*linear(100))
    labels = np.stack([y > 500, y > 501], 1).astype(int)
    with pytest.raises(ValueError, match="for regression and classification"):
        BEDLClassifier(**short).fit(X, labels)


def test_size_decides() -> None:
    problem = Problem("regression", 1, (3,))
    assert registry.resolve("stack", problem, n=100)[1] == {"folds": 5, "groups": 2}
    assert registry.resolve("stack", problem, n=50_000)[1] == {"folds": 5, "groups": 1}
    assert registry.resolve("stack", problem, n=10**6)[1] == {"folds": 10, "held": 1, "groups": 1}
    assert registry.resolve("stack", problem, {"folds": 3}, n=100)[1] == {"folds": 3, "groups": 2}


@pytest.mark.slow
def test_it_knows_where_it_has_seen_nothing() -> None:
    """A sine with a gap, as in `test_evidence`, by the whole ensemble."""
    fitted, medians, errors = {}, {}, {}
    for n, noise in ((500, 1.0), (500, 3.0), (5000, 1.0)):
        X, y = sine(n, seed=0, noise=noise)
        fitted[n, noise] = BEDLRegressor(method="stack", random_state=0, device="cpu").fit(X, y)
        medians[n, noise] = float(np.median(np.sqrt(fitted[n, noise].uncertainty(X).epistemic)))
        errors[n, noise] = float(np.sqrt(np.mean((fitted[n, noise].predict(X) - np.sin(X[:, 0])) ** 2)))
    for n in (500, 5000):
        check_gap_and_beyond(fitted[n, 1.0], medians[n, 1.0])
    assert medians[500, 1.0] > 1.7 * medians[5000, 1.0]
    for case, error in errors.items():  # which grows with the noise, too: the same rows tell less
        assert 1 / 2.5 < medians[case] / error < 2.5
    for low, high in ((-3, -1), (1, 3)):
        true = (0.05 + 0.1 * (np.linspace(low, high, 60) + 3)).mean()
        assert std(fitted[5000, 1.0], "data", low, high).mean() == pytest.approx(true, rel=0.15)
