"""Variance of softmax(f) and expected entropy against quadrature and sampling."""

from __future__ import annotations

import pytest
import torch

from bedl.heads.integrals.moments import softmax_spread
from bedl.heads.integrals.nodes import log_mean_softmax
from tests.heads.oracles import exact, logits


@pytest.mark.parametrize("n_classes", [2, 10])
@pytest.mark.parametrize("s", [0.03, 0.1, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("spread", [1, 30])
def test_agrees_with_quadrature(n_classes, s, spread):
    n = 8 // n_classes + 1
    m, v = logits(n_classes, n, scale=2.0, s=s, spread=spread, seed=5)
    truth = exact(m, v)
    m, v = m.float(), v.float()
    variance, entropy = softmax_spread(m, v, log_mean_softmax(m, v))
    # 2e-4 of the probabilities themselves is in the bound p (1 - p)
    assert (variance - (truth.second - truth.p.square())).abs().max() < 3e-4
    assert (entropy - truth.expected_entropy).abs().max() < 1.5e-3


@pytest.mark.parametrize("s", [0.01, 0.03, 0.09])
def test_small_variances_keep_their_digits(s):
    """A certain model's mutual information is of the order of s^2; it must not drown in the race's error."""
    m, v = logits(4, 5, scale=1.0, s=s, spread=1)
    truth = exact(m, v)
    log_p = log_mean_softmax(m, v)
    variance, entropy = softmax_spread(m, v, log_p)
    assert torch.allclose(variance, truth.second - truth.p.square(), rtol=3 * s * s + 1e-3, atol=0.1 * s**4)
    information = -(truth.p * truth.p.log()).sum(-1) - truth.expected_entropy
    ours = -(log_p.exp() * log_p).sum(-1) - entropy
    assert torch.allclose(ours, information, rtol=4 * s * s + 1e-3)


def test_agrees_with_sampling():
    m, v = logits(6, 3, scale=1.5, s=2.0, spread=5, seed=8)
    g = torch.Generator().manual_seed(0)
    log_s = torch.log_softmax(m + v.sqrt() * torch.randn(200_000, *m.shape, generator=g, dtype=m.dtype), -1)
    s = log_s.exp()
    variance, entropy = softmax_spread(m, v, log_mean_softmax(m, v))
    deviation = (s - s.mean(0)).square()
    assert ((variance - deviation.mean(0)).abs() < 5 * deviation.std(0) / 200_000**0.5 + 1e-4).all()
    conditional = -(s * log_s).sum(-1)
    assert ((entropy - conditional.mean(0)).abs() < 5 * conditional.std(0) / 200_000**0.5 + 5e-4).all()


def test_bounds_hold_everywhere():
    g = torch.Generator().manual_seed(0)
    m = 300 * torch.randn(200, 5, generator=g) * torch.rand(200, 1, generator=g) ** 4
    v = (1000 * torch.rand(200, 5, generator=g) ** 6).square()
    v[:20] = 0
    log_p = log_mean_softmax(m, v)
    variance, entropy = softmax_spread(m, v, log_p)
    p = log_p.exp()
    assert (variance >= 0).all()
    assert (variance <= p * -torch.expm1(log_p) + 1e-12).all()
    assert (variance[:20] == 0).all()
    assert (entropy >= 0).all()
    assert (entropy <= -(p * log_p).sum(-1) + 1e-6).all()


def test_differentiable():
    m, v = logits(4, 3, scale=1.0, s=1.0, spread=3)
    m, v = m.requires_grad_(), v.requires_grad_()
    variance, entropy = softmax_spread(m, v, log_mean_softmax(m, v))
    grads = torch.autograd.grad(variance.sum() + entropy.sum(), [m, v])
    step = 1e-4
    moved = softmax_spread(m, v + step, log_mean_softmax(m, v + step))
    change = (moved[0].sum() + moved[1].sum() - variance.sum() - entropy.sum()) / step
    assert grads[1].sum().item() == pytest.approx(change.item(), rel=0.03)
