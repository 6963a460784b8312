"""Deterministic variational inference: its two expectations, its prior, and that it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import nn

from bedl import BEDLClassifier, BEDLRegressor, GaussianLinear
from bedl.heads import ExpectedMeanVariance, ExpectedSoftmax
from bedl.methods import Batch, Problem, registry
from bedl.methods.baselines.dvi import DVI
from bedl.moments import Moments
from bedl.objectives import EmpiricalPrior


def normal_expectation(function, mean: float, variance: float) -> float:
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    values = [function(mean + math.sqrt(variance) * node) for node in nodes]
    return float(weights @ values) / math.sqrt(2 * math.pi)


def test_the_expected_log_density_is_that_of_quadrature() -> None:
    m, v = torch.tensor([[0.3, -0.7]], dtype=torch.float64), torch.tensor([[0.4, 0.9]], dtype=torch.float64)
    y = 1.1
    found = (
        ExpectedMeanVariance(1)(Moments(m, v)),
        ExpectedMeanVariance(1).expected_log_prob(Moments(m, v), torch.tensor([[y]]).double()),
    )
    inner = lambda l: normal_expectation(lambda f: stats.norm.logpdf(y, f, math.exp(l / 2)), 0.3, 0.4)
    assert found[1].item() == pytest.approx(normal_expectation(inner, -0.7, 0.9), rel=1e-6)
    assert found[0].data.item() == pytest.approx(normal_expectation(math.exp, -0.7, 0.9), rel=1e-6)
    assert found[0].model.item() == pytest.approx(0.4)


def test_the_expected_log_softmax_is_that_of_sampling() -> None:
    torch.manual_seed(0)
    m, v = torch.tensor([[1.0, 0.0, -1.0]]).double(), torch.tensor([[0.2, 0.1, 0.3]]).double()
    y = torch.tensor([1])
    draws = torch.log_softmax(m + v.sqrt() * torch.randn(400_000, 3).double(), -1)[:, 1]
    truth, error = draws.mean().item(), (draws.std() / math.sqrt(len(draws))).item()
    delta = ExpectedSoftmax(3).expected_log_prob(Moments(m, v), y).item()
    assert delta == pytest.approx(truth, abs=5 * error + 4e-3)  # third order in the variances
    sampled = ExpectedSoftmax(3, "samples", samples=100_000).expected_log_prob(Moments(m, v), y).item()
    assert sampled == pytest.approx(truth, abs=5 * 3 * error)
    tiny = ExpectedSoftmax(3).expected_log_prob(Moments(m, 1e-8 * v), y)
    assert torch.allclose(tiny, torch.log_softmax(m, -1)[:, 1], atol=1e-7)


def test_the_bound_is_below_the_evidence_of_a_linear_model() -> None:
    """One weight, known noise: the evidence is a normal density, and the bound meets it at the exact posterior."""
    torch.manual_seed(0)
    x, noise, prior = torch.randn(20, 1).double(), 0.3, 2.0
    y = 1.5 * x + math.sqrt(noise) * torch.randn(20, 1).double()
    net, head = GaussianLinear(1, 1, bias=False).double(), ExpectedMeanVariance(1, "fixed", 1 / noise).double()
    method = DVI(net, head, EmpiricalPrior(variance=prior))
    covariance = noise * torch.eye(20).double() + prior * x @ x.T
    evidence = stats.multivariate_normal.logpdf(y[:, 0].numpy(), np.zeros(20), covariance.numpy())
    batch = Batch(x, y, n_train=20)
    assert -20 * method.loss(batch).item() < evidence - 1
    precision = 1 / prior + (x.square().sum() / noise).item()
    with torch.no_grad():
        net.weight_mean.fill_((x * y).sum().item() / noise / precision)
        net.weight_logvar.fill_(-math.log(precision))
    assert -20 * method.loss(batch).item() == pytest.approx(evidence, rel=1e-6)


def test_the_priors_variance_is_the_best_one() -> None:
    torch.manual_seed(1)
    net = GaussianLinear(4, 3).double()
    prior = EmpiricalPrior(alpha=1.0, beta=10.0)
    mean, variance = net.weight_mean.detach().numpy(), net.weight_logvar.detach().exp().numpy()

    def cost(log_s: float) -> float:
        s = math.exp(log_s)
        kl = 0.5 * ((mean**2 + variance) / s + log_s - 1 - np.log(variance)).sum()
        return kl - stats.invgamma.logpdf(s, 1.0, scale=10.0)

    best = optimize.minimize_scalar(cost, bounds=(-5, 8), method="bounded", options={"xatol": 1e-9})
    assert prior.divergence(net).item() == pytest.approx(best.fun, rel=1e-9)


def test_it_learns() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2)).astype(np.float32)
    y = X[:, 0] - X[:, 1] + 0.1 * rng.normal(size=200)
    quick = {"method": "dvi", "epochs": 25, "learning_rate": 0.03, "random_state": 0, "device": "cpu"}
    model = BEDLRegressor(**quick).fit(X, y)
    assert model.score(X, y) > 0.9
    parts = model.uncertainty(X)
    assert np.allclose(parts["total"], parts["data"] + parts["model"])
    assert (parts["distributional"] == 0).all()
    assert BEDLClassifier(**quick).fit(X, y > 0).score(X, y > 0) > 0.9
    assert BEDLClassifier(**quick, method_options={"softmax": "samples"}).fit(X, y > 0).score(X, y > 0) > 0.9


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="varying"):
        ExpectedMeanVariance(1, "unknown")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="delta"):
        ExpectedSoftmax(2, "exact")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is for regression and classification"):
        registry.get("dvi")(Problem("count", 1, (2,)))
    assert isinstance(DVI(nn.Sequential(GaussianLinear(2, 2)), ExpectedMeanVariance(1)).head, ExpectedMeanVariance)


def test_a_ramp_counts_epochs() -> None:
    torch.manual_seed(0)
    net, head = GaussianLinear(2, 2), ExpectedMeanVariance(1)
    batch = Batch(torch.randn(5, 2), torch.randn(5, 1), n_train=5)
    ramped, plain = (DVI(net, head, EmpiricalPrior(ramp=ramp)) for ramp in (10.0, 0.0))
    divergence = EmpiricalPrior().divergence(net) / 5
    for epoch, share in ((0.0, 0.0), (5.0, 0.5), (20.0, 1.0)):
        now = ramped.loss(batch._replace(epoch=torch.tensor(epoch)))
        torch.testing.assert_close(now, plain.loss(batch) - (1 - share) * divergence)
