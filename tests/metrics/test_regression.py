"""Regression scores against scikit-learn, SciPy and numerical integration."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from sklearn import metrics as sk

from bedl.evaluation import metrics
from bedl.evaluation.metrics import MetricError
from bedl.evaluation.metrics._checks import normal_cdf

RNG = np.random.default_rng(0)
Y = RNG.normal(3, 2, 40)
MEAN = Y + RNG.normal(0, 1, 40)
STD = RNG.uniform(0.3, 2, 40)


def test_point_scores_agree_with_scikit_learn():
    assert metrics.rmse(Y, MEAN) == pytest.approx(sk.root_mean_squared_error(Y, MEAN), rel=1e-13)
    assert metrics.mae(Y, MEAN) == pytest.approx(sk.mean_absolute_error(Y, MEAN), rel=1e-13)
    assert metrics.r2(Y, MEAN) == pytest.approx(sk.r2_score(Y, MEAN), rel=1e-13)


def test_normal_cdf_agrees_with_scipy_in_both_tails():
    z = np.linspace(-37, 9, 2001)
    np.testing.assert_allclose(normal_cdf(z), stats.norm.cdf(z), rtol=1e-12)
    long = RNG.normal(size=(70_001, 2))  # more than one part
    np.testing.assert_allclose(normal_cdf(long), stats.norm.cdf(long), rtol=1e-12)


def test_nll_and_pit_agree_with_scipy():
    assert metrics.nll_normal(Y, MEAN, STD) == pytest.approx(-stats.norm.logpdf(Y, MEAN, STD).mean(), rel=1e-13)
    np.testing.assert_allclose(metrics.pit_normal(Y, MEAN, STD), stats.norm.cdf(Y, MEAN, STD), rtol=1e-12)


def crps_by_integration(y, cdf):
    """∫ (F(x) − [y ≤ x])² dx, by its definition."""
    below = integrate.quad(lambda x: cdf(x) ** 2, -60, y, epsabs=1e-11, limit=500)[0]
    above = integrate.quad(lambda x: (1 - cdf(x)) ** 2, y, 60, epsabs=1e-11, limit=500)[0]
    return below + above


@pytest.mark.parametrize("y, mean, std", [(0.0, 0.0, 1.0), (3.0, -1.0, 0.5), (-7.0, 2.0, 3.0)])
def test_crps_normal_is_the_integral(y, mean, std):
    expected = crps_by_integration(y, lambda x: stats.norm.cdf(x, mean, std))
    assert metrics.crps_normal([y], [mean], [std]) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("weights", [None, [0.2, 0.5, 0.3]])
def test_crps_mixture_is_the_integral(weights):
    means, stds, y = np.array([[-2.0, 0.5, 4.0]]), np.array([[0.5, 1.0, 2.0]]), 1.3
    w = np.full(3, 1 / 3) if weights is None else np.array(weights)
    expected = crps_by_integration(y, lambda x: float(stats.norm.cdf(x, means[0], stds[0]) @ w))
    assert metrics.crps_mixture([y], means, stds, weights) == pytest.approx(expected, abs=1e-8)


def test_crps_without_spread_is_the_ensemble_formula():
    """Members without a spread of their own are an ensemble of points: E|X − y| − ½ E|X − X'|."""
    members, y = RNG.normal(size=(6, 5)), RNG.normal(size=6)
    pairs = np.abs(members[:, :, None] - members[:, None, :]).mean((1, 2))
    expected = (np.abs(members - y[:, None]).mean(1) - pairs / 2).mean()
    assert metrics.crps_mixture(y, members, np.zeros((6, 5))) == pytest.approx(expected, rel=1e-12)


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(0.01, 5), st.floats(0.1, 10))
def test_crps_scales_with_the_unit_and_lies_below_the_absolute_error_at_std_zero(y, mean, std, unit):
    score = metrics.crps_normal([y], [mean], [std])
    assert score >= 0
    assert metrics.crps_normal([y * unit], [mean * unit], [std * unit]) == pytest.approx(score * unit, rel=1e-9)
    assert metrics.crps_mixture([y], [[mean]], [[std]]) == pytest.approx(score, rel=1e-9, abs=1e-12)
    assert metrics.crps_normal([y], [mean], [0.0]) == abs(y - mean)


def test_calibration_curve_counts_targets_inside_scipys_intervals():
    pit = metrics.pit_normal(Y, MEAN, STD)
    nominal, observed = metrics.calibration_curve(pit)
    for level, share in zip(nominal, observed, strict=True):
        lower, upper = stats.norm.interval(level, MEAN, STD)
        assert share == metrics.coverage(Y, lower, upper)
    assert metrics.calibration_error(pit) == pytest.approx(np.abs(observed - nominal).mean())


def test_a_calibrated_prediction_has_coverage_as_promised():
    n = 40_000
    y = RNG.normal(size=n)
    nominal, observed = metrics.calibration_curve(metrics.pit_normal(y, np.zeros(n), np.ones(n)))
    assert np.all(np.abs(observed - nominal) < 4.5 * np.sqrt(nominal * (1 - nominal) / n))


def test_a_pit_on_the_end_of_an_interval_is_inside():
    assert metrics.calibration_curve([0.05, 0.95], [0.9]).observed == [1.0]
    assert metrics.calibration_curve([0.0, 1.0], [1.0]).observed == [1.0]


def test_intervals():
    lower, upper = stats.norm.interval(0.9, MEAN, STD)
    assert metrics.interval_width(lower, upper) == pytest.approx(2 * 1.6448536269514722 * STD.mean())
    assert metrics.coverage([1.0, 2.0], [1.0, 0.0], [3.0, 2.0]) == 1.0


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: metrics.rmse([], []), "empty"),
        (lambda: metrics.rmse([1.0, math.nan], [1.0, 2.0]), "y has 1 of 2 values that are NaN"),
        (lambda: metrics.mae([1.0], [math.inf]), "infinite"),
        (lambda: metrics.rmse(np.zeros(3), np.zeros((3, 1))), "ravel"),
        (lambda: metrics.rmse(["a"], [1.0]), "not numbers"),
        (lambda: metrics.r2([1.0, 1.0], [1.0, 2.0]), "constant"),
        (lambda: metrics.r2([0.1] * 3, [1.0, 2.0, 3.0]), "constant"),
        (lambda: metrics.nll_normal([1.0], [1.0], [0.0]), "not positive"),
        (lambda: metrics.crps_normal([1.0], [1.0], [-1.0]), "below 0"),
        (lambda: metrics.crps_mixture([1.0], [[1.0]], [[1.0]], [0.5]), "sum 1"),
        (lambda: metrics.crps_mixture([1.0, 2.0], [[1.0]], [[1.0]]), "1 rows"),
        (lambda: metrics.crps_mixture([1.0], [1.0], [[1.0]]), "table"),
        (lambda: metrics.crps_mixture([1.0], [[1.0]], [[-1.0]]), "negative"),
        (lambda: metrics.crps_mixture([[1.0]], [[1.0]], [[1.0]]), "one target per row"),
        (lambda: metrics.coverage([1.0], [2.0], [0.0]), "exchanged"),
        (lambda: metrics.interval_width([2.0], [0.0]), "exchanged"),
        (lambda: metrics.calibration_curve([1.5]), "between 0 and 1"),
        (lambda: metrics.calibration_curve([0.5], [90.0]), "levels"),
    ],
)
def test_what_is_not_defined_is_refused(call, says):
    with pytest.raises(MetricError, match=says):
        call()
