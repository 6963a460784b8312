"""The method evidence knows where it has seen nothing: a sine with a gap, noise that grows, 500 and 5,000 points."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bedl import BEDLClassifier, BEDLRegressor, Moments
from bedl.nn.tabular import PeriodicEmbedding, soft_clip


def sine(n: int, seed: int, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Nothing between −1 and 1; the noise's std is 0.05 + 0.1 (x + 3)."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.uniform(-3, -1, n // 2), rng.uniform(1, 3, n - n // 2)])
    y = np.sin(x) + noise * (0.05 + 0.1 * (x + 3)) * rng.normal(size=n)
    return x[:, None].astype(np.float32), y


def fitted(n: int, noise: float = 1.0) -> tuple[BEDLRegressor, float]:
    """The model, and the median of the epistemic std on its data."""
    X, y = sine(n, seed=0, noise=noise)
    model = BEDLRegressor(method="evidence", random_state=0, device="cpu").fit(X, y)
    return model, float(np.median(np.sqrt(model.uncertainty(X).epistemic)))


def std(model: BEDLRegressor, part: str, low: float, high: float) -> np.ndarray:
    grid = np.linspace(low, high, 60, dtype=np.float32)[:, None]
    return np.sqrt(model.uncertainty(grid)[part].to_numpy())


def check_gap_and_beyond(model: BEDLRegressor, on_data: float) -> None:
    assert std(model, "epistemic", -0.6, 0.6).mean() > 5 * on_data
    for low, high in ((4, 6), (-6, -4), (50, 60), (1e5, 1e6)):  # nor does it run off along a line
        far = std(model, "epistemic", low, high)
        assert far.min() > 3 * on_data
        assert far.max() < 10
    assert abs(model.predict(np.array([[1e6]], dtype=np.float32))[0]) < 10


def test_a_gap_and_beyond() -> None:
    check_gap_and_beyond(*fitted(500))


@pytest.mark.slow
def test_it_falls_with_data_and_not_with_noise() -> None:
    _, on_few = fitted(500)
    many, on_many = fitted(5000)
    check_gap_and_beyond(many, on_many)
    assert on_few > 1.7 * on_many
    for low, high in ((-3, -1), (1, 3)):
        true = (0.05 + 0.1 * (np.linspace(low, high, 60) + 3)).mean()
        assert std(many, "data", low, high).mean() == pytest.approx(true, rel=0.15)
    for n, before in ((500, on_few), (5000, on_many)):
        _, tripled = fitted(n, noise=3.0)
        assert 1 / 1.5 < tripled / before < 1.5


def test_classes_far_away_are_not_known() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(300) % 2
    X = (rng.normal(size=(300, 2)) * 0.5 + np.where(y, 1.0, -1.0)[:, None]).astype(np.float32)
    model = BEDLClassifier(method="evidence", random_state=0, device="cpu").fit(X, y)
    assert model.score(X, y) > 0.95
    on_data = model.uncertainty(X)
    far = model.uncertainty(np.array([[8, 0], [0, 8], [-9, 9], [30, -30]], dtype=np.float32))
    assert far.epistemic.min() > 5 * on_data.epistemic.median()
    assert np.allclose(far.total, far.data + far.distributional + far.model, atol=1e-5)


def test_columns_take_noisy_inputs() -> None:
    """One pass against draws of the input."""
    torch.manual_seed(0)
    columns = PeriodicEmbedding(2, size=3)
    x = Moments(torch.tensor([[0.5, -4.0]]), torch.tensor([[0.3, 1.0]]))
    found = columns(x)
    z = soft_clip(x.loc + x.variance.sqrt() * torch.randn(200_000, 2))
    assert torch.allclose(found.loc[0, :2], z.mean(0), atol=0.01)
    assert torch.allclose(found.variance[0, :2], z.var(0), rtol=0.02)
    assert found.shape == (1, 8)
