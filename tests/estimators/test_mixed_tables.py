"""Tables with text, dates and missing values, as estimators are given them."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest

from bedl import BEDLClassifier, BEDLRegressor
from bedl.data import DataError
from bedl.estimators import load
from bedl.estimators.inputs import needs_encoding

QUICK: dict[str, Any] = {"method": "bedl", "epochs": 60, "random_state": 0, "device": "cpu"}


def mixed(n: int = 200, seed: int = 0) -> tuple[pandas.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    frame = pandas.DataFrame(
        {
            "size": rng.normal(size=n),
            "colour": rng.choice(["red", "green", "blue"], n),
            "age": rng.normal(size=n),
        }
    )
    y = frame["size"] + 2.0 * (frame["colour"] == "red") + 0.1 * rng.normal(size=n)
    frame.loc[::7, "age"] = np.nan
    return frame, y.to_numpy()


@pytest.fixture(scope="module")
def model() -> BEDLRegressor:
    return BEDLRegressor(**QUICK).fit(*mixed())


def test_text_and_missing_values_are_learned_from(model: BEDLRegressor) -> None:
    frame, y = mixed(seed=1)
    assert model.score(frame, y) > 0.9
    assert list(model.feature_names_in_) == ["size", "colour", "age"]
    assert model.n_features_in_ == 3
    names = ["size", "colour=blue", "colour=green", "colour=red", "age", "age_missing"]
    assert model.encoder_ is not None
    assert model.encoder_.feature_names == names


def test_order_of_columns_matters_to_names_not_to_text(model: BEDLRegressor) -> None:
    frame, _ = mixed(20)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["age", "size", "colour"]])


def test_saved_with_its_encoder(model: BEDLRegressor, tmp_path: Path) -> None:
    frame, _ = mixed(20, seed=2)
    model.save(tmp_path / "model.bedl")
    np.testing.assert_allclose(load(tmp_path / "model.bedl").predict(frame), model.predict(frame), rtol=1e-6)


def test_what_training_did_not_see_is_said(model: BEDLRegressor) -> None:
    frame, _ = mixed(20)
    strict = copy.copy(model).set_params(handle_unknown="error")
    with pytest.raises(DataError, match="training saw no 'pink'"):
        strict.predict(frame.assign(colour="pink"))
    with pytest.raises(DataError, match="the value is missing"):
        strict.predict(frame.assign(size=np.nan))
    with pytest.raises(ValueError, match="handle_unknown is 'warn' or 'ignore' or 'error'"):
        BEDLRegressor(**QUICK, handle_unknown="guess").fit(*mixed())


def test_an_unknown_value_is_missing_evidence(model: BEDLRegressor) -> None:
    """The mean over the colours, as frequent as in training, and their variance as distributional uncertainty."""
    frame, _ = mixed(60, seed=3)
    changed = frame.copy()
    changed.loc[[4, 9], "colour"] = "pink"
    with pytest.warns(UserWarning, match="'colour': 2 rows hold values .* first in row 5: 'pink'"):
        found = model.uncertainty(changed)
    before = model.uncertainty(frame)
    same = ~frame.index.isin([4, 9])
    np.testing.assert_allclose(found[same], before[same], rtol=1e-5)
    colours = ["red", "green", "blue"]
    means = np.stack([model.predict(frame.assign(colour=colour)) for colour in colours])[:, [4, 9]]
    shares = mixed()[0]["colour"].value_counts(normalize=True)[colours].to_numpy()[:, None]
    mean = (shares * means).sum(0)
    with pytest.warns(UserWarning, match="pink"):
        np.testing.assert_allclose(model.predict(changed)[[4, 9]], mean, atol=0.1)
    between = (shares * (means - mean) ** 2).sum(0)
    risen = found["distributional"] - before["distributional"]
    np.testing.assert_allclose(risen[[4, 9]], between, rtol=0.15)
    assert (between > 0.3).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy.copy(model).set_params(handle_unknown="ignore").predict(changed)


def test_an_unknown_value_spreads_classes(tmp_path: Path) -> None:
    frame, y = mixed()
    model = BEDLClassifier(**QUICK).fit(frame, y > 1)
    with pytest.warns(UserWarning, match="pink"):
        pink = model.uncertainty(frame.assign(colour="pink"))
    known = model.uncertainty(frame)
    assert pink["distributional"].mean() > 2 * known["distributional"].mean()
    np.testing.assert_allclose(pink["total"], pink["data"] + pink["distributional"] + pink["model"], rtol=1e-4)


def test_arrays_and_other_frames_and_classes() -> None:
    frame, y = mixed()
    numbers = frame[["size", "age"]].to_numpy()
    model = BEDLClassifier(**QUICK).fit(numbers, y > 1)
    assert model.encoder_ is not None
    assert model.encoder_.feature_names == ["x0", "x1", "x1_missing"]
    assert model.score(numbers, y > 1) > 0.6
    objects = BEDLClassifier(**{**QUICK, "epochs": 2}).fit(frame.to_numpy(), np.where(y > 1, "high", "low"))
    assert set(objects.predict(frame.to_numpy())) <= {"high", "low"}
    other = BEDLRegressor(**{**QUICK, "epochs": 2}).fit(polars.from_pandas(frame), y)
    assert other.encoder_ is not None
    assert len(other.encoder_.feature_names) == 6


def test_numbers_alone_need_nothing() -> None:
    frame, y = mixed()
    plain = frame[["size"]].assign(flag=frame["age"] > 0)
    assert not needs_encoding(plain)
    assert not needs_encoding(plain.to_numpy(float))
    assert not needs_encoding([["a"]])
    assert needs_encoding(frame)
    assert needs_encoding(plain.astype({"size": "Float64"}).assign(size=pandas.NA))
    model = BEDLRegressor(**{**QUICK, "epochs": 2}).fit(plain, y)
    assert model.encoder_ is None
    with pytest.raises(ValueError, match="held numbers only"):
        model.predict(plain.assign(size=np.nan))


def test_noise_of_inputs_is_for_numbers() -> None:
    frame, y = mixed()
    with pytest.raises(ValueError, match="X_var is for tables of numbers"):
        BEDLRegressor(**QUICK).fit(frame, y, X_var=0.1)


def test_messages_are_of_what_an_estimator_can_do() -> None:
    frame, y = mixed(40)
    frame["odd"] = [{"a": 1}] * 40
    with pytest.raises(DataError, match=r"'odd' is of type struct.*An estimator has no such options: change X itself"):
        BEDLRegressor(**QUICK).fit(frame, y)


def test_codes_with_leading_zeros_are_labels() -> None:
    frame, y = mixed(40)
    frame["zip"] = ["00501", "90210"] * 20
    model = BEDLRegressor(**{**QUICK, "epochs": 1}).fit(frame, y)
    assert model.encoder_ is not None
    assert model.encoder_.feature_names[-2:] == ["zip=00501", "zip=90210"]
