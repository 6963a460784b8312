"""Negative binomials against SciPy."""

import numpy as np
import pytest
from scipy import stats

from bedl import metrics
from bedl.metrics import counts

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
