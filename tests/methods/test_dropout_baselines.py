"""MC Dropout, Fast Dropout and VarOut against closed forms, conjugate posteriors and long sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from bedl import BEDLClassifier, GaussianLinear, deterministic
from bedl.heads import MeanVariance, Softmax
from bedl.methods import Batch, registry
from bedl.methods.baselines.dropout import FastDropout, MCDropout, VarOut, expected_log_likelihood, log_uniform_kl
from bedl.methods.registry import Problem
from bedl.moments import Moments
from bedl.nn.sampling import drawing


def known(precision: float = 4.0) -> MeanVariance:
    return MeanVariance(1, noise="fixed", precision=precision)


def linear(weight: Tensor, p: float) -> nn.Sequential:
    net = nn.Sequential(nn.Dropout(p), nn.Linear(weight.numel(), 1, bias=False))
    with torch.no_grad():
        net[1].weight.copy_(weight[None])  # type: ignore[operator]
    return net


WEIGHT, X = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([[1.0, 0.5, -3.0], [2.0, 0.0, 1.0]])


# -- MC Dropout ---------------------------------------------------------------------------------------
def test_draws_of_one_layer_have_the_masks_moments() -> None:
    p, samples = 0.3, 8_000
    said = MCDropout(linear(WEIGHT, p), known(), samples=samples).predict(X)
    mean, variance = X @ WEIGHT, X.square() @ WEIGHT.square() * p / (1 - p)
    error = 5 * (variance / samples).sqrt()
    assert bool(((said.mean[:, 0] - mean).abs() < error).all())
    torch.testing.assert_close(said.model[:, 0], variance, rtol=0.08, atol=0)
    torch.testing.assert_close(said.data, torch.full((2, 1), 0.25))


def test_the_log_likelihood_is_gals_formula() -> None:
    """log 1/T Σ exp(−½ tau (y − y_t)²) − ½ log 2 pi + ½ log tau, equation 8 of the paper's appendix."""
    tau, y = 4.0, torch.tensor([0.3, 1.0])
    said = MCDropout(linear(WEIGHT, 0.3), known(tau), samples=40).predict(X)
    draws = said.means[:, 0]  # type: ignore[attr-defined]  # shape: (n, T)
    truth = torch.logsumexp(-0.5 * tau * (y[:, None] - draws).square(), 1) - math.log(40)
    truth += 0.5 * math.log(tau) - 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(said.log_prob(y[:, None]), truth, rtol=1e-4, atol=1e-5)
    assert draws[0].unique().numel() > 3
    # a draw is one function: two equal points get the same answer, whatever stands beside them
    again = MCDropout(linear(WEIGHT, 0.3), known(tau), samples=40).predict(X[[1, 1, 0]])
    torch.testing.assert_close(again.means[:2, 0], draws[[1, 1]])  # type: ignore[attr-defined]


def test_weight_decay_is_that_of_the_paper() -> None:
    """Loss / tau has the factor l² (1 − p)/(2 N tau) in front of the squared weights."""
    method = MCDropout(linear(WEIGHT, 0.3), known(), length_scale=2.0)
    assert method.decay().item() / 50 / 4.0 == pytest.approx(4.0 * 0.7 / (2 * 50 * 4.0) * 5.25)


def test_dropout_of_ones_own() -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(60, 1, 6, 6)).astype(np.float32)
    y = (images.mean((1, 2, 3)) > 0).astype(int)

    def net(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout2d(0.4), nn.Flatten(), nn.Linear(64, n_outputs))

    model = BEDLClassifier(method="mc-dropout", net=net, epochs=2, random_state=0, device="cpu").fit(images, y)
    said = model.predict_dist(images)
    assert float(said.model.min()) > 0
    np.testing.assert_allclose(model.predict_dist(images[10:20]).model, said.model[10:20], rtol=1e-3, atol=1e-6)
    with pytest.raises(ValueError, match="no dropout layer"):
        BEDLClassifier(method="mc-dropout", net=nn.Sequential(nn.Flatten(), nn.Linear(36, 2))).fit(images, y)


# -- Fast Dropout -------------------------------------------------------------------------------------
def test_fast_dropout_of_one_layer_is_exact() -> None:
    p, y = 0.3, torch.tensor([0.3, 1.0])
    method = FastDropout(linear(WEIGHT, p), known(4.0))
    variance = X.square() @ WEIGHT.square() * p / (1 - p)
    said = method.predict(X)
    torch.testing.assert_close(said.mean[:, 0], X @ WEIGHT)
    torch.testing.assert_close(said.model[:, 0], variance)
    # dropout of a linear regression is a penalty of its own: ½ tau p/(1 − p) Σ w² x² (Wager et al. 2013)
    plain = -torch.distributions.Normal(X @ WEIGHT, 0.5).log_prob(y)
    truth = (plain + 0.5 * 4.0 * variance).mean()
    torch.testing.assert_close(method.loss(Batch(X, y, 2)), truth)


def test_fast_dropout_is_what_many_masks_agree_on() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Dropout(0.2), nn.Linear(20, 60), nn.ReLU(), nn.Dropout(0.2), nn.Linear(60, 1))
    x = torch.randn(6, 20)
    slow = MCDropout(net, known(), samples=4_000).predict(x)
    fast = FastDropout(net, known()).predict(x)
    std = slow.model.sqrt()
    assert bool(((fast.mean - slow.mean).abs() < 0.1 * std + 4 * std / 4_000**0.5).all())
    torch.testing.assert_close(fast.model.sqrt(), std, rtol=0.2, atol=0)


