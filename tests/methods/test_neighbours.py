"""Corrections by rows near by: against their formula, by what they may depend on, and by what they gain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bedl import BEDLRegressor
from bedl.estimators import load
from bedl.methods.stack.distances import Neighbours

ROWS, GROUPS, TARGETS, FOLDS = 400, 2, 2, 4


def places(n: int = ROWS) -> torch.Tensor:
    return torch.rand(n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def distances(z: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return (z - others.T).square()


def wave(z: torch.Tensor) -> torch.Tensor:
    """Residuals that rows near by share, and a second target that is noise. shape: (rows, groups, T, folds)"""
    noise = torch.randn(len(z), GROUPS, FOLDS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    signal = torch.sin(20 * z)[:, :, None].expand(-1, GROUPS, FOLDS)
    return torch.stack([signal + 0.1 * noise, 0.1 * noise.flip(0)], 2)


def fitted(z: torch.Tensor, residuals: torch.Tensor, weight: torch.Tensor | None = None) -> Neighbours:
    fold = torch.arange(len(z)) % FOLDS
    near = Neighbours(GROUPS, TARGETS).double()
    everyone = torch.arange(len(z))
    near.fit(distances(z, z), everyone, residuals, fold, torch.ones(len(z)) if weight is None else weight)
    return near


def test_it_is_a_mean_under_a_kernel_of_rows_outside_the_fold() -> None:
    z = places()
    residuals = wave(z)
    near, new = fitted(z, residuals), torch.tensor([[0.3], [0.7], [9.0]], dtype=torch.float64)
    found = near(distances(new, z)).numpy()
    kernel = np.exp(-((new.numpy() - z.numpy().T) ** 2) / (2 * near.width.item() ** 2))
    for fold in range(FOLDS):
        rows = np.arange(ROWS) % FOLDS != fold
        sums = np.einsum("nr,rgt->gnt", kernel[:, rows], residuals[rows, ..., fold].numpy())
        wanted = sums / (near.shrink.item() + kernel[:, rows].sum(1))[:, None]
        np.testing.assert_allclose(found[:, fold], wanted, atol=1e-12)
    assert np.abs(found[:, :, 2]).max() < 1e-12  # far from all rows
    truth = np.sin(20 * new[:2, 0].numpy())
    np.testing.assert_allclose(found[:, :, :2, 0], np.broadcast_to(truth, (GROUPS, FOLDS, 2)), atol=0.15)


def test_a_fold_is_corrected_without_its_own_rows() -> None:
    z = places()
    residuals = wave(z)
    before = fitted(z, residuals)(distances(z, z))
    changed = residuals.clone()
    changed[::FOLDS, ..., 0] += 5.0  # rows of fold 0, as its own members have them: never learned from
    after = Neighbours(GROUPS, TARGETS).double()
    after.load_state_dict(fitted(z, residuals).state_dict())
    after.fit(distances(z, z)[1::2], torch.arange(ROWS)[1::2], changed, torch.arange(ROWS) % FOLDS, torch.ones(ROWS))
    assert after.any
    after.width.fill_(fitted(z, residuals).width.item())
    after.shrink.fill_(fitted(z, residuals).shrink.item())
    torch.testing.assert_close(after(distances(z, z)), before)


def test_a_row_of_weight_two_counts_twice() -> None:
    z = places()
    residuals, weight = wave(z), torch.ones(ROWS)
    weight[:100] = 2.0
    weighted = fitted(z, residuals, weight)
    fold = torch.cat([torch.arange(ROWS), torch.arange(100)]) % FOLDS
    twice = Neighbours(GROUPS, TARGETS).double()
    both = torch.cat([z, z[:100]])
    twice.fit(distances(both, both), torch.arange(500), torch.cat([residuals, residuals[:100]]), fold, torch.ones(500))
    for near in (weighted, twice):
        near.width.fill_(0.04)
    weighted.shrink.fill_(1.0)
    twice.shrink.fill_(500 / 400)  # weights are taken in units of their mean
    torch.testing.assert_close(weighted(distances(z, z)), twice(distances(z, both)))


def test_without_a_gain_nothing_is_kept() -> None:
    z = places()
    noise = torch.randn(ROWS, GROUPS, TARGETS, FOLDS, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    near = fitted(z, noise)
    assert not near.any
    again = fitted(z, wave(z))
    assert again.any
    again.fit(distances(z, z), torch.arange(ROWS), noise, torch.arange(ROWS) % FOLDS, torch.ones(ROWS))
    assert not again.any, "what an earlier fit kept is gone"


# -- in a stack ----------------------------------------------------------------------------------------
QUICK: dict[str, Any] = {"method": "stack", "hidden_layers": (8,), "epochs": 20, "random_state": 0, "device": "cpu"}


def ripples(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Faster than so small a network can follow, but not than rows are dense."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 1))
    return X, np.sin(40 * X[:, 0]) + 2 * X[:, 0] + 0.05 * rng.normal(size=n)


@pytest.fixture(scope="module")
def model() -> BEDLRegressor:
    return BEDLRegressor(**QUICK).fit(*ripples(1500, 0))


def test_rows_near_by_say_what_a_network_cannot(model: BEDLRegressor) -> None:
    X, y = ripples(500, 1)
    without = BEDLRegressor(**QUICK, method_options={"landmarks": 0}).fit(*ripples(1500, 0))
    assert "with nearest-neighbour correction" in model.chosen_
    assert "correction" not in without.chosen_
    errors = [float(np.sqrt(np.mean((m.predict(X) - y) ** 2))) for m in (model, without)]
    assert errors[0] < 0.5 * errors[1]
    low, high = model.predict_interval(X, 0.9)
    assert 0.85 < np.mean((low <= y) & (y <= high)) < 0.95
    gain = [m.predict_dist(X).log_prob(torch.as_tensor(y)).mean() for m in (model, without)]
    assert gain[0] > gain[1] + 0.8


def test_a_saved_model_looks_up_the_same_rows(model: BEDLRegressor, tmp_path: Path) -> None:
    X, _ = ripples(300, 2)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    np.testing.assert_allclose(again.predict(X), model.predict(X), rtol=1e-6)
    np.testing.assert_allclose(again.predict(X[:3]), model.predict(X)[:3], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_onnx_looks_up_the_same_rows(model: BEDLRegressor, tmp_path: Path) -> None:
    deploy = pytest.importorskip("bedl.deploy")
    deploy.export(model, tmp_path / "model.onnx")
    for rows in (1, 300):
        X, _ = ripples(rows, 3)
        outputs, said = deploy.OnnxModel(tmp_path / "model.onnx").predict(X.astype(np.float32)), model.predict_dist(X)
        for name in ("mean", "std", "data", "distributional", "model"):
            np.testing.assert_allclose(outputs[name], getattr(said, name), rtol=2e-3, atol=2e-3, err_msg=name)


def test_the_parts_add_up_and_far_away_nothing_is_corrected(model: BEDLRegressor) -> None:
    X = np.array([[0.1], [50.0]])
    said = model.predict_dist(X)
    torch.testing.assert_close(said.data + said.distributional + said.model, said.total)
    assert said.epistemic[1] > 5 * said.epistemic[0]


def test_near_the_data_ignorance_has_a_bound():
    """Nothing is seen between −1 and 1; what is not known there ends with what a steep function may do on the way."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-3, -1, 200), rng.uniform(1, 3, 200)])
    y = np.sin(2 * x) + 0.1 * rng.normal(size=400)
    model = BEDLRegressor(random_state=0, epochs=60).fit(x[:, None], y)
    at = torch.linspace(-6, 6, 301)[:, None].to(getattr(torch, model.dtype_))
    with torch.no_grad():
        prediction, distance = model.method_.predict(at), model.method_.nearness(at)
    unusual = prediction.members_distributional[:, 0].amax(-1)
    assert bool((unusual <= 5.0 * distance + 1e-6).all())
    assert float(unusual.max()) > 0.3  # far from all rows it is as much as it was
