"""OOD and selective scores against scikit-learn and their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from sklearn import metrics as sk

from bedl.evaluation import metrics
from bedl.evaluation.metrics import MetricError

SCORES = st.lists(st.integers(0, 8).map(float), min_size=1, max_size=30)  # few values, so that many tie


@given(SCORES, SCORES)
def test_detection_agrees_with_scikit_learn(known, foreign):
    truth = np.r_[np.zeros(len(known)), np.ones(len(foreign))]
    scores = np.r_[known, foreign]
    assert metrics.auroc(known, foreign) == pytest.approx(sk.roc_auc_score(truth, scores), abs=1e-12)
    assert metrics.aupr(known, foreign) == pytest.approx(sk.average_precision_score(truth, scores), abs=1e-12)
    fpr, tpr, thresholds = sk.roc_curve(truth, scores, drop_intermediate=False)
    curve = metrics.threshold_curve(known, foreign)
    np.testing.assert_allclose(
        [curve.threshold, curve.false_positive_rate, curve.recall], np.array([thresholds, fpr, tpr])[:, 1:]
    )
    precision, recall, _ = sk.precision_recall_curve(truth, scores)
    np.testing.assert_allclose([curve.precision, curve.recall], np.array([precision, recall])[:, -2::-1])
    for wanted in (0.5, 0.95, 1.0):
        expected = fpr[tpr >= wanted - 1e-9].min()
        assert metrics.fpr_at_tpr(known, foreign, wanted) == pytest.approx(expected, abs=1e-12)


@given(SCORES, SCORES)
def test_auroc_is_antisymmetric_and_blind_to_monotone_maps(known, foreign):
    value = metrics.auroc(known, foreign)
    assert metrics.auroc(foreign, known) == pytest.approx(1 - value, abs=1e-12)
    assert metrics.auroc(np.exp(known), np.exp(foreign)) == pytest.approx(value, abs=1e-12)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=40))
def test_ecdf_agrees_with_scipy(values):
    expected = stats.ecdf(values).cdf
    x, share = metrics.ecdf(values)
    np.testing.assert_array_equal(x, expected.quantiles)
    np.testing.assert_allclose(share, expected.probabilities)


@given(st.lists(st.floats(0, math.log(5)), min_size=1, max_size=30))
def test_ecdf_auc_is_the_area_under_the_steps(entropy):
    x, share = metrics.ecdf(entropy)
    ends = np.append(x, math.log(5))
    assert metrics.ecdf_auc(entropy, 5) == pytest.approx(np.sum(share * np.diff(ends)), abs=1e-9)


def test_ecdf_auc_by_quadrature():
    entropy = np.random.default_rng(3).uniform(0, math.log(10), 50)
    cdf = stats.ecdf(entropy).cdf
    grid = np.linspace(0, math.log(10), 200_001)
    assert metrics.ecdf_auc(entropy, 10) == pytest.approx(integrate.trapezoid(cdf.evaluate(grid), grid), abs=1e-4)


def test_uniform_answers_score_what_they_should():
    """A histogram that drops the largest entropies gives 1.80 here."""
    entropy = np.r_[np.full(90, math.log(10)), np.full(10, math.log(10) - 1.8)]
    assert metrics.ecdf_auc(entropy, 10) == pytest.approx(0.18)


def test_fpr_counts_95_of_100_as_95_percent():
    foreign = np.arange(100.0)
    known = np.array([4.5, 5.5])
    assert metrics.fpr_at_tpr(known, foreign) == 0.5  # the threshold is 5: 95 of 100 are at or above it


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3)), min_size=1, max_size=12), st.randoms())
def test_risk_coverage_is_blind_to_the_order_of_ties(rows, random):
    shuffled = random.sample(rows, len(rows))
    one, other = (metrics.risk_coverage(*zip(*part, strict=True)) for part in (rows, shuffled))
    np.testing.assert_allclose(one.risk, other.risk, atol=1e-12)
    assert one.risk[-1] == pytest.approx(np.mean([loss for loss, _ in rows]))


def test_risk_coverage_by_sorting():
    rng = np.random.default_rng(4)
    loss, uncertainty = rng.uniform(size=50), rng.uniform(size=50)
    order = np.argsort(uncertainty)
    curve = metrics.risk_coverage(loss, uncertainty)
    for k in (1, 17, 50):
        assert curve.risk[k - 1] == pytest.approx(loss[order[:k]].mean())
        assert curve.coverage[k - 1] == k / 50
    assert metrics.aurc(loss, uncertainty) == pytest.approx(curve.risk.mean())


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: metrics.auroc([], [1.0]), "scores_in is empty"),
        (lambda: metrics.aupr([1.0], []), "scores_out is empty"),
        (lambda: metrics.auroc([math.nan], [1.0]), "NaN"),
        (lambda: metrics.fpr_at_tpr([1.0], [1.0], 95), "tpr"),
        (lambda: metrics.ecdf([math.inf]), "infinite"),
        (lambda: metrics.ecdf_auc([1.0], 2), "bits"),
        (lambda: metrics.ecdf_auc([0.0], 1), "at least 2"),
        (lambda: metrics.risk_coverage([1.0], [1.0, 2.0]), "shape"),
        (lambda: metrics.risk_coverage([[1.0]], [[1.0]]), "one number per row"),
        (lambda: metrics.aurc([], []), "empty"),
    ],
)
def test_what_is_not_defined_is_refused(call, says):
    with pytest.raises(MetricError, match=says):
        call()
