"""Marginals and joint samples are those of the networks, and acquisition functions find minima with them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("botorch")

from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.optim import optimize_acqf
from botorch.sampling.get_sampler import get_sampler
from botorch.test_functions import Branin, Hartmann

import bedl
from bedl.deploy.botorch import BEDLModel
from bedl.nn import GaussianLinear

F64 = torch.float64


def points(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.quasirandom.SobolEngine(d, scramble=True, seed=seed).draw(n).to(F64)


@pytest.fixture(scope="module")
def model() -> BEDLModel:
    X = points(40, 2)
    Y = torch.stack([(5 * X[:, 0]).sin() + X[:, 1], 3 + 100 * X[:, 1]], 1)
    return BEDLModel.fit(X, Y, epochs=30, ensemble=3)


def test_samples_of_a_linear_network_have_its_covariance() -> None:
    """f(x) = w x + b with w ~ N(m, s²): Cov(f(x), f(x')) = scale² (Σ s_i² x_i x'_i + s_b²), which two lines compute."""
    X = points(60, 2)
    Y = (X @ torch.tensor([[1.0], [-2.0]], dtype=F64)) + 0.1 * torch.randn(60, 1, dtype=F64, generator=_generator())
    options = {"method": "bedl", "net": lambda *_: GaussianLinear(2, 2), "standardize": False, "ensemble": 1}
    model = BEDLModel.fit(X, Y, epochs=20, **options)
    layer = next(part for part in model.method.modules() if isinstance(part, GaussianLinear))
    weight, bias = layer.gaussian("weight"), layer.gaussian("bias")
    variance = weight.variance[0].double()
    bias_variance = bias.variance[0].double() if hasattr(bias, "variance") else 0.0
    query = torch.tensor([[0.2, 0.9], [0.8, -0.5], [2.0, 1.0]], dtype=F64)
    posterior = model.posterior(query)
    distributional = posterior.variance[:, 0] - model.scale**2 * (query.square() @ variance + bias_variance)
    spread = distributional.clamp_min(0).sqrt()
    expected = model.scale**2 * (query * variance @ query.T + bias_variance) + spread[:, None] * spread
    samples = posterior.sample(torch.Size([40_000]))[..., 0]
    error = 6 * (expected.diag()[:, None] * expected.diag() / 40_000).sqrt()  # six standard errors of a covariance
    # E exp(f2) under sqrt is not exp(E f2 / 2): the product of two spreads is known up to the variance of f2
    assert ((torch.cov(samples.T) - expected).abs() < error + 0.2 * spread[:, None] * spread).all()
    torch.testing.assert_close(samples.mean(0), posterior.mean[:, 0], atol=float(error.max().sqrt()) / 10, rtol=1e-2)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_marginals_are_those_of_the_estimator() -> None:
    X, rng = points(50, 3), np.random.default_rng(0)
    Y = X.numpy() @ rng.normal(size=(3, 2)) + 0.1 * rng.normal(size=(50, 2))
    estimator = bedl.BEDLRegressor(method="evidence", ensemble=2, epochs=5, device="cpu", random_state=0)
    estimator.fit(X.numpy(), Y)
    model, said = BEDLModel(estimator), estimator.predict_dist(X.numpy())
    query = X.reshape(5, 2, 5, 3)
    for noise, variance in ((False, said.epistemic), (True, said.variance)):
        found = model.posterior(query, observation_noise=noise)
        torch.testing.assert_close(found.mean, said.mean.reshape(5, 2, 5, 2), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.variance, variance.reshape(5, 2, 5, 2), rtol=1e-4, atol=1e-6)
    one = model.posterior(query, output_indices=[1])
    torch.testing.assert_close(one.mean, said.mean.reshape(5, 2, 5, 2)[..., 1:], rtol=1e-4, atol=1e-5)
    assert all(parameter.requires_grad for parameter in estimator.method_.parameters())  # left as they were


@pytest.mark.parametrize("noise", [False, True])
def test_samples_have_the_marginals(model: BEDLModel, noise: bool) -> None:
    """Moments are matched layer by layer, so that closed forms and draws agree to a few per cent, not exactly."""
    posterior = model.posterior(points(6, 2, seed=1), observation_noise=noise)
    samples = get_sampler(posterior, torch.Size([6000]), seed=3)(posterior)
    std = posterior.variance.sqrt()
    assert ((samples.mean(0) - posterior.mean).abs() < 0.25 * std).all()
    ratio = samples.std(0) / std
    assert ((ratio > 0.7) & (ratio < 1.4)).all()


def test_a_sampler_keeps_its_functions_and_a_point_is_equal_to_itself(model: BEDLModel) -> None:
    x = points(3, 2, seed=2)
    sampler = get_sampler(model.posterior(x), torch.Size([16]), seed=0)
    alone, twice = sampler(model.posterior(x)), sampler(model.posterior(torch.cat([x, x])))
    torch.testing.assert_close(twice[:, :3], alone)
    torch.testing.assert_close(twice[:, 3:], alone)  # the same function, not only the same distribution
    batches = sampler(model.posterior(torch.stack([x, x.flip(0)])))
    torch.testing.assert_close(batches[:, 0], batches[:, 1].flip(1))
    other = get_sampler(model.posterior(x), torch.Size([16]), seed=1)(model.posterior(x))
    assert not torch.allclose(other, alone)


def test_gradients_are_those_of_differences(model: BEDLModel) -> None:
    sampler = get_sampler(model.posterior(points(1, 2)), torch.Size([4]), seed=0)

    def value(x: torch.Tensor) -> torch.Tensor:
        posterior = model.posterior(x)
        return torch.cat([posterior.mean.flatten(), posterior.variance.flatten(), sampler(posterior).flatten()])

    x = points(2, 2, seed=5).requires_grad_()
    assert torch.autograd.gradcheck(value, (x,), eps=1e-6, atol=1e-4, rtol=1e-3)


class Heteroscedastic:
    """Forrester's function on [0, 1], with noise that grows from left to right."""

    dim, bounds = 1, torch.tensor([[0.0], [1.0]], dtype=F64)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(len(x), dtype=F64, generator=_generator())
        value = (6 * x[:, 0] - 2).square() * (12 * x[:, 0] - 4).sin()
        return value + (0.1 + 2 * x[:, 0]) * noise


LONGER = [("branin", 8), ("hartmann", 3), ("heteroscedastic", 3)]
SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in LONGER]


