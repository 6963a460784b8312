"""log p of the true class and the expected KL, with derivatives that the forward pass computes."""

from __future__ import annotations

import pytest
import torch

from bedl import Dirichlet, Moments
from bedl.heads.integrals.kl import expected_dirichlet_kl, log_marginal, log_marginal_and_expected_kl
from bedl.heads.integrals.nodes import log_mean_softmax
from tests.heads.oracles import logits


def case():
    m, v = logits(10, 20, 2.0, 6.0, 20)
    v[3] = 1e-6  # which the expansion settles
    y = torch.arange(20) % 10
    return m.requires_grad_(), v.requires_grad_(), y


def chosen(values, y):
    return values.gather(-1, y[:, None])[:, 0]


def test_log_marginal_is_that_of_all_classes():
    m, v, y = case()
    weight = torch.linspace(-1, 2, 20, dtype=m.dtype)
    one, all_of_them = log_marginal(m, v, y), chosen(log_mean_softmax(m, v), y)
    torch.testing.assert_close(one, all_of_them)
    found = torch.autograd.grad((weight * one).sum(), [m, v])
    expected = torch.autograd.grad((weight * all_of_them).sum(), [m, v])
    torch.testing.assert_close(found, expected)


def test_both_on_one_race():
    m, v, y = case()
    log_p, kl = log_marginal_and_expected_kl(m, v, y)
    assert (log_p.exp() - chosen(log_mean_softmax(m, v), y).exp()).abs().max() < 2e-4
    torch.testing.assert_close(kl, expected_dirichlet_kl(m, v))
    weight = torch.linspace(-1, 2, 20, dtype=m.dtype)
    found = torch.autograd.grad((weight * kl).sum(), [m, v], retain_graph=True)
    expected = torch.autograd.grad((weight * expected_dirichlet_kl(m, v)).sum(), [m, v])
    torch.testing.assert_close(found, expected)
    # the sum's derivatives are the sum of the derivatives
    both = torch.autograd.grad((weight * (kl - log_p)).sum(), [m, v], retain_graph=True)
    of_p = torch.autograd.grad((weight * log_p).sum(), [m, v])
    torch.testing.assert_close(both, tuple(a - b for a, b in zip(found, of_p, strict=True)))


def test_derivatives_against_differences():
    m, v, y = case()
    for function in (log_marginal, lambda *a: log_marginal_and_expected_kl(*a)[1]):
        by_m, by_v = torch.autograd.grad(function(m, v, y).sum(), [m, v])
        for x, by in ((m, by_m), (v, by_v)):
            for k in (0, 4):
                step = torch.zeros_like(x)
                step[:, k] = 1e-4 * (1 + x[:, k].detach().abs())
                step[3] = 0
                arguments = [(m + s, v) if x is m else (m, v + s) for s in (step, -step)]
                high, low = (function(*a, y).detach() for a in arguments)
                change = torch.where(step[:, k] > 0, (high - low) / (2 * step[:, k]), by[:, k])
                assert (change - by[:, k]).abs().max() < 2e-3 * (1 + by[:, k].abs().max())


def test_without_variance_it_is_the_softmax():
    m, v, y = case()
    zero = torch.zeros_like(v)
    exact = chosen(torch.log_softmax(m, -1), y)
    torch.testing.assert_close(log_marginal(m, zero, y), exact)
    torch.testing.assert_close(log_marginal_and_expected_kl(m, zero, y)[0], exact)


def test_many_points_in_chunks_and_second_derivatives_refused(monkeypatch):
    head = Dirichlet(10)
    m, v, y = (torch.cat([t] * 4) for t in case())  # 80 points, 32 at a time
    whole = head.log_marginal_and_kl(Moments(m, v), y)
    monkeypatch.setattr("bedl.heads.dirichlet.MAX_NUMEL_ON_CPU", 1)
    parts = head.log_marginal_and_kl(Moments(m, v), y)
    torch.testing.assert_close(whole, parts)
    (first,) = torch.autograd.grad(parts[0].sum(), [m], create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        first.sum().backward()
