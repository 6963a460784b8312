"""Scores of classes against scikit-learn and a definition written out as loops."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from bedl.evaluation import metrics
from bedl.evaluation.metrics import MetricError

RNG = np.random.default_rng(1)
N, C = 300, 4
PROBABILITIES = RNG.dirichlet(np.full(C, 0.5), N)
LABELS = np.array([RNG.choice(C, p=p) for p in PROBABILITIES])


def test_agrees_with_scikit_learn():
    assert metrics.accuracy(LABELS, PROBABILITIES) == sk.accuracy_score(LABELS, PROBABILITIES.argmax(1))
    assert metrics.nll_categorical(LABELS, np.log(PROBABILITIES)) == pytest.approx(
        sk.log_loss(LABELS, PROBABILITIES, labels=range(C)), rel=1e-9
    )
    assert metrics.brier(LABELS, PROBABILITIES) == pytest.approx(
        sum(sk.brier_score_loss(c == LABELS, PROBABILITIES[:, c]) for c in range(C)), rel=1e-12
    )
    expected = sk.confusion_matrix(LABELS, PROBABILITIES.argmax(1), labels=range(C))
    np.testing.assert_array_equal(metrics.confusion(LABELS, PROBABILITIES.argmax(1), C), expected)
    np.testing.assert_allclose(metrics.entropy(PROBABILITIES), stats.entropy(PROBABILITIES, axis=1), rtol=1e-12)


def ece_by_loops(labels, probabilities, edges):
    """C. Guo et al., eq. (3), with bins (low, high]."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    total = 0.0
    for low, high in itertools.pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


@pytest.mark.parametrize("bins", [1, 7, 15, 100])
def test_ece_is_its_definition(bins):
    expected = ece_by_loops(LABELS, PROBABILITIES, np.linspace(0, 1, bins + 1))
    assert metrics.ece(LABELS, PROBABILITIES, bins=bins) == pytest.approx(expected, rel=1e-12)


@pytest.mark.reference
def test_ece_agrees_with_torchmetrics():
    torchmetrics = pytest.importorskip("torchmetrics.functional.classification")
    import torch

    expected = torchmetrics.multiclass_calibration_error(
        torch.tensor(PROBABILITIES), torch.tensor(LABELS), num_classes=C, n_bins=15
    )
    assert metrics.ece(LABELS, PROBABILITIES) == pytest.approx(expected.item(), abs=1e-6)


def test_adaptive_bins_hold_equally_many_rows():
    curve = metrics.reliability_curve(LABELS, PROBABILITIES, bins=10, adaptive=True)
    assert curve.counts.sum() == N
    assert np.ptp(curve.counts) <= 1
    assert metrics.ece(LABELS, PROBABILITIES, bins=10, adaptive=True) == pytest.approx(
        ece_by_loops(LABELS, PROBABILITIES, curve.edges), rel=1e-12
    )


def test_reliability_agrees_with_scikit_learn_on_two_classes():
    p = RNG.uniform(0.5, 1, 400)
    labels = (RNG.uniform(size=400) > p).astype(int)
    curve = metrics.reliability_curve(labels, np.stack([p, 1 - p], 1), bins=10)
    from sklearn.calibration import calibration_curve

    right, confidence = calibration_curve(labels == 0, p, n_bins=10)
    full = curve.counts > 0
    np.testing.assert_allclose(curve.accuracy[full], right)
    np.testing.assert_allclose(curve.confidence[full], confidence)
    assert np.isnan(curve.accuracy[~full]).all()


@given(st.permutations(range(12)), st.booleans())
def test_ties_make_no_difference_to_the_order_of_rows(order, adaptive):
    confidence = np.array([0.5, 0.5, 0.6, 0.6, 0.6, 0.7, 0.7, 0.9, 0.9, 0.9, 0.9, 1.0])
    labels = np.array([0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0])
    table = np.stack([confidence, 1 - confidence], 1)
    shuffled = metrics.ece(labels[order], table[order], bins=4, adaptive=adaptive)
    assert shuffled == pytest.approx(metrics.ece(labels, table, bins=4, adaptive=adaptive), abs=1e-12)


def test_an_impossible_label_has_infinite_nll_and_certainty_is_free():
    assert metrics.nll_categorical([1], [[0.0, -math.inf]]) == math.inf
    assert metrics.nll_categorical([0], [[0.0, -math.inf]]) == 0.0
    assert metrics.brier([1], [[1.0, 0.0]]) == 2.0
    assert metrics.ece([0], [[1.0, 0.0]]) == 0.0


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: metrics.accuracy([], np.zeros((0, 2))), "empty"),
        (lambda: metrics.accuracy([0], [[math.nan, 1.0]]), "NaN"),
        (lambda: metrics.accuracy([0.0], [[0.5, 0.5]]), "integers"),
        (lambda: metrics.accuracy([2], [[0.5, 0.5]]), "outside of 0"),
        (lambda: metrics.accuracy([-1], [[0.5, 0.5]]), "outside of 0"),
        (lambda: metrics.accuracy([[0]], [[0.5, 0.5]]), "one class number per row"),
        (lambda: metrics.accuracy([0, 1], [[0.5, 0.5]]), "shape"),
        (lambda: metrics.brier([0], [[2.0, -1.0]]), "logits"),
        (lambda: metrics.brier([0], [0.5, 0.5]), "table"),
        (lambda: metrics.nll_categorical([0], [[0.5, 0.5]]), "logits"),
        (lambda: metrics.nll_categorical([0], [[math.nan, 0.5]]), "NaN"),
        (lambda: metrics.nll_categorical([0, 1], [[0.0, -50.0]]), "1 rows"),
        (lambda: metrics.ece([0], [[0.5, 0.5]], bins=0), "bins"),
        (lambda: metrics.confusion([0, 1], [0], 2), "2 labels but 1"),
    ],
)
def test_what_is_not_defined_is_refused(call, says):
    with pytest.raises(MetricError, match=says):
        call()


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(2, 40))
def test_rankings_of_each_class_and_balanced_accuracy_agree_with_scikit_learn(seed, classes, rows):
    rng = np.random.default_rng(seed)
    labels, table = rng.integers(0, classes, rows), rng.dirichlet(np.ones(classes), rows).round(1) + 1e-3
    table /= table.sum(1, keepdims=True)
    areas, precisions = metrics.one_vs_rest(labels, table)
    for number in range(classes):
        true = labels == number
        if true.any() and not true.all():
            assert areas[number] == pytest.approx(sk.roc_auc_score(true, table[:, number]), abs=1e-12)
            assert precisions[number] == pytest.approx(sk.average_precision_score(true, table[:, number]), abs=1e-12)
        else:
            assert np.isnan([areas[number], precisions[number]]).all()
    found = sk.recall_score(labels, table.argmax(1), labels=np.unique(labels), average="macro", zero_division=0)
    assert metrics.balanced_accuracy(labels, table) == pytest.approx(found)
