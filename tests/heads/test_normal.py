"""The Normal head against torch.distributions and against sampling the model it stands for."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal as Gaussian
from torch.distributions import kl_divergence

from bedl.heads import Normal, Sampled
from bedl.heads.predictive import NormalMixturePredictive, NormalPredictive
from bedl.moments import Moments


def outputs(n=6, d=3, dtype=torch.float64):
    g = torch.Generator().manual_seed(2)
    m = torch.randn(n, 2 * d, generator=g, dtype=dtype)
    return Moments(m, torch.rand(n, 2 * d, generator=g, dtype=dtype))


def test_mean_and_variance_are_those_of_the_model():
    """y = f1 + exp(f2/2) e1 + e2/sqrt(beta), drawn for real; tolerance from the draws."""
    f, head = outputs(n=4, d=2), Normal(2, beta=5.0)
    g = torch.Generator().manual_seed(0)
    n = 400_000
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
    f1, f2 = (f.loc + f.variance.sqrt() * draw(n, 4, 4)).split(2, -1)
    y = f1 + torch.exp(f2 / 2) * draw(n, 4, 2) + draw(n, 4, 2) / math.sqrt(5.0)
    p = head(f)
    assert ((p.mean - y.mean(0)).abs() < 4.5 * y.std(0) / n**0.5).all()
    square = (y - p.mean).square()
    assert ((p.variance - square.mean(0)).abs() < 4.5 * square.std(0) / n**0.5).all()
    assert torch.allclose(p.data, torch.full_like(p.mean, 1 / 5))
    assert torch.allclose(p.distributional, torch.exp(f.loc[:, 2:] + f.variance[:, 2:] / 2))
    assert torch.equal(p.model, f.variance[:, :2])


def test_log_marginal_against_torch_distributions():
    f, head = outputs(), Normal(3, beta=7.0)
    y = torch.randn(6, 3, dtype=torch.float64)
    variance = 1 / 7 + f.variance[:, :3] + torch.exp(f.loc[:, 3:] + f.variance[:, 3:] / 2)
    want = Gaussian(f.loc[:, :3], variance.sqrt()).log_prob(y).sum(-1)
    assert torch.allclose(head.log_marginal(f, y), want, rtol=1e-6)
    assert torch.allclose(head(f).log_prob(y), want, rtol=1e-6)


def test_log_marginal_is_the_sampled_one_where_the_noise_is_certain():
    f = outputs(d=1)
    f = Moments(f.loc, f.variance * torch.tensor([1.0, 0.0], dtype=torch.float64))
    head, y = Normal(1, beta=3.0), torch.randn(6, 1, dtype=torch.float64)
    torch.manual_seed(0)
    by_draws = Sampled(head, 200_000)
    draws = by_draws.draw(f)
    density = head.given(draws).log_prob(y.expand(len(draws), -1, -1)).exp()
    closed = head.log_marginal(f, y).exp()
    assert ((closed - density.mean(0)).abs() < 4.5 * density.std(0) / len(density) ** 0.5).all()
    assert torch.allclose(by_draws.log_marginal(f, y).exp(), closed, rtol=0.02)


def test_kl_against_torch_distributions():
    f, head = outputs(), Normal(3, prior_precision=0.3)
    std = (f.variance[:, :3] + torch.exp(f.loc[:, 3:] + f.variance[:, 3:] / 2)).sqrt()
    prior = Gaussian(torch.zeros(3, dtype=torch.float64), torch.full((3,), 0.3, dtype=torch.float64).rsqrt())
    want = kl_divergence(Gaussian(f.loc[:, :3], std), prior).sum(-1)
    assert torch.allclose(head.kl(f), want, rtol=1e-6)
    known = Moments(f.loc, torch.zeros_like(f.variance))
    assert torch.allclose(head.kl(known), Sampled(head, 3).kl(known), rtol=1e-6)
    assert (head.kl(f) >= 0).all()


def test_sampled_prediction_agrees():
    f, head = outputs(d=1), Normal(1)
    torch.manual_seed(0)
    sampled, closed = Sampled(head, 200_000)(f), head(f)
    assert isinstance(sampled, NormalMixturePredictive)
    assert torch.allclose(sampled.mean, closed.mean, atol=0.02)
    for part in ("data", "distributional", "model"):
        assert torch.allclose(getattr(sampled, part), getattr(closed, part), rtol=0.03), part


def test_gradcheck():
    f, head = outputs(n=3, d=2), Normal(2, beta=4.0).double()
    m, v = f.loc.requires_grad_(), f.variance.requires_grad_()
    y = torch.randn(3, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda m, v: head.log_marginal(Moments(m, v), y), (m, v))
    assert torch.autograd.gradcheck(lambda m, v: head.kl(Moments(m, v)), (m, v))


@pytest.mark.parametrize("log_noise", [-1000.0, -50.0, 0.0, 50.0, 300.0, 1e4])
@pytest.mark.parametrize("epistemic", [0.0, 1e-30, 1e6])
def test_no_overflow_and_no_dead_gradient(log_noise, epistemic):
    head, y = Normal(1), torch.ones(1, 1)
    m = torch.tensor([[0.5, log_noise]], requires_grad=True)
    v = torch.tensor([[epistemic, 1.0]], requires_grad=True)
    f = Moments(m, v)
    for value in (head.log_marginal(f, y), head.kl(f), head(f).variance):
        assert value.isfinite().all()
        for grad in torch.autograd.grad(value.sum(), [m, v]):
            assert grad.isfinite().all()
    if log_noise > 0:  # too much noise must still be told so
        assert torch.autograd.grad(head.log_marginal(f, y).sum(), m)[0][0, 1] < -0.4 * (epistemic < 1e5)
        assert torch.autograd.grad(head.kl(f).sum(), m)[0][0, 1] > 0


def test_beta():
    fixed, learned = Normal(2, beta=100.0), Normal(2, beta=100.0, learn_beta=True)
    assert list(fixed.parameters()) == []
    assert [name for name, _ in learned.named_parameters()] == ["log_beta"]
    assert fixed.state_dict().keys() == learned.state_dict().keys()
    assert fixed.complexity.item() == pytest.approx(100 / (2 * math.pi))
    f = outputs(d=2, dtype=torch.float32)
    loss = -learned.log_marginal(f, torch.zeros(6, 2)).mean() + learned.complexity
    loss.backward()
    assert learned.log_beta.grad.abs() > 0
    assert torch.allclose(fixed(f).aleatoric, learned(f).aleatoric)
    assert "learn_beta" in repr(learned)


def test_one_target_takes_flat_targets():
    f, head, y = outputs(d=1), Normal(1), torch.randn(6, dtype=torch.float64)
    assert torch.equal(head.log_marginal(f, y), head.log_marginal(f, y[:, None]))


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda head, f: head(Moments(torch.zeros(2, 3), 1.0)), ValueError, ["needs 6", "got 3"]),
        (lambda head, f: head.log_marginal(f, torch.zeros(6, 3).long()), TypeError, ["int64", "y.float()"]),
        (lambda head, f: head.log_marginal(f, torch.zeros(6)), ValueError, ["(6,)", "(6, 3)"]),
        (lambda head, f: head.kl(f, evidence="misleading"), ValueError, ["classes"]),
        (lambda head, f: Normal(0), ValueError, ["at least 1"]),
        (lambda head, f: Normal(1, beta=0.0), ValueError, ["positive"]),
        (lambda head, f: Normal(1, prior_precision=-1.0), ValueError, ["positive"]),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error) as caught:
        call(Normal(3), outputs())
    assert all(word in str(caught.value) for word in words)


def test_vmap_compile_export():
    head = Normal(1, learn_beta=True)
    m, v, y = torch.randn(3, 4, 2), torch.rand(3, 4, 2), torch.randn(3, 4, 1)
    got = torch.func.vmap(lambda m, v, y: head.log_marginal(Moments(m, v), y))(m, v, y)
    assert torch.allclose(got[1], head.log_marginal(Moments(m[1], v[1]), y[1]))
    p = torch.compile(head, fullgraph=True, backend="aot_eager")(Moments(m[0], v[0]))
    assert isinstance(p, NormalPredictive)
    fixed = Normal(1)
    compiled = torch.compile(
        lambda m, v: fixed.kl(Moments(m, v)) + fixed.complexity, fullgraph=True, backend="aot_eager"
    )
    assert torch.allclose(compiled(m[0], v[0]), fixed.kl(Moments(m[0], v[0])) + fixed.complexity)
