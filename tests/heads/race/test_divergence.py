"""The Dirichlet divergence against torch.distributions and mpmath; its expectation against quadrature and sampling."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from bedl.heads.integrals.kl import (
    EVIDENCE_FLOOR,
    LOG_FLOOR,
    dirichlet_kl,
    expected_dirichlet_kl,
    expected_terms,
    gamma_terms,
    total_kernel,
)
from tests.heads.oracles import dirichlet_kl as oracle_kl
from tests.heads.oracles import logits

F64 = torch.float64
mpmath.mp.dps = 40


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_gamma_terms_against_mpmath(dtype):
    log_a = torch.linspace(-60, 80, 141, dtype=dtype)
    f, digamma = gamma_terms(log_a)
    for x, got_f, got_digamma in zip(log_a.tolist(), f.tolist(), digamma.tolist(), strict=True):
        a = mpmath.e ** mpmath.mpf(x)
        want_f = float(a * mpmath.digamma(a) - mpmath.loggamma(a) - a)
        want_digamma = float(mpmath.digamma(a + 1))
        assert abs(got_f - want_f) < 2e-6 * (1 + abs(want_f)), x
        assert abs(got_digamma - want_digamma) < 2e-6 * (1 + abs(want_digamma)), x


def test_divergence_against_torch_distributions():
    log_alpha = torch.linspace(-4, 6, 44, dtype=F64).view(11, 4)
    truth = oracle_kl(log_alpha.exp())
    assert torch.allclose(dirichlet_kl(log_alpha), truth, rtol=1e-6, atol=1e-6)
    assert torch.allclose(dirichlet_kl(log_alpha.float()).double(), truth, rtol=1e-5, atol=1e-5)
    assert dirichlet_kl(torch.zeros(3, 10)).abs().max() < 1e-5
    large = dirichlet_kl(torch.full((1, 10), 60.0))  # where lgamma and digamma of exp(60) have lost every digit
    exact = mpmath.e ** mpmath.mpf(60)
    truth = (
        mpmath.loggamma(10 * exact)
        - 10 * mpmath.loggamma(exact)
        - mpmath.loggamma(10)
        + 10 * (exact - 1) * (mpmath.digamma(exact) - mpmath.digamma(10 * exact))
    )
    assert large.item() == pytest.approx(float(truth), rel=1e-5)


@pytest.mark.parametrize("a", [1e-3, 0.05, 1.0, 7.0, 400.0])
def test_kernel_averages_to_the_function_of_the_total(a):
    """int a exp(-ta) kernel(log t) dt = C psi(a) - F(a), by mpmath's psi and log Gamma."""
    u = torch.linspace(-45, 6, 4001, dtype=F64) - math.log(a)
    density = torch.exp(u + math.log(a) - a * torch.exp(u))
    got = (density * total_kernel(u, 7)).sum() * (u[1] - u[0])
    want = 7 * mpmath.digamma(a) - (a * mpmath.digamma(a) - mpmath.loggamma(a) - a)
    assert got.item() == pytest.approx(float(want), rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("s", [0.0, 0.1, 1.0, 3.0, 10.0, 50.0])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_one_class_against_quadrature(s, dtype):
    m = torch.linspace(-20, 20, 41, dtype=F64)
    z = torch.linspace(-9, 9, 4001, dtype=F64)
    weight = torch.exp(-z * z / 2)
    a = torch.exp(m[:, None] + s * z) + EVIDENCE_FLOOR
    f, _ = gamma_terms(a.log())  # itself tested against mpmath above
    truth = (f - torch.digamma(a)) @ (weight / weight.sum())
    got = expected_terms(m.to(dtype), torch.full_like(m, s * s).to(dtype)).double()
    assert ((got - truth).abs() / (1 + truth.abs())).max() < 5e-4
    if s <= 1:
        assert ((got - truth).abs() / (1 + truth.abs())).max() < 2e-5


def test_one_class_gradcheck():
    m = torch.linspace(-15, 8, 30, dtype=F64, requires_grad=True)
    v = (torch.linspace(0.05, 3, 30, dtype=F64) ** 2).requires_grad_()
    assert torch.autograd.gradcheck(expected_terms, (m, v))


@pytest.mark.parametrize("n_classes", [2, 10, 100])
@pytest.mark.parametrize("offset", [-3.0, 0.0, 4.0])
def test_known_evidence(n_classes, offset):
    m = torch.randn(10, n_classes, dtype=F64, generator=torch.Generator().manual_seed(1)) + offset
    truth = oracle_kl(m.exp() + EVIDENCE_FLOOR)
    components = 6 if n_classes < 30 else 8
    got = expected_dirichlet_kl(m, torch.zeros_like(m), components=components)
    assert ((got - truth).abs() < 5e-4 * (n_classes + truth)).all()


@pytest.mark.parametrize("n_classes", [2, 10])
@pytest.mark.parametrize("scale, offset, s, spread", [(1, 0, 0.3, 1), (1, -2, 1, 3), (3, 3, 3, 10), (2, 0, 8, 20)])
def test_expectation_against_sampling(n_classes, scale, offset, s, spread):
    m, v = logits(n_classes, 3, scale, s, spread, seed=7)
    m = m + offset
    g = torch.Generator().manual_seed(0)
    f = m + v.sqrt() * torch.randn(20_000, *m.shape, generator=g, dtype=F64)
    kl = oracle_kl(f.exp() + EVIDENCE_FLOOR)
    # above exp(17) the float64 lgamma of the oracle loses its digits; such draws use the form tested above
    kl = torch.where((f > 15).any(-1), dirichlet_kl(torch.logaddexp(f, f.new_tensor(LOG_FLOOR))), kl)
    mean, error = kl.mean(0), kl.std(0) / len(kl) ** 0.5
    got = expected_dirichlet_kl(m, v)
    assert ((got - mean).abs() < 4.5 * error + 1e-3 * mean + 5e-4 * n_classes).all()
    single = expected_dirichlet_kl(m.float(), v.float()).double()
    assert torch.allclose(single, got, rtol=2e-4, atol=1e-3)


@pytest.mark.parametrize("s", [0.2, 1.0, 4.0])
def test_gradient_against_sampling(s):
    """d E[KL] / dm = E[dKL/df], by autograd through the known-evidence form, with a standard error."""
    m, v = logits(5, 4, 1.5, s, 4, seed=9)
    g = torch.Generator().manual_seed(0)
    z = torch.randn(20_000, *m.shape, generator=g, dtype=F64)
    f = (m + v.sqrt() * z).requires_grad_()
    (slope,) = torch.autograd.grad(dirichlet_kl(torch.logaddexp(f, f.new_tensor(LOG_FLOOR))).sum(), f)
    by_v = slope * z / (2 * v.sqrt())
    a, b = m.clone().requires_grad_(), v.clone().requires_grad_()
    got = torch.autograd.grad(expected_dirichlet_kl(a, b).sum(), [a, b])
    for ours, draws in zip(got, (slope, by_v), strict=True):
        mean, error = draws.mean(0), draws.std(0) / len(z) ** 0.5
        assert ((ours - mean).abs() < 4.5 * error + 2e-3 * mean.abs() + 2e-3).all()


def test_bounded_where_the_plain_form_explodes():
    """exp(-m + v/2) = e^30 for m = -10, s = 6.3; the floor keeps it below 1000 per class, with a gradient upwards."""
    m = torch.full((1, 3), -10.0, requires_grad=True)
    v = torch.full((1, 3), 40.0, requires_grad=True)
    kl = expected_dirichlet_kl(m, v)
    assert 100 < kl.item() < 3 / EVIDENCE_FLOOR
    grad_m, grad_v = torch.autograd.grad(kl.sum(), [m, v])
    assert (grad_m < -1).all()
    assert grad_v.isfinite().all()


def test_finite_at_the_extremes_in_float32():
    g = torch.Generator().manual_seed(0)
    m = 1000 * (2 * torch.rand(200, 6, generator=g) - 1) * torch.rand(200, 1, generator=g) ** 3
    v = (1000 * torch.rand(200, 6, generator=g) ** 5).square()
    v[:40] = 0
    m, v = m.requires_grad_(), v.requires_grad_()
    kl = expected_dirichlet_kl(m, v)
    assert kl.isfinite().all()
    assert (kl > -1e-2).all()
    for grad in torch.autograd.grad(kl.sum(), [m, v]):
        assert grad.isfinite().all()