def test_expected_log_likelihood_by_sampling() -> None:
    m, v = torch.tensor([[1.0, 0.0, -1.0], [0.0, 0.5, 2.0]]), torch.tensor([[0.2, 0.1, 0.05], [0.1, 0.0, 0.2]])
    y = torch.tensor([0, 1])
    draws = m + v.sqrt() * torch.randn(100_000, 2, 3, generator=torch.Generator().manual_seed(0))
    truth = torch.log_softmax(draws, -1)[:, [0, 1], y].mean(0)
    torch.testing.assert_close(expected_log_likelihood(Softmax(3), Moments(m, v), y), truth, rtol=0, atol=5e-3)


# -- VarOut -------------------------------------------------------------------------------------------
def test_at_the_exact_posterior_the_bound_is_the_evidence() -> None:
    """Bayesian linear regression with orthogonal columns: the posterior factorises, and ELBO = log p(y)."""
    torch.manual_seed(0)
    n, tau, a = 40, 4.0, 0.5
    X = torch.linalg.qr(torch.randn(n, 3))[0] * 5
    y = X @ torch.tensor([1.0, -0.5, 0.2]) + 0.5 * torch.randn(n)
    precision = a + tau * X.square().sum(0)
    layer = GaussianLinear(3, 1, bias=False)
    with torch.no_grad():
        layer.weight_mean.copy_((tau * X.T @ y / precision)[None])  # type: ignore[operator]
        layer.weight_logvar.copy_(-precision.log()[None])  # type: ignore[operator]
    method = VarOut(layer, known(tau), precision=a)
    with torch.no_grad():
        losses = torch.stack([method.loss(Batch(X, y, n)) for _ in range(400)])
    evidence = MultivariateNormal(torch.zeros(n), torch.eye(n) / tau + X @ X.T / a).log_prob(y)
    assert abs(-n * losses.mean() - evidence) < 5 * n * losses.std() / 20
    # and prediction draws from that posterior
    said = VarOut(layer, known(tau), samples=3_000).predict(X[:4])
    torch.testing.assert_close(said.model[:, 0], X[:4].square() @ (1 / precision), rtol=0.1, atol=0)


def test_varying_noise_is_a_second_output_on_top_of_the_least() -> None:
    """Weights that are known: y ~ N(f1, exp f2 + 1/tau), BEDL's likelihood, by SciPy."""
    method = registry.get("varout").build(Problem("regression", 1, (3,)), noise="varying", tau=100.0, samples=3)
    with torch.no_grad():
        for name, parameter in method.net.named_parameters():
            if name.endswith("logvar"):
                parameter.fill_(-80.0)
            elif name.endswith("bias") and len(parameter) == 2:
                parameter[1] = -4.0
        f, y = deterministic(method.net)(0.1 * X), torch.tensor([0.3, -0.2])
    noise = 10 * f[:, 1].exp() / (10 + f[:, 1].exp()) + 0.01  # exp f2 bends towards 10
    truth = stats.norm(f[:, 0].numpy(), noise.sqrt().numpy()).logpdf(y.numpy())
    said = method.predict(0.1 * X)
    np.testing.assert_allclose(said.log_prob(y[:, None]).numpy(), truth, rtol=1e-4)
    np.testing.assert_allclose(said.data[:, 0].numpy(), noise.numpy(), rtol=1e-4)
    with pytest.raises(ValueError, match="noise must be"):
        registry.get("varout").build(Problem("regression", 1, (3,)), noise="none")


def test_log_uniform_divergence_by_quadrature() -> None:
    """KL = −½ log r + E log|1 + sqrt(r) e| + ½ (gamma + log 2), e ~ N(0, 1), which vanishes as r grows."""
    e = stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    for r in (0.02, 0.3, 1.0, 5.0, 50.0):
        expected = np.log(np.abs(1 + np.sqrt(r) * e)).mean()
        truth = -0.5 * math.log(r) + expected + 0.5 * (np.euler_gamma + math.log(2))
        ours = log_uniform_kl(torch.tensor(1.0), torch.tensor(math.log(r))).item()
        assert ours == pytest.approx(truth, abs=0.01)


def test_what_cannot_be() -> None:
    for wrong in ({"samples": 0}, {"samples": 2.5}, {"length_scale": -1.0}):
        with pytest.raises(ValueError, match="must be"):
            MCDropout(linear(WEIGHT, 0.1), known(), **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prior must be"):
        VarOut(GaussianLinear(3, 1), known(), prior="flat")  # type: ignore[arg-type]


def test_units_that_are_silent_for_a_point_leave_gradients_finite():
    """Where all inputs of a layer are 0, so is the variance of its outputs, whose root has an infinite slope there."""
    layer = GaussianLinear(3, 2)
    with drawing(layer, once=False):
        out = layer(torch.zeros(4, 3))
        out.sum().backward()
    assert torch.equal(out, layer.bias.expand(4, 2))
    assert all(bool(parameter.grad.isfinite().all()) for parameter in layer.parameters() if parameter.grad is not None)


def test_draws_of_convolutions_are_made_where_products_round() -> None:
    """Scores of points held out are taken in the precision of the training step."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten()]
    method = MCDropout(nn.Sequential(*layers, nn.Linear(64, 3)), Softmax(3), samples=4).eval()
    x = torch.randn(5, 1, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = method.predict(x).probabilities
    torch.testing.assert_close(mixed, method.predict(x).probabilities)
