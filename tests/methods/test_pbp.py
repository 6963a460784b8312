"""Probabilistic backpropagation against the engine, exact posteriors and sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bedl import BEDLClassifier, BEDLRegressor
from bedl.methods.pbp import PBP, _backward, _forward, _Prior


def network(*sizes: int) -> PBP:
    torch.manual_seed(0)
    return PBP(sizes[0], sizes[1:-1], sizes[-1]).double()


def test_gradients_are_those_of_the_engines_log_z() -> None:
    method, x, y = network(3, 5, 4, 2), torch.randn(3).double(), torch.randn(2).double()
    for name in dict(method.named_buffers()):
        getattr(method, name).requires_grad_()
    f = method.outputs(x[None])
    spread = f.variance + 0.4
    log_z = -0.5 * (spread.log() + (y - f.loc).square() / spread).sum()
    expected = torch.autograd.grad(log_z, [part for layer in method.layers for part in layer])
    with torch.no_grad():
        trace = _forward(method.layers, x)
        mean, variance = trace[-1][2:]
        spread = variance + 0.4
        slopes = (y - mean) / spread, 0.5 * ((y - mean).square() / spread - 1) / spread
        found = [part for layer in _backward(method.layers, trace, *slopes) for part in layer]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_moments_are_those_of_sampled_weights() -> None:
    """Of one hidden layer: exact up to the normal taken for its activations, whose sum enters through moments alone."""
    method, x, n = network(3, 50, 1), torch.randn(3).double(), 40_000
    (m0, v0), (m1, v1) = method.layers
    first = torch.einsum(
        "noi,i->no", m0 + v0.sqrt() * torch.randn(n, *m0.shape).double(), torch.cat([x, torch.ones(1)])
    )
    h = torch.cat([torch.relu(first / 2), torch.ones(n, 1)], 1)
    z = torch.einsum("noi,ni->no", m1 + v1.sqrt() * torch.randn(n, *m1.shape).double(), h)[:, 0] / math.sqrt(51)
    f = method.outputs(x[None])
    assert f.loc.item() == pytest.approx(z.mean().item(), abs=4 * z.std().item() / math.sqrt(n))
    assert f.variance.item() == pytest.approx(z.var().item(), rel=5 * math.sqrt(2 / n))


def test_a_linear_layer_gets_the_exact_posteriors_moments() -> None:
    method, x, y = network(3, 1), torch.randn(3).double(), torch.tensor([0.7]).double()
    (m, v), noise = method.layers[0], 6.0 / 5.0
    a = torch.cat([x, torch.ones(1)])[None] / 2
    covariance = torch.diag(v[0])
    gain = covariance @ a.T / (a @ covariance @ a.T + noise)
    mean = m[0] + (gain @ (y - a @ m[0])[None])[:, 0]
    expected = mean, (covariance - gain @ a @ covariance).diagonal()
    with torch.no_grad():
        method._take_in(x, y)
    torch.testing.assert_close(method.layers[0][0][0], expected[0])
    torch.testing.assert_close(method.layers[0][1][0], expected[1])


def test_the_noise_gets_the_moments_of_its_posterior() -> None:
    """Without any weights' variance, Z is Student's t, which is nearly normal for a large shape."""
    method = network(1, 1)
    method.variance_0.fill_(1e-12), method.mean_0.zero_()
    method.noise_shape.fill_(60.0), method.noise_rate.fill_(60.0)
    with torch.no_grad():
        method._take_in(torch.zeros(1).double(), torch.tensor([1.5]).double())
    exact = 60.5 / (60 + 1.5**2 / 2)
    found = (method.noise_shape / method.noise_rate).item()
    assert found == pytest.approx(exact, rel=1e-3)
    assert abs(found - 1) > 0.005  # and it has moved


def test_a_refined_factor_has_the_moments_of_the_tilted_distribution() -> None:
    """Cavity times N(w; 0, 1/lambda) with lambda fixed: a gamma of great shape."""
    prior = _Prior([(torch.zeros(1, 1), torch.ones(1, 1))])
    prior.shape, prior.rate, prior.precision = 1e6, 2e6, [0.25]
    m, v = prior._refined(0, 0.8, 0.5)
    cavity = stats.norm(0.8 / 0.5 / 1.75, math.sqrt(1 / 1.75))
    tilted = [integrate.quad(lambda w, k=k: w**k * cavity.pdf(w) * stats.norm.pdf(w, 0, math.sqrt(2)), -9, 9)[0]
              for k in range(3)]  # fmt: skip
    mean = tilted[1] / tilted[0]
    assert m == pytest.approx(mean, rel=1e-4)
    assert v == pytest.approx(tilted[2] / tilted[0] - mean**2, rel=1e-4)


def test_it_learns_several_targets_and_survives_a_file(tmp_path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = np.stack([X[:, 0] + X[:, 1], X[:, 0] - X[:, 1]], 1) + 0.1 * rng.normal(size=(80, 2))
    settings = {"method": "pbp", "method_options": {"passes": 8}, "random_state": 3, "hidden_layers": (20,)}
    model = BEDLRegressor(**settings).fit(X, y)
    assert model.score(X, y) > 0.8
    again = BEDLRegressor.load(model.save(tmp_path / "m.safetensors"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(BEDLRegressor(**settings).fit(X, y).predict(X), model.predict(X))
    with pytest.raises(ValueError, match="sample_weight"):
        BEDLRegressor(**settings).fit(X, y, sample_weight=np.ones(80))


def test_classes_and_own_networks_are_refused() -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(ValueError, match="is for regression, not for classification"):
        BEDLClassifier(method="pbp").fit(X, X[:, 0] > 0)
    with pytest.raises(ValueError, match="ReLU only"):
        BEDLRegressor(method="pbp", activation="tanh").fit(X, X[:, 0])
