"""Rows of groups, and rows in time: what is left out together, and what intervals hold of new groups and periods."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, cross_val_score

from bedl import BEDLClassifier, BEDLRegressor
from bedl.estimators.calibration import held_out_scores
from bedl.estimators.inputs import Related, cut_in_folds, held_out
from bedl.estimators.regressor import _of_periods
from bedl.evaluation.tasks import held_out_factors, signed_scores

Array = NDArray[np.float64]
GROUPS = np.repeat(np.arange(30), np.arange(1, 31))


def test_folds_keep_groups_together_and_are_of_equal_sizes() -> None:
    fold = cut_in_folds(len(GROUPS), 5, 0, related=Related(groups=GROUPS))
    assert all(len(set(fold[group == GROUPS])) == 1 for group in range(30))
    assert np.ptp(np.bincount(fold)) <= 10
    pairs = Related(groups=np.repeat(np.arange(20), 2))
    assert not np.array_equal(cut_in_folds(40, 5, 0, related=pairs), cut_in_folds(40, 5, 1, related=pairs))


def test_the_latest_fold_is_the_first_and_is_learned_from_last() -> None:
    order = np.random.default_rng(0).permutation(50)
    related = Related(order=order)
    fold = cut_in_folds(50, 5, 0, related=related)
    assert sorted(order[fold == 0]) == list(range(40, 50))
    for number in range(4):
        assert order[related.training(fold, number)].max() < order[fold == number].min()


def test_groups_are_held_out_whole_and_in_time_the_latest() -> None:
    kept, out = held_out(len(GROUPS), 60, 0, related=Related(groups=GROUPS))
    assert not set(GROUPS[kept]) & set(GROUPS[out])
    assert 30 <= len(out) <= 120
    assert sorted([*kept, *out]) == list(range(len(GROUPS)))
    _, out = held_out(50, 10, 0, related=Related(order=np.arange(50)[::-1]))
    assert out.tolist() == list(range(10))
    # a class is never held out entirely
    classes = (GROUPS == 29).astype(int)
    for seed in range(20):
        kept, _ = held_out(len(GROUPS), 200, seed, classes, Related(groups=GROUPS))
        assert set(classes[kept]) == {0, 1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groups": np.zeros(40), "order": np.arange(40)}, "groups or order, not both"),
        ({"groups": np.zeros(40)}, "one group only"),
        ({"groups": [0, 1]}, r"groups of shape \(2,\) are not one for each of 40 rows"),
        ({"order": [np.nan, *range(39)]}, "order holds missing values"),
    ],
)
def test_what_is_refused(given: dict[str, object], message: str) -> None:
    X = np.random.default_rng(0).normal(size=(40, 2))
    with pytest.raises(ValueError, match=message):
        BEDLRegressor(method="bedl", epochs=1).fit(X, X[:, 0], **given)


def test_a_few_periods_are_a_few_observations() -> None:
    rng = np.random.default_rng(0)
    scores = np.abs(rng.normal(size=(3000, 1)))
    for count, level in ((10, 0.95), (300, 0.903)):
        weight = np.full(3000, count / 3000)
        found = held_out_scores(_of_periods(scores, weight))
        below, above = held_out_factors(*signed_scores(*found), 0.9)
        assert below == above == pytest.approx(np.quantile(scores, level), abs=0.03)


def test_scores_count_each_group_once() -> None:
    weights = Related(groups=np.array([0, 0, 0, 1])).weights()
    assert weights is not None
    np.testing.assert_allclose(weights, [1 / 3, 1 / 3, 1 / 3, 1])


def patients(n: int, seed: int) -> tuple[Array, Array, Array]:
    """Visits of patients, with three measurements of a patient and three of a visit."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(n), 12)
    X = np.c_[rng.normal(size=(12 * n, 3)), rng.normal(size=(n, 3))[group]]
    return X, X[:, 0] + rng.normal(size=n)[group] + 0.3 * rng.normal(size=12 * n), group


def periods(n: int, seed: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    time = np.repeat(np.arange(n), 12)
    X = np.c_[rng.normal(size=(12 * n, 2)), time + rng.uniform(size=12 * n)]
    return X, X[:, 0] + 0.7 * rng.normal(size=n)[time] + 0.3 * rng.normal(size=12 * n), time


@pytest.mark.slow
@pytest.mark.parametrize(("made", "name"), [(patients, "groups"), (periods, "order")])
def test_intervals_hold_for_new_groups_and_the_next_periods(made: object, name: str) -> None:
    covered: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(4):
        X, y, related = made(100, seed)  # type: ignore[operator]
        train = related < 60
        for given in (False, True):
            model = BEDLRegressor(method="distilled", random_state=0, device="cpu")
            model.fit(X[train], y[train], **({name: related[train]} if given else {}))
            lower, upper = model.predict_interval(X[~train])
            covered[given].append(float(np.mean((lower <= y[~train]) & (y[~train] <= upper))))
    assert np.mean(covered[False]) < np.mean(covered[True]) - 0.03
    # what all rows of a period share is told by few of them, so that intervals for the next ones are cautious
    assert 0.87 <= np.mean(covered[True]) <= (0.95 if name == "groups" else 0.995)


def test_scikit_learn_hands_groups_on() -> None:
    X, y, group = patients(12, 0)
    seen = []

    class Seen(BEDLClassifier):
        def fit(self, X, y, sample_weight=None, X_var=None, *, groups=None, order=None):  # type: ignore[no-untyped-def]
            seen.append(groups)
            return super().fit(X, y, sample_weight, X_var, groups=groups, order=order)

    with sklearn.config_context(enable_metadata_routing=True):
        model = Seen(method="bedl", epochs=1, random_state=0, device="cpu")
        cross_val_score(model, X, y > 0, cv=GroupKFold(3), params={"groups": group})
    assert sorted(np.concatenate([np.unique(part) for part in seen]).tolist()) == sorted([*range(12)] * 2)
