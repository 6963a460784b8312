"""Conditional neural processes: what a context tells, and where it lies between knowing nothing and the truth."""

from __future__ import annotations

import math

import pytest
import torch

from bedl.heads import MeanVariance, Softmax
from bedl.methods.baselines.neural_process import NeuralProcess


def lines(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """y = a x + b + noise, with a, b ~ N(0, 1): of which the posterior is known."""
    x = 4 * torch.rand(16, 20, 1, generator=generator) - 2
    a, b = torch.randn(2, 16, 1, 1, generator=generator)
    return x, a * x + b + 0.2 * torch.randn(16, 20, 1, generator=generator)


@pytest.fixture(scope="module")
def learned() -> NeuralProcess:
    torch.manual_seed(0)
    method = NeuralProcess(1, MeanVariance(1), (32, 32), steps=700, lr=1e-2)
    method.fit_functions(lines)
    return method


def test_it_is_between_the_prior_and_the_exact_posterior(learned: NeuralProcess) -> None:
    """Mean log-density of 10 points given 10: near that of Bayesian linear regression, and above that of the prior."""
    scores = torch.zeros(3)
    generator = torch.Generator().manual_seed(7)
    for x, y in [pair for _ in range(5) for pair in zip(*lines(generator), strict=True)]:
        learned.condition(x[:10], y[:10])
        features = torch.cat([x, torch.ones(20, 1)], 1)
        told, asked = features[:10], features[10:]
        covariance = (torch.eye(2) + told.T @ told / 0.04).inverse()
        mean = asked @ (covariance @ (told.T @ y[:10] / 0.04))
        exact = torch.distributions.Normal(mean, (0.04 + (asked @ covariance * asked).sum(1, keepdim=True)).sqrt())
        prior = torch.distributions.Normal(0.0, (asked.square().sum(1, keepdim=True) + 0.04).sqrt())
        found = learned.predict(x[10:]).log_prob(y[10:])
        scores += torch.stack([part.mean() for part in (prior.log_prob(y[10:]), found, exact.log_prob(y[10:]))])
    prior, found, exact = (scores / 80).tolist()
    assert found < exact
    assert found - prior > 0.6 * (exact - prior)


def test_more_context_is_less_uncertainty(learned: NeuralProcess) -> None:
    x, y = (part[0] for part in lines(torch.Generator().manual_seed(1)))
    spreads = []
    for count in (0, 1, 20):
        learned.condition(x[:count], y[:count])
        spreads.append(learned.predict(x).std.mean().item())
    assert spreads[0] > spreads[1] > spreads[2]
    assert spreads[0] == pytest.approx(math.sqrt(1 + 4 / 3), rel=0.35)  # of the prior, on average


def test_the_order_of_a_context_does_not_matter_and_weights_do(learned: NeuralProcess) -> None:
    x, y = (part[0] for part in lines(torch.Generator().manual_seed(2)))
    learned.condition(x, y)
    before = learned.context.clone()
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    learned.condition(x[order], y[order])
    torch.testing.assert_close(learned.context, before)
    weight = torch.ones(20)
    weight[10:] = 0
    learned.condition(x, y, weight)
    half = learned.context.clone()
    learned.condition(x[:10], y[:10])
    torch.testing.assert_close(half, learned.context)


def test_classes() -> None:
    torch.manual_seed(0)
    x = torch.randn(80, 2)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 1).long()
    method = NeuralProcess(2, Softmax(3), (32, 32), steps=300, lr=1e-2)
    method.fit(x, y)
    assert (method.predict(x).label == y).float().mean() > 0.85
