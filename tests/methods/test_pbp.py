"""Probabilistic backpropagation against the engine, exact posteriors and sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bedl import BEDLClassifier, BEDLRegressor
from bedl import _kernels as native
from bedl._kernels import inference
from bedl.methods.baselines.pbp import PBP, Posterior, _backward, _forward
from tests.closeness import assert_same_up_to_rounding


def network(*sizes: int) -> PBP:
    torch.manual_seed(0)
    return PBP(sizes[0], sizes[1:-1], sizes[-1]).double()


def posterior_of(method: PBP) -> Posterior:
    return Posterior(method.layers, method.noise_shape, method.noise_rate)


@pytest.fixture(params=["kernel", "PyTorch"])
def anyhow(request, monkeypatch):
    """With the kernel, and without it: what is said of the posterior has to hold for both."""
    if request.param == "PyTorch":
        monkeypatch.setattr(inference, "_library", None)


def take_in(posterior: Posterior, x: torch.Tensor, y: torch.Tensor) -> None:
    with torch.no_grad():
        posterior.take_in(x[None], y[None], torch.tensor([0]))


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


def test_a_linear_layer_gets_the_exact_posteriors_moments(anyhow) -> None:
    method, x, y = network(3, 1), torch.randn(3).double(), torch.tensor([0.7]).double()
    (m, v), noise = method.layers[0], 6.0 / 5.0
    a = torch.cat([x, torch.ones(1)])[None] / 2
    covariance = torch.diag(v[0])
    gain = covariance @ a.T / (a @ covariance @ a.T + noise)
    mean = m[0] + (gain @ (y - a @ m[0])[None])[:, 0]
    expected = mean, (covariance - gain @ a @ covariance).diagonal()
    posterior = posterior_of(method)
    take_in(posterior, x, y)
    torch.testing.assert_close(posterior.layers[0][0][0], expected[0])
    torch.testing.assert_close(posterior.layers[0][1][0], expected[1])


def test_the_noise_gets_the_moments_of_its_posterior(anyhow) -> None:
    """Without any weights' variance, Z is Student's t, which is nearly normal for a large shape."""
    method = network(1, 1)
    method.variance_0.fill_(1e-12), method.mean_0.zero_()
    method.noise_shape.fill_(60.0), method.noise_rate.fill_(60.0)
    posterior = posterior_of(method)
    take_in(posterior, torch.zeros(1).double(), torch.tensor([1.5]).double())
    exact = 60.5 / (60 + 1.5**2 / 2)
    found = (posterior.noise_shape / posterior.noise_rate).item()
    assert found == pytest.approx(exact, rel=1e-3)
    assert abs(found - 1) > 0.005  # and it has moved


def test_a_refined_factor_has_the_moments_of_the_tilted_distribution(anyhow) -> None:
    """Cavity times N(w; 0, 1/lambda) with lambda fixed: a gamma of great shape."""
    posterior = Posterior([(torch.full((1, 1), 0.8), torch.full((1, 1), 0.5))], torch.ones(1), torch.ones(1))
    posterior.prior.both[0], posterior.prior.both[1], posterior.prior.precision[0] = 1e6, 2e6, 0.25
    posterior.mean.fill_(0.8)
    posterior.refine()
    cavity = stats.norm(0.8 / 0.5 / 1.75, math.sqrt(1 / 1.75))
    tilted = [integrate.quad(lambda w, k=k: w**k * cavity.pdf(w) * stats.norm.pdf(w, 0, math.sqrt(2)), -9, 9)[0]
              for k in range(3)]  # fmt: skip
    mean = tilted[1] / tilted[0]
    assert posterior.mean.item() == pytest.approx(mean, rel=1e-4)
    assert posterior.variance.item() == pytest.approx(tilted[2] / tilted[0] - mean**2, rel=1e-4)


def both_ways(monkeypatch, method: PBP, x: torch.Tensor, y: torch.Tensor, passes: int = 2) -> list[Posterior]:
    """The posterior by the kernel, and by its reference."""
    found = []
    for library in (inference._library, None):
        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(inference, "_library", library)
            posterior = posterior_of(method)
            for number in range(passes):
                posterior.take_in(x, y, torch.randperm(len(x), generator=torch.Generator().manual_seed(number)))
                posterior.refine()
        found.append(posterior)
    return found


def assert_same_posteriors(found: Posterior, expected: Posterior, ulps: float) -> None:
    for name in ("mean", "variance", "noise_shape", "noise_rate"):
        assert_same_up_to_rounding(getattr(found, name), getattr(expected, name), ulps)
    for one, other in zip((*found.prior.factors, found.prior.both), (*expected.prior.factors, expected.prior.both),
                          strict=True):  # fmt: skip
        assert_same_up_to_rounding(np.array(one), np.array(other), ulps, max(1.0, np.abs(other).max()))


needs_kernels = pytest.mark.skipif(not native.is_built(), reason="the kernels are not built, or switched off")


@needs_kernels
@pytest.mark.parametrize("sizes", [(2, 1), (13, 50, 1), (3, 7, 5, 2), (1, 9, 8, 17, 3)])
def test_the_kernel_is_its_reference_up_to_rounding(monkeypatch, sizes) -> None:
    """Points feed on each other: what rounding there is grows with them, so that some thousands of units are few."""
    method, x = network(*sizes), torch.randn(60, sizes[0]).double()
    y = torch.sin(x.sum(1, keepdim=True)) + 0.1 * torch.randn(60, sizes[-1]).double()
    kernel, reference = both_ways(monkeypatch, method, x, y)
    assert (reference.mean - posterior_of(method).mean).abs().max() > 0.1
    assert_same_posteriors(kernel, reference, ulps=1e5)


@needs_kernels
@pytest.mark.parametrize("far", [1.0, 1e3, 1e8])
def test_units_that_are_off_and_targets_far_away_stay_finite(monkeypatch, far) -> None:
    """Units at −5 to −60 standard deviations, whose tails underflow, and a target that is beyond belief."""
    method = network(1, 12, 1)
    method.mean_0[:, 1] = -torch.linspace(5, 60, 12) * math.sqrt(1.2)
    x, y = torch.zeros(20, 1).double(), torch.ones(20, 1).double()
    y[7] = far
    kernel, reference = both_ways(monkeypatch, method, x, y)
    for posterior in (kernel, reference):
        assert all(part.isfinite().all() for part in (posterior.mean, posterior.variance, posterior.noise_rate))
        assert (posterior.variance > 0).all()
    if far < 1e8:  # there, all digits are lost by cancellation, each way its own
        assert_same_posteriors(kernel, reference, ulps=1e8)


def test_all_points_are_taken_in_whatever_the_front_makes_of_them() -> None:
    """Columns that lie apart in memory, as a front may leave them, are the same points."""
    x = torch.randn(40, 6)
    one, other = (network(3, 5, 1).float() for _ in range(2))
    other.seed = one.seed
    one.fit(x[:, ::2], x[:, :1]), other.fit(x[:, ::2].contiguous(), x[:, :1].contiguous())
    torch.testing.assert_close(one.mean_0, other.mean_0, rtol=0, atol=0)


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
