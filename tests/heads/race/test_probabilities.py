"""log E[softmax(f)] against quadrature, sampling, mpmath; its gradients; its extremes; its travels through PyTorch."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bedl.heads.integrals.nodes import (
    LOG_EXPONENTIAL,
    LOGISTIC,
    SMALL_VARIANCE,
    log_mean_softmax,
    log_survival_and_density,
    quadrature_nodes,
    race,
)
from tests.closeness import assert_same_up_to_rounding
from tests.heads.oracles import exact, logits

F64 = torch.float64


@pytest.mark.parametrize("components, error", [(4, 9e-4), (6, 1.3e-4), (8, 2.2e-5)])
def test_mixture_is_the_law_of_log_exponential(components, error):
    x = torch.linspace(-15, 4, 2001, dtype=F64)
    survival = sum(p * torch.special.ndtr((mu - x) / math.sqrt(t)) for p, mu, t in LOG_EXPONENTIAL[components])
    assert sum(p for p, _, _ in LOG_EXPONENTIAL[components]) == pytest.approx(1, abs=1e-9)
    assert (survival - torch.exp(-torch.exp(x))).abs().max() < error


def test_mixture_is_the_logistic_cdf():
    x = torch.linspace(-30, 30, 2001, dtype=F64)
    cdf = sum(p * torch.special.ndtr(x / math.sqrt(variance)) for p, variance in LOGISTIC)
    assert (cdf - torch.sigmoid(x)).abs().max() < 6e-6


CASES = [
    (n_classes, s, spread) for n_classes in (2, 3, 10) for s in (0.02, 0.5, 2.0, 5.0, 20.0) for spread in (1, 4, 1000)
] + [(60, 5.0, 4), (1000, 0.5, 100)]


@pytest.mark.parametrize("n_classes, s, spread", CASES)
def test_agrees_with_quadrature(n_classes, s, spread):
    """float32, any ratio of stds: far inside the 1e-3 that is asked for."""
    n = {2: 6, 3: 4, 10: 2}.get(n_classes, 1)
    m, v = logits(n_classes, n, scale=2.0, s=s, spread=spread)
    components = 6 if n_classes < 30 else 8
    p = log_mean_softmax(m.float(), v.float(), components=components).double().exp()
    assert (p - exact(m, v).p).abs().max() < 4e-4
    assert (p.sum(-1) - 1).abs().max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [100, 1000])
@pytest.mark.parametrize("s, spread", [(20.0, 1000), (5.0, 1)])
def test_agrees_with_quadrature_for_many_classes(n_classes, s, spread):
    m, v = logits(n_classes, 1, scale=3.0, s=s, spread=spread)
    for components in (6, 8):
        p = log_mean_softmax(m.float(), v.float(), components=components).double().exp()
        assert (p - exact(m, v).p).abs().max() < 1e-3


@pytest.mark.slow
def test_wide_stds_want_more_nodes():
    m, v = logits(2, 6, scale=50.0, s=200.0, spread=1000)
    errors = [(log_mean_softmax(m, v, nodes, 8).exp() - exact(m, v).p).abs().max() for nodes in (16, 32)]
    assert errors[0] < 1e-2
    assert errors[1] < 1e-3


@pytest.mark.parametrize("nodes, components, error", [(16, 4, 1e-3), (20, 6, 1.5e-4), (32, 8, 5e-5)])
def test_settings_buy_accuracy(nodes, components, error):
    m, v = logits(5, 4, scale=2.0, s=10.0, spread=50, seed=4)
    p = log_mean_softmax(m, v, nodes, components).exp()
    assert (p - exact(m, v).p).abs().max() < error


def test_agrees_with_a_million_samples():
    m, v = logits(10, 4, scale=2.0, s=4.0, spread=8, seed=1)
    g = torch.Generator().manual_seed(0)
    total, square, n = 0.0, 0.0, 0
    for _ in range(20):
        p = torch.softmax(m + v.sqrt() * torch.randn(50_000, *m.shape, generator=g, dtype=F64), -1)
        total, square, n = total + p.sum(0), square + p.square().sum(0), n + len(p)
    mean = total / n
    error = ((square / n - mean.square()) / n).sqrt()
    assert ((log_mean_softmax(m, v).exp() - mean).abs() < 5 * error + 1e-4).all()


def test_zero_variance_is_log_softmax():
    m = torch.randn(50, 7) * 30
    m[0] *= 30
    centred = m - m.amax(-1, keepdim=True)
    assert_same_up_to_rounding(log_mean_softmax(m, torch.zeros_like(m)), torch.log_softmax(centred, -1))
    assert torch.allclose(log_mean_softmax(m, torch.zeros_like(m)), torch.log_softmax(m, -1), rtol=1e-6, atol=1e-4)


def test_expansion_and_race_meet():
    m, v = torch.randn(4, 5, dtype=F64) * 2, torch.full((4, 5), SMALL_VARIANCE, dtype=F64)
    below, above = log_mean_softmax(m, v * 0.999), log_mean_softmax(m, v * 1.001)
    assert (below.exp() - above.exp()).abs().max() < 1e-4
    assert (below - exact(m, v * 0.999).log_p).abs().max() < 1e-7  # the expansion is the better one here


@pytest.mark.parametrize(
    "m, s, error",
    [(-30.0, 0.1, 2e-3), (-900.0, 0.0, 1e-3), (-60.0, 5.0, 0.05), (-400.0, 20.0, 0.1), (-300.0, 40.0, 0.5)],
)
def test_hopeless_class_keeps_its_log_probability_and_gradient(m, s, error):
    """log p of a class far beyond the reach of float32's exp, against mpmath: log E[sigmoid(f)].

    The nodes reach four stds of a class; one that needs more to win is known to a factor only.
    """
    mpmath.mp.dps = 60
    if s:
        density = lambda f: mpmath.npdf(f, m, s) / (1 + mpmath.exp(-f))
        grid = [m - 15 * s, *(m + k * s for k in (-8, -2, 0, 2, 6)), *(m + k * s * s for k in (0.5, 1.0)), 0, 5, 40]
        truth = mpmath.log(mpmath.quad(density, sorted(g for g in grid if g <= 40)))
    else:
        truth = mpmath.mpf(m)
    loc, v = torch.tensor([[0.0, m]], requires_grad=True), torch.tensor([[0.0, s * s]], requires_grad=True)
    log_p = log_mean_softmax(loc, v)
    assert log_p[0, 1].item() == pytest.approx(float(truth), abs=error)
    grad_m, grad_v = torch.autograd.grad(log_p[0, 1], [loc, v])
    assert grad_m[0, 1] > 0.05  # raising its logit still helps
    assert grad_m.isfinite().all()
    assert grad_v.isfinite().all()


@settings(max_examples=30, deadline=None)
@given(
    n_classes=st.integers(2, 12),
    scale=st.sampled_from([0.0, 1.0, 30.0, 1000.0]),
    stds=st.sampled_from([(0.0, 0.0), (0.0, 1e3), (1e-3, 1e3), (0.0, 0.02), (1e3, 1e3), (5.0, 50.0)]),
    seed=st.integers(0, 10_000),
)
def test_finite_everywhere_in_float32(n_classes, scale, stds, seed):
    g = torch.Generator().manual_seed(seed)
    m = scale * (2 * torch.rand(4, n_classes, generator=g) - 1)
    low, high = stds
    s = low + (high - low) * torch.rand(4, n_classes, generator=g) ** 4
    m, v = m.requires_grad_(), s.square().requires_grad_()
    log_p = log_mean_softmax(m, v)
    assert log_p.isfinite().all()
    assert (log_p <= 1e-6).all()
    assert (log_p.exp().sum(-1) - 1).abs().max() < 1e-5
    for c in range(n_classes):
        for grad in torch.autograd.grad(log_p[:, c].sum(), [m, v], retain_graph=True):
            assert grad.isfinite().all()


def test_gradcheck_with_nodes_held_fixed():
    """All three outputs. The tolerance is the mixture's error: see `_Race`."""
    m, v = logits(4, 5, scale=2.0, s=3.0, spread=30, seed=2)
    nodes, log_weight = quadrature_nodes(m, v, 20)
    early = slice(0, 14)  # later, the rates of classes that have surely rung are clamped

    def outputs(m, v):
        log_p, log_survival, log_rate = race(m, v, nodes, log_weight, 8)
        return log_p, log_survival[..., early], log_rate[..., early]

    assert torch.autograd.gradcheck(outputs, (m.requires_grad_(), v.requires_grad_()), atol=5e-4, rtol=1e-3)


