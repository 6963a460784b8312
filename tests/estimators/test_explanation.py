"""What uncertainty is made of, and the columns that drive it: gradients against differences, and known columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest

from bedl import BEDLClassifier, BEDLRegressor
from bedl.estimators.explanation import NEXT
from bedl.nn.tabular import Standardize

PARTS = tuple(NEXT)


def table(n: int, seed: int) -> tuple[pandas.DataFrame, np.ndarray]:
    """Noise that grows with age; a kind and a size that say the target."""
    rng = np.random.default_rng(seed)
    frame = pandas.DataFrame(
        {"size": rng.uniform(-1, 1, n), "age": rng.uniform(-1, 1, n), "kind": rng.choice(["a", "b", "c"], n)}
    )
    return frame, (
        frame["size"] + (frame["kind"] == "a") + np.exp(2 * frame["age"] - 2) * rng.normal(size=n)
    ).to_numpy()


@pytest.mark.parametrize("method", ["bedl", "distilled"])
@pytest.mark.parametrize("classes", [False, True])
def test_effects_are_slopes_of_the_parts(method: str, classes: bool) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)) * [1, 10, 100]
    y = X[:, 0] + 0.1 * X[:, 1] + 0.3 * rng.normal(size=200)
    kind: Any = BEDLClassifier if classes else BEDLRegressor
    options = {"likelihood": "normal"} if not classes else {}
    model = kind(method=method, epochs=3, random_state=0, device="cpu", precision="double", **options)
    model.fit(X, (y > 0).astype(int) if classes else y)
    rows = X[:20] + 1e-3  # off the rows that are kept, and off the edges of bins
    why, step = model.explain(rows), 1e-5
    uncertainty = model.uncertainty(rows)
    scale = 10.0 ** np.arange(3)
    size = next(part for part in model.method_.modules() if isinstance(part, Standardize)).scale.numpy()
    for part in PARTS:
        np.testing.assert_allclose(why[part], uncertainty[part], rtol=1e-6, atol=1e-12)
        slopes = []
        for column in range(3):
            moved = np.eye(3)[column] * step * scale
            ends = [model.uncertainty(rows + sign * moved)[part].to_numpy() for sign in (1, -1)]
            slopes.append((ends[0] - ends[1]) / (2 * step))
        found = why[f"{part}_column"].astype(int).to_numpy()
        expected = (np.stack(slopes, 1) * size / scale)[np.arange(20), found]
        close = np.isclose(why[f"{part}_effect"], expected, rtol=0.02, atol=1e-3 * np.abs(expected).max())
        assert close.mean() >= 0.75  # there are kinks, which a difference may cross


def test_the_column_that_makes_noise_is_named() -> None:
    X, y = table(600, 0)
    why = BEDLRegressor(random_state=0, device="cpu").fit(X, y).explain(X[:100])
    assert (why["data_column"] == "age").mean() >= 0.7
    assert (why.loc[why["data_column"] == "age", "data_effect"] > 0).mean() > 0.9
    np.testing.assert_allclose(why["total"], why[list(PARTS)].sum(axis=1), rtol=1e-6)
    largest = why[list(PARTS)].to_numpy().argmax(1)
    assert (why["next"] == np.array(list(NEXT.values()))[largest]).all()
    assert (why.index == X.index[:100]).all()


@pytest.mark.usefixtures("full_distillation")
def test_far_away_evidence_is_what_is_missing() -> None:
    X, y = table(300, 0)
    model = BEDLRegressor(random_state=0, device="cpu").fit(X[["size", "age"]], y)
    far = pandas.DataFrame({"size": [15.0, -15.0], "age": [0.0, 0.0]})
    why = model.explain(far)
    assert (why["distributional"] + why["model"] > why["data"]).all()
    assert not why["next"].str.startswith("another column").any()


def test_several_targets_have_columns_of_their_own() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    model = BEDLRegressor(method="bedl", epochs=2, random_state=0, device="cpu").fit(X, X)
    assert {"total_0", "data_1", "model_column_1", "next_0"} <= set(model.explain(X[:4]))
