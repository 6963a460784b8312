"""Hamiltonian Monte Carlo against posteriors in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from bedl import BEDLClassifier, BEDLRegressor
from bedl.heads import MeanVariance
from bedl.methods.baselines.hmc import HMC, _Sampler, potential_scale_reduction


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


@pytest.mark.slow
@pytest.mark.reference
def test_the_posterior_of_a_network_is_that_of_pyros_nuts() -> None:
    """Another sampler, and the density by hand.

    Predictions are what two samplers of a network can be compared by: weights have many modes that are the same.
    """
    infer = pytest.importorskip("pyro.infer", reason="pip install pyro-ppl")
    pyro = pytest.importorskip("pyro")
    rng = torch.Generator().manual_seed(0)
    x = torch.cat([torch.linspace(-1.5, -0.5, 8), torch.linspace(0.5, 1.5, 8)]).double()[:, None]
    y = torch.sin(2 * x) + 0.2 * torch.randn(16, 1, generator=rng).double()
    new = torch.tensor([[-2.5], [-1.0], [0.0], [1.0], [2.5]]).double()
    width, scale, draws_of_each = 3, 1.5, 400

    def outputs(p: dict[str, torch.Tensor], at: torch.Tensor) -> torch.Tensor:
        return torch.tanh(at @ p["w1"].T + p["b1"]) @ p["w2"].T + p["b2"]

    def potential(p: dict[str, torch.Tensor]) -> torch.Tensor:
        normal = torch.distributions.Normal
        prior = normal(0, scale).log_prob(p["w1"]).sum() + normal(0, scale / width**0.5).log_prob(p["w2"]).sum()
        prior = prior + sum(normal(0, 1).log_prob(p[name]).sum() for name in ("b1", "b2", "log_precision"))
        return -prior - normal(outputs(p, x), (-0.5 * p["log_precision"]).exp()).log_prob(y).sum()

    pyro.set_rng_seed(0)
    start = {"w1": torch.randn(width, 1), "b1": torch.zeros(width), "w2": torch.randn(1, width), "b2": torch.zeros(1),
             "log_precision": torch.zeros(1)}  # fmt: skip
    kernel = infer.NUTS(potential_fn=potential, max_tree_depth=6)
    chains = infer.MCMC(
        kernel, draws_of_each, 200, {name: part.double() for name, part in start.items()}, disable_progbar=True
    )
    chains.run()
    draws = chains.get_samples()
    theirs = torch.stack([outputs({k: v[i] for k, v in draws.items()}, new)[:, 0] for i in range(draws_of_each)])

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1))
    method = HMC(net, MeanVariance(1, "shared"), draws_of_each, 8, 300, 3, 20, scale).double()
    method.fit(x, y)
    said = method.predict(new)
    assert method.reduction < 1.1
    # with a hundred independent draws or more of each, means are known to 0.1 std, and variances to a fifth
    torch.testing.assert_close(said.mean[:, 0], theirs.mean(0), rtol=0, atol=0.3 * theirs.std(0).max().item())
    assert ((said.mean[:, 0] - theirs.mean(0)).abs() < 0.4 * theirs.std(0)).all()
    assert (said.model[:, 0].sqrt() / theirs.std(0)).log().abs().max() < 0.35
    noise = (-draws["log_precision"]).exp().mean().item()
    assert said.data[0, 0].item() == pytest.approx(noise, rel=0.35)


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
