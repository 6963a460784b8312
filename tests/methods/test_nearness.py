"""Distances to the data: against brute force and differences, and what they are for: gaps and rows that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.spatial
import torch
from torch import nn

from bedl import BEDLClassifier, BEDLRegressor
from bedl.estimators import load
from bedl.methods.stack.distances import Nearness
from bedl.nn.tabular import Standardize

QUICK: dict[str, Any] = {"hidden_layers": (16,), "epochs": 60, "random_state": 0, "device": "cpu"}


def bounded(z: np.ndarray) -> np.ndarray:
    return z / np.sqrt(1 + (z / 3) ** 2)


def table(n: int = 60) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(0).normal([5.0, 0.0, -1.0], [2.0, 1.0, 0.1], (n, 3)))


def curve(x: torch.Tensor) -> list[torch.Tensor]:
    """Two networks, of two outputs each: one steep along the first column, one flat; nothing depends on the last."""
    steep = torch.stack([torch.sin(x[:, 0]), x[:, 1] ** 2], 1)
    return [steep, 0.1 * steep]


def fitted(x: torch.Tensor, weight: torch.Tensor | None = None) -> tuple[Nearness, torch.Tensor, torch.Tensor]:
    fold = torch.arange(len(x)) % 3
    near = Nearness(3, Standardize(x.mean(0), x.std(0))).double()
    return near, near.fit(x, fold, torch.arange(len(x)), weight, curve), fold


def test_slopes_are_root_mean_squares_of_differences() -> None:
    x = table()
    near = fitted(x)[0]
    scale, step, squares = x.std(0), 1e-6, []
    for column in range(3):
        shift = torch.zeros(3, dtype=torch.float64)
        shift[column] = step * scale[column]
        slopes = [(up - down) / (2 * step) for up, down in zip(curve(x + shift), curve(x - shift), strict=True)]
        squares.append(torch.stack(slopes).square().mean())
    torch.testing.assert_close(near.slopes, torch.stack(squares).sqrt(), atol=1e-8, rtol=1e-6)
    assert near.slopes[2] == 0


def test_distances_are_those_to_the_nearest_row_of_another_fold() -> None:
    x = table()
    near, away, fold = fitted(x)
    z = bounded(((x - x.mean(0)) / x.std(0)).numpy()) * near.slopes.numpy()
    squares = scipy.spatial.distance.cdist(z, z, "sqeuclidean")
    squares[(fold[:, None] == fold).numpy()] = np.inf
    np.testing.assert_allclose(away, squares.min(1), atol=1e-12)
    assert near.usual.item() == pytest.approx(np.quantile(squares.min(1), 0.8))
    np.testing.assert_allclose(near(x), 0, atol=1e-12)  # all rows are near themselves
    far = near(torch.tensor([[1e9, 0.0, 0.0], [5.0, 0.0, 1e9]], dtype=torch.float64))
    assert far[0] > 1 > far[1]  # the last column says nothing


def test_rows_of_no_weight_are_not_kept_and_of_many_some() -> None:
    x, weight = table(), torch.ones(60)
    weight[10:] = 0
    near = fitted(x, weight)[0]
    assert len(near.landmarks) == 10
    assert near(x[:10]).max() < 1e-12
    assert near(x[10:]).min() > 0


def test_of_many_rows_some_are_kept() -> None:
    near = Nearness(3, most=7).double()
    away = near.fit(table(), torch.arange(60) % 3, torch.arange(60), None, curve)
    assert len(near.landmarks) == 7
    assert bool(away.isfinite().all())
    again = Nearness(3).double()
    again.load_state_dict(near.state_dict())
    torch.testing.assert_close(again(table(20)), near(table(20)))


def test_a_stack_that_keeps_no_rows(tmp_path: Path) -> None:
    X, _, y = boxes(100)
    model = BEDLRegressor(**{**QUICK, "epochs": 5}, method_options={"landmarks": 0}, method="stack").fit(X, y[:300])
    assert model.method_.nearness is None
    again = load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_allclose(again.predict(X), model.predict(X), rtol=1e-6)
    with pytest.raises(ValueError, match="landmarks must be at least 0"):
        BEDLRegressor(method="stack", method_options={"landmarks": -1}).fit(X, y[:300])


def test_before_it_is_fitted_everything_is_near() -> None:
    assert Nearness(2)(torch.ones(4, 2)).tolist() == [0.0] * 4
    assert isinstance(Nearness(2).front, nn.Identity)


# -- what it is for ----------------------------------------------------------------------------------
def boxes(n: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three lengths that go together, a weight made of them, and the price."""
    rng = np.random.default_rng(0)
    size = rng.uniform(1, 3, n)
    lengths = size[:, None] * rng.uniform(0.95, 1.05, (n, 3))
    X = np.column_stack([lengths, lengths.prod(1) * 3, rng.integers(0, 4, n)]).astype(np.float32)
    return X[:300], X[300:], X[:, 3] + X[:, 4] + 0.3 * rng.normal(size=n)


def test_a_box_without_lengths_is_noticed() -> None:
    X, fresh, y = boxes()
    model = BEDLRegressor(**QUICK).fit(X, y[:300])
    impossible = fresh[:20] * [0, 0, 0, 1, 1]
    usual = model.uncertainty(fresh).epistemic
    assert model.uncertainty(impossible.astype(np.float32)).epistemic.min() > np.quantile(usual, 0.98)


def test_a_hole_in_the_plane_is_less_known_than_the_data() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (700, 2)).astype(np.float32)
    hole = np.abs(X).max(1) < 1
    labels = (np.sin(2 * X[:, 0]) + X[:, 1] > 0).astype(int)
    for model, y in ((BEDLRegressor(**QUICK), np.sin(2 * X[:, 0]) + X[:, 1]), (BEDLClassifier(**QUICK), labels)):
        unknown = model.fit(X[~hole], y[~hole]).uncertainty(X).epistemic.to_numpy()
        middle = np.abs(X).max(1) < 0.5
        assert np.median(unknown[middle]) > 2 * np.median(unknown[~hole])
