"""Networks of one's own, ensembles, data on disk, and the pieces beneath."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn

from bedl import GaussianLinear, Moments, bayesianize, sampled
from bedl.estimators import BEDLClassifier, BEDLRegressor, inputs
from bedl.estimators.inputs import column_moments, held_out
from bedl.methods import Ensemble
from bedl.nn.tabular import Standardize
from bedl.training import Callback
from tests.estimators.problems import QUICK, labels, table


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


@pytest.mark.parametrize(
    "net",
    [
        plain(),
        bayesianize(plain()),
        lambda n, k: nn.Sequential(nn.Linear(n, 8), nn.ReLU(), nn.Linear(8, k)),
        lambda n, k: nn.Sequential(nn.Linear(n, 8), nn.BatchNorm1d(8), nn.ReLU(), GaussianLinear(8, k)),
    ],
    ids=["plain", "gaussian", "callable", "batch norm"],
)
@pytest.mark.parametrize("ensemble", [1, 2])
def test_a_net_of_ones_own(net: Any, ensemble: int) -> None:
    X, y = table(90)
    before = [p.clone() for p in net.parameters()] if isinstance(net, nn.Module) else []
    model = BEDLRegressor(**{**QUICK, "epochs": 20}, net=net, ensemble=ensemble).fit(X, y)
    assert model.score(X, y) > 0.8
    if before:  # it was copied
        assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


def test_images() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 1, 6, 6)).astype(np.float32) * 50 + 100
    y = X[:, 0, :3].mean((1, 2)) > X[:, 0, 3:].mean((1, 2))

    def net(shape: tuple[int, ...], k: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, k))

    model = BEDLClassifier(**{**QUICK, "epochs": 20}, net=net).fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.predict_proba(X[:3]).shape == (3, 2)
    with pytest.raises(ValueError, match="was fitted on"):
        model.predict(X[:, :, :5])


def averaged(shape: tuple[int, ...], k: int) -> nn.Module:
    """Positions share the draws of two convolutions."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, k),
    )  # fmt: skip


@pytest.mark.parametrize("ensemble", [1, 2])
def test_a_net_that_averages_over_positions_is_corrected_as_by_fit(ensemble: int, tmp_path: Path) -> None:
    """Against draws of the weights; also when loaded, and taken back before the weights change again."""
    X = np.random.default_rng(0).random((96, 1, 6, 6)).astype(np.float32)
    y = X[:, 0, :3].mean((1, 2)) > X[:, 0, 3:].mean((1, 2))
    settings = {**QUICK, "epochs": 30, "batch_size": 16, "early_stopping": False, "ensemble": ensemble}
    model = BEDLClassifier(**settings, net=averaged).fit(X, y)
    assert all(is_corrected(member) for member in model._members())
    member, inputs = model._members()[0], torch.from_numpy(X[:32])
    with torch.no_grad():
        one_pass = member.outputs(inputs).variance.sqrt()
        with sampled(member):
            drawn = torch.stack([member.net(inputs) for _ in range(400)]).std(0)
    varies = drawn > 0.02 * drawn.mean()  # one channel is left alive, and behind it some images never vary
    assert float((one_pass / drawn)[varies].log().mean().exp()) == pytest.approx(1, abs=0.08)  # uncorrected 0.75
    assert float(one_pass.mean() / drawn.mean()) == pytest.approx(1, abs=0.1)  # uncorrected 0.71
    model.save(tmp_path / "model")
    again = BEDLClassifier.load(tmp_path / "model", net=averaged)
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    model.partial_fit(X, y)
    assert not any(is_corrected(member) for member in model._members())


def is_corrected(member: nn.Module) -> bool:
    return any(getattr(layer, "covariance_factor", None) is not None for layer in member.modules())


@pytest.mark.parametrize(
    "net, complaint",
    [
        (nn.Linear(3, 1), "two per target"),
        (nn.Linear(4, 2), "does not take inputs"),
        (lambda n, k: "net", "must return an nn.Module"),
    ],
)
def test_nets_that_do_not_fit_name_the_remedy(net: Any, complaint: str) -> None:
    with pytest.raises((ValueError, TypeError), match=complaint):
        BEDLRegressor(**QUICK, net=net).fit(*table(30))


