"""Which rows to label next: the closed form against matrices, and what a user sees."""

import numpy as np
import pandas
import pytest

from bedl import BEDLClassifier, BEDLRegressor
from bedl.estimators.explanation import candidates, most_telling


def after(covariance, labelled, noise):
    """Variances of a Gaussian process once some rows are labelled, by the textbook. shape: (n,)"""
    known = covariance[np.ix_(labelled, labelled)] + noise * np.eye(len(labelled))
    across = covariance[:, labelled]
    return np.diag(covariance - across @ np.linalg.solve(known, across.T))


def test_each_row_lowers_the_variances_most():
    rng = np.random.default_rng(0)
    places, unknown, noise = rng.normal(size=(40, 3)), rng.uniform(0.1, 2.0, 40), 0.3
    squares = np.square(places[:, None] - places).sum(2)
    covariance = np.sqrt(np.outer(unknown, unknown)) * np.exp(-squares / (2 * unknown.mean()))
    matter = rng.random(40) < 0.7
    chosen = list(most_telling(unknown, noise, places, 6, matter))
    for number in range(6):
        left = [row for row in range(40) if row not in chosen[:number]]
        sums = {row: after(covariance, [*chosen[:number], row], noise)[matter].sum() for row in left}
        assert min(sums, key=sums.get) == chosen[number]


def test_rows_without_noise_are_told_once():
    places = np.zeros((5, 1))  # all the same: one label tells all
    chosen = most_telling(np.ones(5), 0.0, places, 5)
    assert sorted(chosen) == list(range(5))
    assert sorted(most_telling(np.zeros(5), 0.0, places, 3)) == sorted(set(most_telling(np.zeros(5), 0.0, places, 3)))


def test_of_many_rows_some_are_looked_at():
    unknown = np.zeros(10_000)
    unknown[[17, 9_001]] = 1.0
    rows, matter = candidates(unknown, 100)
    assert {17, 9_001} <= set(rows)
    assert matter.sum() == 100
    assert len(rows) <= 200
    assert len(candidates(unknown[:150], 100)[0]) == 150


@pytest.fixture(scope="module")
def gap():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-4, -1, 100), rng.uniform(1, 4, 100)])
    frame = pandas.DataFrame({"x": x, "kind": np.where(rng.random(200) < 0.5, "a", "b")})
    return BEDLRegressor(random_state=0).fit(frame, np.sin(2 * x) + 0.1 * rng.normal(size=200))


def test_rows_in_the_gap_are_asked_for_and_are_not_alike(gap):
    x = np.linspace(-4, 4, 161)
    pool = pandas.DataFrame({"x": np.tile(x, 2), "kind": np.repeat(["a", "b"], 161)})
    asked = pool.x.to_numpy()[gap.rows_to_label(pool, 6)]
    inside = asked[np.abs(asked) < 1]
    assert len(inside) >= 3
    assert np.abs(asked[0]) < 1
    assert np.ptp(inside) > 0.5


def test_any_number_of_a_large_pool_in_any_order(gap, monkeypatch):
    for module in ("explanation", "regressor"):
        monkeypatch.setattr(f"bedl.estimators.{module}.MAX_ROWS", 30)
    monkeypatch.setattr("bedl.estimators.regressor.candidates", lambda unknown: candidates(unknown, 30))
    rng = np.random.default_rng(0)
    pool = pandas.DataFrame({"x": rng.uniform(-4, 4, 200), "kind": np.tile(["a", "b"], 100)})
    everyone = gap.rows_to_label(pool, 200)
    assert sorted(everyone) == list(range(200))
    np.testing.assert_array_equal(gap.rows_to_label(pool, 40), everyone[:40])
    turned = pool[::-1].reset_index(drop=True)
    # predictions may be rounded otherwise in another order, and two rows be all but equally good
    assert len({*(199 - gap.rows_to_label(turned, 10))} & {*everyone[:10]}) >= 8


def test_refusals(gap):
    pool = pandas.DataFrame({"x": [0.0, 1.0], "kind": ["a", "b"]})
    for n in (0, 3, 1.0, "1", True, None):
        with pytest.raises(ValueError, match="from 1 to the 2 of X"):
            gap.rows_to_label(pool, n)
    X = np.linspace(-1, 1, 70)[:, None]
    plain = BEDLRegressor(method="bedl", epochs=1).fit(X, X[:, 0])
    with pytest.raises(ValueError, match=r"'bedl' knows no distances .* needs 'auto'"):
        plain.rows_to_label(X, 2)
    assert not hasattr(BEDLClassifier, "rows_to_label")


def test_two_targets():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(120, 2))
    model = BEDLRegressor(random_state=0, epochs=20).fit(X, np.stack([X[:, 0], 1000 * X[:, 1]], 1))
    rows = model.rows_to_label(rng.normal(size=(50, 2)), 5)
    assert len(set(rows.tolist())) == 5
