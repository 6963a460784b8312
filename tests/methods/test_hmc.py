"""Hamiltonian Monte Carlo against posteriors in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from bedl import BEDLClassifier, BEDLRegressor
from bedl.heads import MeanVariance
from bedl.methods.hmc import HMC, _Sampler, potential_scale_reduction


def test_a_correlated_normal() -> None:
    covariance = torch.tensor([[1.0, 1.8], [1.8, 4.0]]).double()
    precision, mean = covariance.inverse(), torch.tensor([3.0, -1.0]).double()
    density = lambda w: -0.5 * (((w - mean) @ precision) * (w - mean)).sum(1)
    sampler = _Sampler(density, steps=10, seed=0)
    w = sampler.warm_up(torch.zeros(20, 2).double(), 100)
    draws = []
    for _ in range(150):
        w = sampler.trajectory(w)
        draws.append(w)
    draws = torch.stack(draws)
    assert potential_scale_reduction(draws[..., 0]) < 1.05
    flat = draws.flatten(0, 1)  # 3,000 draws, nearly independent: a standard error of about 0.03 std
    assert torch.allclose(flat.mean(0), mean, atol=0.25)
    assert torch.allclose(torch.cov(flat.T), covariance, rtol=0.15)


def test_a_linear_network_has_the_posterior_of_linear_regression() -> None:
    torch.manual_seed(0)
    x = torch.randn(15, 2).double()
    y = x @ torch.tensor([[1.0], [-0.5]]).double() + 0.5 * torch.randn(15, 1).double()
    method = HMC(
        nn.Linear(2, 1), MeanVariance(1, "fixed", precision=4.0), 600, 10, 100, 3, 10, prior_scale=2.0
    ).double()
    method.fit(x, y)
    features = torch.cat([x, torch.ones(15, 1)], 1)
    prior = torch.tensor([2.0 / np.sqrt(2), 2.0 / np.sqrt(2), 1.0]).double()
    covariance = (torch.diag(prior**-2) + 4 * features.T @ features).inverse()
    mean = covariance @ (4 * features.T @ y)
    std = covariance.diagonal().sqrt()
    assert method.reduction < 1.1
    assert ((method.samples.mean(0) - mean[:, 0]).abs() < 0.25 * std).all()
    assert torch.allclose(method.samples.std(0), std, rtol=0.2)
    new = torch.cat([torch.tensor([[2.0, 1.0]]).double(), torch.ones(1, 1)], 1)
    said = method.predict(new[:, :2])
    assert said.model.item() == pytest.approx((new @ covariance @ new.T).item(), rel=0.3)
    assert said.data.item() == pytest.approx(0.25)


def test_weights_count_as_rows() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, 2).double(), torch.randn(6, 1).double()
    method = HMC(nn.Linear(2, 2), MeanVariance(1), draws=2, warmup=1).double()
    w = torch.randn(3, 6).double()
    weight = torch.tensor([2.0, 1.0, 1.0, 1.0, 1.0, 0.0]).double()
    twice = method.log_joint(w, torch.cat([x[:1], x[:5]]), torch.cat([y[:1], y[:5]]), torch.ones(6).double())
    torch.testing.assert_close(method.log_joint(w, x, y, weight), twice)


def test_what_is_not_known_grows_away_from_the_points() -> None:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.uniform(-2, -1, 15), rng.uniform(1, 2, 15)])[:, None]
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=30)
    options = {"draws": 40, "warmup": 100, "thin": 2, "steps": 12}
    settings = {"method": "hmc", "hidden_layers": (10,), "random_state": 0, "method_options": options}
    model = BEDLRegressor(**settings).fit(X, y)
    assert model.score(X, y) > 0.8
    parts = model.uncertainty(np.array([[-1.5], [0.0], [1.5], [5.0]]))["model"]
    assert parts[3] > 4 * max(parts[0], parts[2])
    labels = BEDLClassifier(**settings).fit(X, X[:, 0] > 0)
    assert labels.score(X, X[:, 0] > 0) > 0.9