@pytest.mark.parametrize("s, spread", [(0.3, 1), (1.0, 10), (5.0, 20)])
def test_gradient_is_that_of_the_integral(s, spread):
    """Not of our own formula: autograd through the oracle's quadrature."""
    m, v = logits(4, 4, scale=1.5, s=s, spread=spread, seed=3)
    target = torch.arange(4)
    grads = []
    for function in (lambda m, v: log_mean_softmax(m, v), lambda m, v: exact(m, v).log_p):
        a, b = m.clone().requires_grad_(), v.clone().requires_grad_()
        function(a, b).gather(-1, target[:, None]).sum().backward()
        grads.append((a.grad, b.grad))
    (ours_m, ours_v), (truth_m, truth_v) = grads
    assert (ours_m - truth_m).abs().max() < 2e-3
    assert (ours_v - truth_v).abs().max() < 2e-3 * truth_v.abs().max() + 2e-4


def test_density_is_the_derivative_of_the_survival():
    """Both sides of the switch to the left-tail identity."""
    w = torch.linspace(-30, 2, 200, dtype=F64)[:, None].requires_grad_()
    for variance in (0.0, 0.3, 4.0, 30.0):
        v = torch.full((200, 1), variance, dtype=F64).requires_grad_()
        log_l, log_d, slope, by_variance = (
            x[..., 0] for x in log_survival_and_density(w, v, torch.zeros(200, 1, dtype=F64), 8)
        )
        (density,) = torch.autograd.grad(-log_l.exp().sum(), w, retain_graph=True)
        assert (density - log_d.exp()).abs().max() < 2e-4
        by_w, by_v = torch.autograd.grad(log_d.sum(), [w, v])
        assert torch.allclose(by_w, slope, atol=1e-8)
        if variance:  # at 0 the square root in the switch has no slope, where the answer has one
            assert torch.allclose(by_v, by_variance, atol=1e-8)


