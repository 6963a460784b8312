"""Values absurdly far from those of training: refused, clipped or kept, and never a silent NaN."""

from __future__ import annotations

import numpy as np
import pandas
import pytest

from bedl.data import DataError
from bedl.estimators import tabular
from tests.cli.verbs import run

RANDOM = np.random.default_rng(0)
FRAME = pandas.DataFrame(RANDOM.normal(size=(80, 2)), columns=["a", "b"])
QUICK = {"epochs": 2, "device": "cpu", "hidden": (20, 20, 20)}


@pytest.fixture(scope="module", params=["numbers", "classes"])
def model(request) -> tabular.TabularModel:
    y = FRAME["a"] + FRAME["b"] if request.param == "numbers" else np.where(FRAME["a"] > 0, "up", "down")
    return tabular.fit(FRAME.assign(y=y), target="y", **QUICK)


@pytest.mark.parametrize("value", [1e8, -1e15, 1e18, 3e38])
def test_absurd_values_are_refused_or_clipped(model, value):
    frame = FRAME[:5].copy()
    frame.loc[2, "b"] = value
    with pytest.raises(
        DataError,
        match=r"'b', row 3: .*absurdly far.*on_foreign_values='clip', on the command line --on-foreign-values clip",
    ):
        model.predict(frame)
    with pytest.warns(UserWarning, match="'b', row 3: .*taken as"):
        found = model.predict(frame, on_foreign_values="clip")
    assert np.isfinite(found.select_dtypes("number")).all(axis=None)
    pandas.testing.assert_frame_equal(found.drop(2), model.predict(FRAME[:5]).drop(2))
    with pytest.raises(DataError, match="on_foreign_values is one of"):
        model.predict(frame, on_foreign_values="ignore")


def test_values_outside_of_the_training_range_are_predicted(model):
    frame = FRAME[:5] * 1000
    assert np.isfinite(model.predict(frame).select_dtypes("number")).all(axis=None)


def test_a_prediction_that_is_none_names_its_row(model, tmp_path, monkeypatch):
    """A model that does not know the range of training, as those of earlier versions."""
    for column in model.encoder._columns:
        object.__setattr__(column, "low", None)  # of a frozen dataclass
    quantities = model.engine.quantities

    def broken(x, *args):
        found = quantities(x, *args)
        name = next(iter(found))
        found[name] = np.where(np.abs(x).max(1)[:, None] > 1e17, np.nan, found[name])
        return found

    monkeypatch.setattr(model.engine, "quantities", broken)
    frame = FRAME[:5].copy()
    frame.loc[3, "a"] = 1e18
    for call in (model.predict, lambda data: model.results(data, need_target=False)):
        with pytest.raises(DataError, match=r"row 4: the prediction is not finite.*'a' with 1e.18"):
            call(frame)
    with pytest.warns(UserWarning, match="row 4"):
        assert model.predict(frame, on_foreign_values="keep").isna().any(axis=None)


def test_the_command_line_knows_the_option(tmp_path):
    FRAME.assign(y=FRAME["a"]).to_csv(tmp_path / "t.csv", index=False)
    FRAME[:3].assign(b=[0.0, 1e18, 0.0]).to_csv(tmp_path / "far.csv", index=False)
    run("fit", tmp_path / "t.csv", "-t", "y", "--epochs", 1, "--out", tmp_path / "m", ok=True)
    said = run("predict", tmp_path / "m", tmp_path / "far.csv", ok=False)
    assert "column 'b', row 2" in said.stderr
    with pytest.warns(UserWarning, match="taken as"):
        run("predict", tmp_path / "m", tmp_path / "far.csv", "--on-foreign-values", "clip", ok=True)
