"""Counts against quadrature of their definition, SciPy's laws and sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from bedl import Gamma
from bedl.heads import CountPredictive, Sampled
from bedl.heads.gamma import Outputs, log_expected_pmf, rate_moments
from bedl.heads.predictive import mixture
from bedl.moments import Moments

KNEE = 13.0
FLOOR = 1e-3  # of the evidence
# count; mean and std of log mean; mean and std of log shape
LIKELIHOODS = [
    (0, 0.0, 0.0, 0.0, 0.0), (7, 2.0, 0.3, 1.0, 0.0), (0, -3.0, 3.0, 7.0, 0.1), (0, 4.0, 3.0, 2.0, 3.0),
    (1, 11.0, 3.0, 7.0, 3.0), (300, 4.0, 0.01, 2.0, 3.0), (10_000, 0.0, 3.0, 7.0, 3.0), (100_000, 0.0, 3.0, 2.0, 0.0),
    (100_000, 11.0, 0.3, 7.0, 0.1), (100_000, -3.0, 0.0, -2.0, 3.0), (12, 2.5, 0.0, 30.0, 0.0),
]  # fmt: skip

AROUND_THE_KNEE = [
    (0.0, 0.5, 1.0, 0.5), (2.0, 1.5, -1.0, 1.0), (1.0, 3.0, 0.0, 0.2), (5.0, 0.01, 2.0, 0.0), (2.9, 1.0, 0.0, 0.0),
    (6.0, 0.5, 1.0, 3.0), (3.0, 8.0, 1.0, 1.0),
]  # fmt: skip


def log_pmf(y, f1, f2, knee=KNEE):
    k = np.minimum(np.exp(f2) + FLOOR, math.exp(20))
    mu = np.exp(np.minimum(f1, knee)) * (1 + np.maximum(f1 - knee, 0))
    return stats.nbinom.logpmf(y, k, k / (k + mu)) if np.ndim(mu + k) == 0 else (
        special.gammaln(y + k) - special.gammaln(k) - special.gammaln(y + 1)
        - k * np.log1p(mu / k) - y * np.log1p(k / mu)
    )  # fmt: skip


def truth(y, m1, s1, m2, s2):
    """The log of the integral, by a trapezoidal rule on a window that zooms in on what matters."""
    ends = [[m1 - 60 * s1, m1 + 60 * s1], [min(m2 - 60 * s2, -20.0), m2 + 60 * s2]]
    if y:
        ends[0] = [min(ends[0][0], math.log(y) - 1), max(ends[0][1], math.log(y) + 1)]
    sizes, moments = (3001, 501), ((m1, s1), (m2, s2))
    for _ in range(12):
        axes = [
            np.linspace(*end, n) if s else np.array([m]) for end, n, (m, s) in zip(ends, sizes, moments, strict=True)
        ]
        values = log_pmf(y, axes[0][:, None], axes[1][None, :])
        for axis, (x, (m, s)) in enumerate(zip(axes, moments, strict=True)):
            density = stats.norm.logpdf(x, m, s) + math.log(x[1] - x[0]) if s else np.zeros(1)
            values = values + (density[:, None] if axis == 0 else density[None, :])
        matters, before = values > values.max() - 40, ends
        ends = []
        for axis, x in enumerate(axes):
            where = np.flatnonzero(matters.any(1 - axis))
            ends.append([x[max(where[0] - 1, 0)], x[min(where[-1] + 1, len(x) - 1)]])
        if all(b - a > 0.7 * (d - c) or not s for (a, b), (c, d), (_, s) in zip(ends, before, moments, strict=True)):
            break
    return special.logsumexp(values)


def outputs(m1, s1, m2, s2, knee=KNEE, dtype=torch.float64) -> Outputs:
    values = (m1, s1**2, m2, s2**2, knee)
    return Outputs(*(torch.tensor([value], dtype=dtype) for value in values))


@pytest.mark.parametrize("case", LIKELIHOODS)
def test_the_likelihood_is_that_of_quadrature(case):
    y, *f = case
    expected = truth(*case)
    assert log_expected_pmf(torch.tensor([y]), outputs(*f)).item() == pytest.approx(expected, rel=1e-4, abs=1e-4)
    single = log_expected_pmf(torch.tensor([y]), outputs(*f, dtype=torch.float32))
    assert single.item() == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_known_outputs_are_scipys_negative_binomial():
    f = torch.tensor([[1.5, 0.5], [0.0, 2.0], [3.0, -1.0]], dtype=torch.float64)
    y = torch.tensor([3, 0, 60])
    k = f[:, 1].exp().numpy() + FLOOR
    known = stats.nbinom(k, k / (k + f[:, 0].exp().numpy()))
    for found in (Gamma(1).log_marginal(f, y), Gamma(1).given(f).log_prob(y)):
        np.testing.assert_allclose(found, known.logpmf(y), rtol=1e-6)
    p = Gamma(1)(f)
    np.testing.assert_allclose(p.mean[:, 0], known.mean(), rtol=1e-6)
    np.testing.assert_allclose(p.variance[:, 0], known.var(), rtol=1e-5)
    np.testing.assert_allclose(p.cdf(y)[:, 0], known.cdf(y), atol=1e-6)
    for end, q in zip(p.interval(0.8), (0.1, 0.9), strict=True):
        np.testing.assert_array_equal(end[:, 0], known.ppf(q))
    with pytest.raises(ValueError, match="between 0 and 1"):
        p.interval(90)


@pytest.mark.parametrize("case", AROUND_THE_KNEE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_parts_of_the_variance_are_those_of_quadrature(case, dtype):
    """Below a knee of 3, around it and above."""
    m1, s1, m2, s2 = case
    z = np.linspace(-12, 12, 200_001)
    weight = np.exp(-z * z / 2)
    weight /= weight.sum()
    f1 = m1 + s1 * z
    mu = np.exp(np.minimum(f1, 3)) * (1 + np.maximum(f1 - 3, 0))
    inverse = weight @ (1 / (np.exp(m2 + s2 * z) + FLOOR))
    mean, square = weight @ mu, weight @ mu**2
    found = rate_moments(outputs(*case, 3.0, dtype))
    expected = (mean, weight @ (mu - mean) ** 2, square * inverse)
    np.testing.assert_allclose([x.item() for x in found], expected, rtol=2e-3)
    assert found[0].item() == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize("case", [(0.3, 0.0, 0.7, 0.0), (-1.0, 0.5, -0.5, 0.4), (1.0, 1.0, 2.0, 2.0)])
def test_the_divergence_is_that_of_quadrature(case):
    m1, s1, m2, s2 = case
    head = Gamma(1, prior_mean=2.0)
    z, weight = np.polynomial.hermite_e.hermegauss(60)
    weight = weight / weight.sum()

    def divergence(f1, f2):
        k = math.exp(f2) + FLOOR
        post, prior = stats.gamma(k, scale=math.exp(f1) / k), stats.expon(scale=2.0)
        cross = math.exp(f1) / 2.0 + math.log(2.0)  # of the prior's -log density, which is linear
        assert prior.logpdf(1.0) == pytest.approx(-0.5 - math.log(2.0))
        return cross - float(post.entropy())

    expected = sum(
        a * b * divergence(m1 + s1 * x, m2 + s2 * w)
        for x, a in zip(z, weight, strict=True) for w, b in zip(z, weight, strict=True) if a * b > 1e-14
    )  # fmt: skip
    f = Moments(torch.tensor([[m1, m2]], dtype=torch.float64), torch.tensor([[s1**2, s2**2]], dtype=torch.float64))
    assert head.kl(f).item() == pytest.approx(expected, rel=1e-3)
    with pytest.raises(ValueError, match="matter of classes"):
        head.kl(f, torch.tensor([[1]]), "misleading")


def test_sampling_agrees():
    torch.manual_seed(0)
    n, head, y = 60_000, Gamma(2), torch.tensor([[4, 0]])
    f = Moments(torch.tensor([[1.0, 0.5, 1.0, 0.0]]), torch.tensor([[0.3, 0.1, 0.2, 0.3]]))
    closed = head(f)
    draws = closed.sample(n).double()[:, 0]
    error = 5 * draws.std(0) / math.sqrt(n)
    assert ((draws.mean(0) - closed.mean[0]).abs() < error).all()
    np.testing.assert_allclose(draws.var(0), closed.variance[0], rtol=0.06)
    assert math.log((draws == y).all(1).double().mean()) == pytest.approx(head.log_marginal(f, y).item(), abs=0.1)
    drawn = Sampled(head, 20_000)
    assert drawn.log_marginal(f, y).item() == pytest.approx(head.log_marginal(f, y).item(), abs=0.02)
    np.testing.assert_allclose(drawn(f).variance, closed.variance, rtol=0.05)
    np.testing.assert_allclose(drawn.kl(f), head.kl(f), rtol=0.03)


def test_members_are_mixed():
    f = torch.tensor([[[0.0, 1.0]], [[2.0, 1.0]]], dtype=torch.float64)
    one, two = (Gamma(1)(Moments(part, 0.1)) for part in f)
    both = mixture([one, two])
    assert isinstance(both, CountPredictive)
    means = torch.stack([one.mean, two.mean])
    torch.testing.assert_close(both.model, (one.model + two.model) / 2 + means.var(0, correction=0))
    torch.testing.assert_close(both.data + both.distributional + both.model, both.total)
    y = torch.tensor([[2]])
    expected = torch.logaddexp(one.log_prob(y), two.log_prob(y)) - math.log(2)
    torch.testing.assert_close(both.log_prob(y), expected)
    paper = both.paper_split()
    torch.testing.assert_close(paper.aleatoric + paper.epistemic, both.variance)
    torch.testing.assert_close(both.log_prob(torch.tensor([[[2]], [[5]]]))[0], expected)
    assert "model_std" in both.to_frame()


@pytest.mark.parametrize("y", [0, 3, 100_000])
@pytest.mark.parametrize("mean", [-60.0, 0.0, 60.0])
@pytest.mark.parametrize("std", [0.0, 1e-6, 1.0, 20.0])
def test_extremes_are_finite_with_their_gradients(y, mean, std):
    loc = torch.tensor([[mean, mean], [mean, 0.0], [0.0, mean]], requires_grad=True)
    variance = torch.full((3, 2), std**2, requires_grad=True)
    head, f = Gamma(1), Moments(loc, variance)
    log_p, kl = head.log_marginal_and_kl(f, torch.full((3, 1), y))
    (log_p + kl).sum().backward()
    for value in (log_p, kl, loc.grad, variance.grad, *head(f.detach()).outputs().values()):
        assert value.isfinite().all()


@pytest.mark.parametrize("case", [(7, 2.0, 0.3, 1.0, 0.5), (0, 1.0, 2.0, 0.0, 1.0), (500, 5.0, 1.0, 2.0, 1.0)])
def test_gradients_are_those_of_the_integral(case):
    y, *f = case
    at = [x.clone().requires_grad_() for x in outputs(*f)[:4]]
    log_expected_pmf(torch.tensor([y]), Outputs(*at, torch.tensor([KNEE]))).sum().backward()
    for i in range(4):
        ends = []
        for sign in (1, -1):
            moved = [f[0], f[1] ** 2, f[2], f[3] ** 2]
            moved[i] += sign * 1e-3
            ends.append(truth(y, moved[0], math.sqrt(moved[1]), moved[2], math.sqrt(moved[3])))
        assert at[i].grad.item() == pytest.approx((ends[0] - ends[1]) / 2e-3, rel=1e-3, abs=1e-3)


def test_many_counts_are_computed_in_parts(monkeypatch):
    f = Moments(torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), 0.3)
    y = torch.arange(40).reshape(20, 2)
    whole = Gamma(2).log_marginal(f, y)
    monkeypatch.setattr("bedl.heads.gamma.COUNTS_PER_CHUNK", 7)
    torch.testing.assert_close(Gamma(2).log_marginal(f, y), whole)


def test_it_starts_at_the_level_of_the_targets():
    head = Gamma(2)
    y = torch.tensor([[10.0, 0.0], [30.0, 0.0]])
    head.prepare(y)
    torch.testing.assert_close(head(torch.zeros(1, 4)).mean, torch.tensor([[20.0, 1e-3]]), rtol=1e-4, atol=0)
    # beyond e times the largest target the mean is linear: never e^20
    assert head(torch.tensor([[20.0, 0.0, 0.0, 0.0]])).mean[0, 0] < 30 * math.e * 21
    assert head(Moments(torch.zeros(1, 4), 100.0)).mean[0, 0] < 30 * math.e * 10
    again = Gamma(2)
    again.load_state_dict(head.state_dict())
    torch.testing.assert_close(again(torch.zeros(1, 4)).mean, head(torch.zeros(1, 4)).mean)


def test_wrong_counts_name_the_remedy():
    for wrong in (-1, 0.5):
        with pytest.raises(ValueError, match="whole numbers from 0 on"):
            Gamma(1).log_marginal(torch.zeros(1, 2), torch.tensor([[wrong]]))
    with pytest.raises(ValueError, match="do not fit"):
        Gamma(2).log_marginal(torch.zeros(1, 4), torch.tensor([[1]]))
    with pytest.raises(ValueError, match="at least 1"):
        Gamma(0)
    with pytest.raises(ValueError, match="prior_mean must be positive"):
        Gamma(1, prior_mean=0.0)
