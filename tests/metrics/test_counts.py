"""Negative binomials against SciPy."""

import warnings

import mpmath
import numpy as np
import pytest
from scipy import stats

from bedl.evaluation import metrics
from bedl.evaluation.metrics import counts

MEANS = np.array([1e-3, 0.3, 1.0, 7.5, 100.0, 3e3, 1e5])
SHAPES = np.array([1e-3, 0.1, 1.0, 20.0, 1e3, 1e5, 1e7])


def law(mean, shape):
    return stats.nbinom(shape, shape / (shape + mean))


@pytest.mark.parametrize("mean", MEANS)
def test_cdf_pmf_and_quantiles_are_scipys(mean):
    std = np.sqrt(mean + mean**2 / SHAPES)
    known = law(mean, SHAPES)
    for y in sorted({0, 1, 5, 200, int(mean), int(mean + 2 * np.sqrt(mean)), int(0.9 * mean), 100_000}):
        np.testing.assert_allclose(counts.negative_binomial_cdf(y, mean, std), known.cdf(y), atol=2e-7)
        np.testing.assert_allclose(
            counts.negative_binomial_log_pmf(y, mean, std), known.logpmf(y), rtol=1e-5, atol=1e-5, err_msg=str(y)
        )
    for q in (0.01, 0.05, 0.5, 0.95, 0.99):
        found = counts.negative_binomial_quantile(q, mean, std)
        assert (known.cdf(found) >= q - 1e-6).all()
        assert (known.cdf(found - 1) <= q + 1e-6).all()


def test_no_more_variance_than_mean_is_a_poisson():
    mean = np.array([0.5, 20.0, 1e4])
    for std in (np.zeros(3), np.sqrt(mean)):
        np.testing.assert_allclose(
            counts.negative_binomial_cdf(mean, mean, std), stats.poisson(mean).cdf(np.floor(mean)), atol=1e-5
        )


def test_scores_are_means_of_scipys():
    y, mean, shape = np.array([0, 3, 40]), np.array([0.5, 5.0, 30.0]), np.array([2.0, 1.0, 10.0])
    std = np.sqrt(mean + mean**2 / shape)
    known = law(mean, shape)
    assert metrics.nll_negative_binomial(y, mean, std) == pytest.approx(-known.logpmf(y).mean())
    np.testing.assert_allclose(metrics.pit_negative_binomial(y, mean, std), known.cdf(y) - known.pmf(y) / 2, atol=1e-9)
    with pytest.raises(ValueError, match="between 0 and 1"):
        counts.negative_binomial_quantile(1.0, mean, std)


def test_the_far_end_is_quiet():
    """What a network says of rows far out may be as large as numbers get, and infinite."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        far = counts.negative_binomial_quantile(0.95, [3.0, 1e30, np.inf, np.inf], [2.0, 1e15, 1.0, np.inf])
        counts.negative_binomial_cdf([0.0, 5.0], 1e-3, [1e200, np.inf])
    assert far[0] == 7
    assert 1e30 < far[1] < 1.1e30
    assert np.isinf(far[2:]).all()


@pytest.mark.parametrize("shape", [0.05, 0.5, 3.0, 200.0])
def test_huge_counts_follow_a_gamma_law(shape):
    mean = np.array([1e8, 1e18, 1e30])[:, None]
    y = mean * np.array([1e-3, 0.4, 1.0, 2.5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = counts.negative_binomial_cdf(y, mean, mean / np.sqrt(shape))
    np.testing.assert_allclose(found, stats.gamma.cdf(y / mean, shape, scale=1 / shape), atol=3e-6)


@pytest.mark.parametrize("shape", [0.01, 2.0, 1e3, 1e8, 1e20])
@pytest.mark.parametrize("y", [1e5, 3e6, 1e12, 1e25])
def test_large_counts_against_many_digits(y, shape):
    for mean in (0.5 * y, y * (1 + 1e-9), 3 * y):
        std = np.sqrt(mean + mean**2 / shape)
        with mpmath.workdps(80):
            mean_, shape_ = counts._parameters(mean, std)  # what is left of the shape in a standard deviation
            k, m = mpmath.mpf(float(shape_)), mpmath.mpf(float(mean_))
            true = mpmath.loggamma(y + k) - mpmath.loggamma(k) - mpmath.loggamma(y + mpmath.mpf(1))
            true -= k * mpmath.log1p(m / k) + y * mpmath.log1p(k / m)
        found = float(counts.negative_binomial_log_pmf(y, mean, std))
        assert found == pytest.approx(float(true), rel=1e-6, abs=1e-6)
