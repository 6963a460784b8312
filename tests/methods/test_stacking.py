"""Closed forms behind the stack, against scipy, scikit-learn and hand examples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from sklearn.linear_model import BayesianRidge

from bedl.methods.stack.weights import RATIOS, bayesian_linear, held_out_quantile, interval_scores, mixture_weights


def table(n: int = 60, d: int = 4, noise: float = 0.5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X @ rng.normal(size=d) + 3 + noise * rng.normal(size=n)


def densities(n: int = 200, seed: int = 0) -> torch.Tensor:
    y = np.random.default_rng(seed).standard_t(3, size=n)
    return torch.tensor(np.stack([scipy.stats.norm(0, s).logpdf(y) for s in (0.5, 1, 2, 4)], 1))


def test_em_finds_the_most_likely_weights() -> None:
    L = densities()

    def cost(logits: np.ndarray) -> float:
        w = np.exp(logits - scipy.special.logsumexp(logits))
        return -np.log(np.exp(L.numpy()) @ w).mean()

    best = scipy.optimize.minimize(cost, np.zeros(4), tol=1e-10)
    found = mixture_weights(L, steps=2000, prior=0.0)
    assert found.sum().item() == pytest.approx(1)
    assert cost(np.log(found.numpy() + 1e-300)) == pytest.approx(best.fun, abs=1e-6)


def test_em_never_loses_likelihood() -> None:
    L = densities()
    likelihood = [float(torch.log(L.exp() @ mixture_weights(L, steps=k, prior=0.0)).sum()) for k in range(30)]
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(likelihood))
    assert likelihood[-1] > likelihood[0] + 1


def test_em_of_one_step_by_hand() -> None:
    L = torch.tensor([[3.0, 1.0], [1.0, 1.0]], dtype=torch.float64).log()
    torch.testing.assert_close(mixture_weights(L, steps=1, prior=0.0), torch.tensor([0.625, 0.375]).double())
    torch.testing.assert_close(mixture_weights(L, steps=1, prior=2.0), torch.tensor([0.5625, 0.4375]).double())


def test_a_weight_of_two_is_a_point_twice() -> None:
    L = densities(40)
    weight = torch.ones(40)
    weight[:7] = 2
    torch.testing.assert_close(mixture_weights(L, weight), mixture_weights(torch.cat([L, L[:7]])))
    X, y = (torch.tensor(part) for part in table(40))
    once = bayesian_linear(X, y[:, None], weight)
    twice = bayesian_linear(torch.cat([X, X[:7]]), torch.cat([y, y[:7]])[:, None])
    for mine, theirs in zip(once, twice, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("n", "d", "noise"), [(60, 4, 0.5), (25, 12, 2.0), (400, 3, 0.1)])
def test_linear_regression_as_scikit_learn_has_it(n: int, d: int, noise: float) -> None:
    X, y = table(n, d, noise)
    theirs = BayesianRidge(tol=1e-10, max_iter=5000).fit(X, y)
    ours = bayesian_linear(torch.tensor(X), torch.tensor(y)[:, None])
    scale = np.abs(theirs.coef_).max()
    # the ratio of precisions lies on a grid, a quarter apart in its logarithm
    np.testing.assert_allclose(ours.coefficients[0], theirs.coef_, atol=0.03 * scale)
    np.testing.assert_allclose(ours.noise[0] * (n - 1) / n, 1 / theirs.alpha_, rtol=0.06)
    line = ours.intercept - ours.coefficients @ ours.centre
    assert line.item() == pytest.approx(theirs.intercept_, abs=0.03 * scale)


def test_the_ratio_maximises_the_evidence_and_the_posterior_is_the_closed_form() -> None:
    X, y = table(30, 3, 1.0)
    A, t = X - X.mean(0), y - y.mean()

    def evidence(ratio: float) -> float:
        shape = np.eye(30) + A @ A.T / ratio
        variance = t @ np.linalg.solve(shape, t) / 30
        return scipy.stats.multivariate_normal(np.zeros(30), variance * shape).logpdf(t)

    best = RATIOS[int(np.argmax([evidence(float(ratio)) for ratio in RATIOS]))].item()
    precision = A.T @ A + best * np.eye(3)
    ours = bayesian_linear(torch.tensor(X), torch.tensor(y)[:, None])
    np.testing.assert_allclose(ours.coefficients[0], np.linalg.solve(precision, A.T @ t), rtol=1e-8)
    np.testing.assert_allclose(ours.covariance[0], ours.noise.item() * np.linalg.inv(precision), rtol=1e-8, atol=1e-12)


def test_more_columns_than_rows_and_columns_that_repeat() -> None:
    X, y = table(8, 30)
    for columns in (X, np.repeat(X[:, :3], 2, axis=1), np.zeros((8, 2))):
        fitted = bayesian_linear(torch.tensor(columns), torch.tensor(y)[:, None])
        assert all(part.isfinite().all() for part in fitted)
        assert (torch.linalg.eigvalsh(fitted.covariance[0]) > -1e-10).all()
        assert (fitted.noise > 0).all()


def test_quantiles_of_scores_cover() -> None:
    """A fresh score lies below the c-quantile of n others with probability ceil(c (n + 1)) / (n + 1)."""
    rng = np.random.default_rng(0)
    n, c, trials = 19, 0.9, 20_000
    scores = torch.tensor(np.sort(rng.exponential(size=(n, trials)), 0))
    mass = torch.arange(1.0, n + 1)[:, None].expand(n, trials)
    share = (torch.tensor(rng.exponential(size=trials)) <= held_out_quantile(scores, mass, c)).double().mean()
    assert share.item() == pytest.approx(18 / 20, abs=4 * np.sqrt(0.09 / trials))


def test_rows_held_out_do_not_shrink_what_they_do_not_have():
    g = torch.Generator().manual_seed(0)
    error = torch.randn(2000, 1, generator=g).abs() * torch.where(torch.rand(2000, 1, generator=g) < 0.05, 1.0, 0.1)
    variance, beyond = torch.full((2000, 1), 0.06), torch.zeros(2000, 1)  # heavy tails: 95 of 100 rows are far closer
    scores, mass, widening = interval_scores(error, variance, beyond, torch.ones(2000))
    factor = held_out_quantile(scores, mass, 0.9)
    assert factor.item() < 1.0
    far = torch.tensor([[4.0]])  # a row of which nothing is known
    reach = factor * (0.06 + widening * far).sqrt()
    assert reach.item() == pytest.approx(1.6449 * 2.0, rel=0.01)


def test_what_rows_held_out_have_of_it_counts_in_their_scores():
    error, variance = torch.linspace(0.01, 1, 100)[:, None], torch.ones(100, 1)
    beyond = torch.where(torch.arange(100)[:, None] % 2 == 0, 0.5, 0.0)
    scores, mass, widening = interval_scores(error, variance, beyond, torch.ones(100))
    again = (error / (variance + widening * beyond).sqrt()).sort(0).values
    torch.testing.assert_close(scores, again)
    assert mass[-1].item() == 100
    wide = interval_scores(3 * error, variance, beyond, torch.ones(100))[2]
    assert wide.item() == 1.0  # rows held out that are further off than a normal's: nothing to undo
    assert interval_scores(error[:3], variance[:3], beyond[:3], torch.ones(3))[2].item() == 1.0  # too few to say
