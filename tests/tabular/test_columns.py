"""Importance, drift, slices and causes against what they are of a model that is known."""

import numpy as np
import pandas as pd
import pytest

from bedl.data.columns import BooleanColumn, CategoryColumn, NumberColumn
from bedl.estimators import tabular
from bedl.estimators.tabular.predict import Sample, causes, slices, summaries
from bedl.evaluation.tasks.regression import RegressionResults

WEIGHTS, STD = np.array([1.0, 0.3, 0.0]), 0.5
NUMBERS = [NumberColumn(name, mean=0.0, has_missing=False, low=-4.0, high=4.0, std=1.0) for name in "abc"]


def ask(x, y):
    """A linear model whose noise is known, and grows with the last column."""
    x = np.nan_to_num(x)
    mean, std = x[:, :3] @ WEIGHTS, STD * np.exp(np.maximum(x[:, 2], 0) * 0.5)
    zero, half = np.zeros(len(x)), 1.6448536 * std
    density = None if y is None else -0.5 * np.square((y - mean) / std) - np.log(std) - 0.5 * np.log(2 * np.pi)
    return RegressionResults(mean, std, std, zero, mean - half, mean + half, y, log_density=density)


def rows(n=4000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    x[:, 2] = -np.abs(x[:, 2])  # where the noise is constant
    return x, x @ WEIGHTS + STD * rng.normal(size=n)


def test_importance_is_that_of_a_linear_model() -> None:
    """E[(w (x − x'))² / 2σ²] = w² Var(x) / σ² for independent columns."""
    x, y = rows()
    for found, weight in zip(summaries(ask, NUMBERS, x, y), WEIGHTS, strict=True):
        assert abs(found.importance - weight**2 / STD**2) <= 4 * found.error + 1e-12
        assert found.error < 0.2
    assert all(np.isnan(found.importance) for found in summaries(ask, NUMBERS, x, None))


def test_drift_of_numbers_booleans_and_categories() -> None:
    rng = np.random.default_rng(1)
    colours = CategoryColumn("colour", ["blue", "red"], False, False, counts=[50, 50])
    columns = [*NUMBERS, BooleanColumn("owned", mean=0.5, has_missing=False), colours]
    x = np.zeros((1000, 6))
    x[:, 0], x[:, 1], x[:, 3] = rng.normal(2.0, 0.5, 1000), 0.0, 1.0
    x[:100, 1] = 5.0
    x[:, 4], x[:250] = 1.0, x[:250] + [0, 0, 0, 0, np.nan, np.nan]
    a, b, c, owned, colour = summaries(lambda x, y: ask(x, y), columns, x, None)
    assert a.drift == pytest.approx(x[:, 0].mean())
    assert a.outside == pytest.approx((np.abs(x[:, 0]) > 4).mean())
    assert (b.drift, b.outside) == (pytest.approx(0.5), pytest.approx(0.1))
    assert (c.drift, c.outside) == (0.0, 0.0)
    assert owned.drift == pytest.approx(1.0)  # half a unit, of a standard deviation of one half
    assert [b.values, owned.values, colour.values] == ["0.5 ± 1.5", "1 ± 0", "blue 75%, not in training 25%"]
    assert (colour.drift, colour.outside) == (pytest.approx(0.5), 0.25)  # 50, 50, 0 % and 75, 0, 25 %


def test_slices_are_those_of_pandas() -> None:
    x, y = rows(2000)
    y[x[:, 0] > 1] += 2.0  # where intervals are wrong
    record = ask(x, y)
    found = [part for part in slices(record, NUMBERS, x) if part.column == "a"]
    frame = pd.DataFrame({"a": x[:, 0], "hit": (record.lower <= y) & (y <= record.upper)})
    expected = frame.groupby(pd.qcut(frame["a"], 5), observed=True)["hit"].agg(["size", "mean"])
    assert [part.rows for part in found] == expected["size"].tolist()
    np.testing.assert_allclose([part.observed for part in found], expected["mean"])
    assert found[-1].observed < 0.5 < found[0].observed
    assert found[0].error == pytest.approx(np.sqrt(0.9 * 0.1 / 400))


def test_the_cause_is_the_column_that_makes_a_row_uncertain() -> None:
    x = np.array([[0.0, 0.0, -1.0], [3.0, 3.0, 3.0]])
    quiet, loud = causes(ask, NUMBERS, x)
    assert quiet == "–"
    assert loud.startswith("c: 2.24 → ")
    assert causes(ask, NUMBERS * 5000, np.zeros((2, 15_000))) == []


def test_a_sample_is_uniform_and_keeps_rows_together() -> None:
    kept = []
    for seed in range(20):
        sample = Sample()
        sample._random = np.random.default_rng(seed)
        for start in range(0, 10_000, 700):
            index = np.arange(start, min(start + 700, 10_000))
            sample.add(index[:, None].astype(float), index.astype(float), start)
        assert sample.rows is not None
        assert len(sample.rows) == 4000
        np.testing.assert_array_equal(sample.rows[:, 0], sample.index)
        np.testing.assert_array_equal(sample.targets, sample.index)
        kept.append(sample.index.mean())
    assert abs(np.mean(kept) - 4999.5) < 4 * 2887 / np.sqrt(20 * 4000)


def test_a_report_says_which_column_matters_and_which_has_changed(tmp_path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": rng.normal(size=600), "noise": rng.normal(size=600), "kind": rng.choice(["a", "b"], 600)}
    )
    frame["y"] = frame["x"] + 0.1 * rng.normal(size=600)
    model = tabular.fit(frame[:400], target="y", method="evidence", epochs=20, device="cpu", seed=0)
    test = frame[400:].assign(noise=frame["noise"][400:] + 3)
    test.loc[400:449, "kind"] = "c"
    with pytest.warns(UserWarning, match="training did not see"):
        results = model.results(test, examples=True)
    x, noise, kind = sorted(results.columns, key=lambda column: ["x", "noise", "kind"].index(column.name))
    assert x.importance > 5 * x.error
    assert x.importance > 10 * max(noise.importance, kind.importance)
    assert noise.drift > 2
    assert kind.outside == 0.25
    assert {part.values for part in results.slices if part.column == "kind"} == {"a", "b", "not in training"}
    with pytest.warns(UserWarning, match="training did not see"):
        page = model.report(test, tmp_path / "page.html").read_text()
    for text in ("Columns: importance and drift", "Coverage by slice", "main cause"):
        assert text in page