@pytest.mark.parametrize("kind", [BEDLRegressor, BEDLClassifier])
def test_members_trained_as_one_are_those_trained_alone(kind: type) -> None:
    X, y = table(90) if kind is BEDLRegressor else labels(90)
    weight = np.arange(90) % 3 * 1.0
    settings = {**QUICK, "epochs": 4, "ensemble": 3}
    together = kind(**settings).fit(X, y, weight)
    alone = kind(**settings, callbacks=[Callback()]).fit(X, y, weight)  # someone who looks on wants one at a time
    assert isinstance(together.method_, Ensemble)
    for one, other in zip(together.method_.parameters(), alone.method_.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-7)
    assert len({row["member"] for row in together.history_}) == 3
    members = together.method_.members
    first, second = (next(member.parameters()) for member in members[:2])
    assert not torch.allclose(first, second)


# -- large data --------------------------------------------------------------------------------------------
def test_a_memory_mapped_table_is_never_in_memory(tmp_path: Path) -> None:
    shape = (100_000, 100)  # 40 MB
    X = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, shape)
    for start in range(0, len(X), 10_000):
        X[start : start + 10_000] = np.random.default_rng(start).normal(size=(10_000, 100))
    X.flush()
    y = np.array(X[:, 0], dtype=np.float64)
    X = np.load(tmp_path / "x.npy", mmap_mode="r")
    model = BEDLRegressor(**{**QUICK, "epochs": 1, "batch_size": 5000, "hidden_layers": (4,)})
    tracemalloc.start()
    try:
        model.fit(X, y)
        mean = model.predict(X)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert mean.shape == (100_000,)
    assert model.dtype_ == "float32"
    assert peak < 20e6


# -- the pieces ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chunk", [7, 10**6])
def test_moments_are_scikit_learns(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(inputs, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3)) * [1, 1e-3, 1e5] + [1e6, 0, -3]
    for weight in (None, rng.integers(0, 3, 50).astype(float)):
        scaler = StandardScaler().fit(X, sample_weight=weight)
        loc, scale = column_moments(X, weight)
        assert np.allclose(loc, scaler.mean_, rtol=1e-12)
        assert np.allclose(scale, scaler.scale_, rtol=1e-8)
    X[:, 1] = 0.1 + 0.2
    assert column_moments(X, None)[1][1] == 1.0
    images = rng.normal(size=(20, 2, 4, 4)) * 3 + 5
    assert np.allclose(column_moments(images, None)[0], images.mean((0, 2, 3)))
    assert np.allclose(column_moments(images, None)[1], images.std((0, 2, 3)))


def test_standardize_is_scikit_learns() -> None:
    X, _ = table(50)
    scaler = StandardScaler().fit(X)
    module = Standardize(torch.from_numpy(scaler.mean_), torch.from_numpy(scaler.scale_))
    z = module(Moments(torch.from_numpy(X), 0.5))
    assert np.allclose(z.loc, scaler.transform(X))
    assert np.allclose(z.variance, 0.5 / scaler.scale_**2)
    with pytest.raises(ValueError, match="positive"):
        Standardize(torch.zeros(2), torch.tensor([1.0, 0.0]))


def test_points_held_out() -> None:
    classes = np.repeat([0, 1, 2], [60, 39, 1])
    kept, out = held_out(100, 20, seed=0, classes=classes)
    assert sorted([*kept, *out]) == list(range(100))
    assert len(out) == 20
    assert 10 <= (classes[out] == 0).sum() <= 14
    assert 99 in kept  # the only one of its class
    assert not np.array_equal(out, held_out(100, 20, seed=1, classes=classes)[1])


@pytest.mark.parametrize("ensemble", [1, 2])
def test_mixed_precision_learns_about_the_same(ensemble: int) -> None:
    x, y = labels()
    settings = {**QUICK, "method": "bedl", "random_state": 0, "ensemble": ensemble}
    single = BEDLClassifier(**settings).fit(x, y)
    mixed = BEDLClassifier(**settings, precision="bf16-mixed").fit(x, y)
    ours, theirs = (model.predict_proba(x) for model in (mixed, single))
    assert 0 < np.abs(ours - theirs).max() < 0.1  # operands have eight bits
    assert {p.dtype for p in mixed.method_.parameters()} == {p.dtype for p in single.method_.parameters()}
    assert mixed.partial_fit(x, y).predict_proba(x).shape == ours.shape
