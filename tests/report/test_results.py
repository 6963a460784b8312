"""Results: what is refused, how parts become one, which rows are kept."""

import dataclasses

import numpy as np
import pytest

from bedl.evaluation.report import ClassificationResults, Examples, RegressionResults, ResultsError, concatenate, score
from tests.report.data import classification, regression


def cut(results, start, stop, **changes):
    """Rows start … stop − 1 as results of their own."""
    fields = {name: getattr(results, name) for name in results.ARRAYS}
    fields = {name: None if value is None else value[start:stop] for name, value in fields.items()}
    examples = results.examples.take(np.arange(start, stop))
    return dataclasses.replace(
        results, **fields, examples=dataclasses.replace(examples, index=None), ood=None, **changes
    )


@pytest.mark.parametrize("whole", [regression(ood=False), classification(ood=False)], ids=["targets", "classes"])
def test_parts_joined_are_the_whole(whole):
    parts = [cut(whole, a, b).keep_examples(5) for a, b in ((0, 17), (17, 18), (18, len(whole)))]
    joined = concatenate(parts, examples=5)
    for name in whole.ARRAYS:
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
    assert score(joined) == score(whole)
    expected = np.argsort(-whole.uncertainty, kind="stable")[:5].tolist()
    expected += [i for i in np.argsort(-whole.surprise, kind="stable")[:5].tolist() if i not in expected]
    np.testing.assert_array_equal(joined.examples.index, expected)
    if joined.examples.images is not None:
        np.testing.assert_array_equal(joined.examples.images, whole.examples.images[expected])
    for name, values in joined.examples.columns.items():
        assert list(values) == [whole.examples.columns[name][i] for i in expected]


def test_notes_of_parts_are_joined_once():
    whole = regression(ood=False)
    parts = [cut(whole, 0, 5, notes=["a", "b"]), cut(whole, 5, 9, notes=["b", "c"])]
    assert concatenate(parts).notes == ("a", "b", "c")


def test_parts_with_and_without_labels_are_refused():
    whole = regression(ood=False)
    with pytest.raises(ResultsError, match="NaN"):
        concatenate([cut(whole, 0, 5), dataclasses.replace(cut(whole, 5, 9), y=None)])
    with pytest.raises(ResultsError, match="no rows"):
        concatenate([])


def with_nan(values):
    return np.where(np.arange(len(values)) == 3, np.nan, values)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"mean": np.zeros((60, 1))}, r"mean has shape \(60, 1\)"),
        ({"std": np.ones(3)}, "std has shape"),
        ({"std": with_nan(np.ones(60))}, "1 values that are NaN"),
        ({"epistemic_std": -np.ones(60)}, "negative"),
        ({"lower": np.full(60, 99.0)}, "exchanged"),
        ({"level": 90}, "level"),
        ({"pit": np.ones(60), "y": None}, "without y"),
        ({"examples": Examples({"a": [1]}, index=np.array([60]))}, "outside"),
    ],
)
def test_targets_that_do_not_fit_are_refused(changes, says):
    with pytest.raises(ResultsError, match=says):
        regression(**changes)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"class_names": ["a", "b"]}, "2 class names"),
        ({"probabilities": np.full((80, 4), 0.3)}, "sum to 1"),
        ({"entropy": with_nan(np.ones(80))}, "NaN"),
        ({"labels": np.full(80, 4)}, "0 to 3"),
        ({"labels": np.full(80, 1.0)}, "integers"),
        ({"labels": np.zeros(3, int)}, "labels has shape"),
        ({"labels": None, "log_density": np.zeros(80)}, "without labels"),
    ],
)
def test_classes_that_do_not_fit_are_refused(changes, says):
    with pytest.raises(ResultsError, match=says):
        classification(**changes)


def test_other_classes_out_of_domain_are_refused():
    with pytest.raises(ResultsError, match="another number of classes"):
        dataclasses.replace(classification(), ood=classification(classes=3))


def test_nothing_is_refused():
    empty = np.zeros(0)
    with pytest.raises(ResultsError, match="no rows"):
        RegressionResults(*[empty] * 6)
    with pytest.raises(ResultsError, match="no rows"):
        ClassificationResults(np.zeros((0, 2)), empty, empty, empty, ["a", "b"])


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: Examples({"a": [1], "b": [1, 2]}), "differ in length"),
        (lambda: Examples({"a": [1]}, np.zeros((2, 3, 3), np.uint8)), "differ in length"),
        (lambda: Examples({"a": [1]}, index=np.array([1, 2])), "2 rows"),
        (lambda: Examples(images=np.zeros((2, 3, 3))), "uint8"),
        (lambda: Examples(images=np.zeros((2, 4, 3, 3), np.uint8)), "shape"),
    ],
)
def test_examples_that_do_not_fit_are_refused(make, says):
    with pytest.raises(ResultsError, match=says):
        make()