def test_symmetries():
    m, v = logits(6, 5, scale=2.0, s=3.0, spread=5)
    order = torch.randperm(6)
    log_p = log_mean_softmax(m, v)
    assert torch.allclose(log_mean_softmax(m[:, order], v[:, order]), log_p[:, order], atol=1e-10)
    assert torch.allclose(log_mean_softmax(m + 123.0, v), log_p, atol=1e-10)
    assert torch.allclose(log_mean_softmax(m.view(5, 1, 6), v.view(5, 1, 6))[:, 0], log_p, atol=1e-12)
    flat = log_mean_softmax(torch.zeros(1, 6), torch.full((1, 6), 9.0))
    assert torch.allclose(flat, torch.full((1, 6), -math.log(6.0)), atol=1e-5)


def test_keeps_nothing_as_large_as_the_mixture():
    n, c, t = 10, 10, 20
    m, v = torch.randn(n, c, requires_grad=True), torch.rand(n, c, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        log_mean_softmax(m, v, t, 8)
    assert max(kept) <= n * c * t
    assert sum(kept) <= 5 * n * c * t


def test_under_vmap_and_grad():
    m, v = torch.randn(3, 4, 5), torch.rand(3, 4, 5)
    loss = lambda m, v: log_mean_softmax(m, v)[:, 0].sum()
    got = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)))(m, v)
    for i in range(3):
        a, b = m[i].clone().requires_grad_(), v[i].clone().requires_grad_()
        want = torch.autograd.grad(loss(a, b), [a, b])
        assert torch.allclose(got[0][i], want[0], atol=1e-6)
        assert torch.allclose(got[1][i], want[1], atol=1e-6)


def test_second_derivatives_are_refused_not_wrong():
    m = torch.randn(1, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(log_mean_softmax(m, torch.ones(1, 3))[0, 0], m, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        grad.sum().backward()