@pytest.mark.parametrize(("name", "steps"), [("branin", 2), *SLOW])
def test_acquisition_functions_propose_points(name: str, steps: int) -> None:
    function: Any = {"branin": Branin, "hartmann": Hartmann, "heteroscedastic": Heteroscedastic}[name]()
    bounds = function.bounds.to(F64)
    unit = torch.stack([torch.zeros(function.dim), torch.ones(function.dim)]).to(F64)
    evaluate = lambda u: function(bounds[0] + (bounds[1] - bounds[0]) * u)
    X = points(8, function.dim)
    Y = -evaluate(X)[:, None]
    first = Y.max()
    for step in range(steps):
        model = BEDLModel.fit(X, Y, ensemble=2, random_state=step)
        if name == "heteroscedastic":
            acquisition: Any = qLogNoisyExpectedImprovement(model, X)
        elif step == 0:
            acquisition = LogExpectedImprovement(model, best_f=Y.max())
        else:
            acquisition = qLogExpectedImprovement(model, best_f=Y.max())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of searches that end early, and of best_f without an objective
            q = 1 if isinstance(acquisition, LogExpectedImprovement) else 2
            candidate, value = optimize_acqf(acquisition, unit, q=q, num_restarts=2, raw_samples=32,
                                             options={"maxiter": 20})  # fmt: skip
        assert value.isfinite().all()
        assert ((candidate >= 0) & (candidate <= 1)).all()
        X, Y = torch.cat([X, candidate]), torch.cat([Y, -evaluate(candidate)[:, None]])
    if name == "branin" and steps > 2:  # easy enough for some steps
        assert Y.max() > first


def test_what_cannot_be_sampled_is_refused() -> None:
    X = points(30, 2)
    with pytest.raises(bedl.BEDLError, match="fit first"):
        BEDLModel(bedl.BEDLRegressor())
    estimator = bedl.BEDLRegressor(method="deterministic", epochs=1, device="cpu")
    with pytest.raises(bedl.BEDLError, match="drawing weights"):
        BEDLModel(estimator.fit(X.numpy(), X[:, 0].numpy()))
