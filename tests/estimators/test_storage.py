"""Out of this process and back: files, pickles, checkpoints, deployment."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

from bedl import PAC, HyperPrior, __version__
from bedl.estimators import BEDLClassifier, BEDLRegressor, ModelFileError, load, storage
from bedl.training import Callback
from bedl.training.callbacks import read_history
from bedl.training.checkpoint import checksum
from tests.estimators.problems import QUICK, labels, table

SHORT = {**QUICK, "epochs": 3}


def regressor(**more: Any) -> tuple[BEDLRegressor, pd.DataFrame]:
    X, y = table(70)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    return BEDLRegressor(**{**SHORT, **more}).fit(frame, y), frame


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"ensemble": 2},
        {"method": "bedl", "method_options": {"regularizer": PAC(strength=0.5) + HyperPrior(b0=0.1)}},
        {"method": "bedl+reg", "method_options": {"head": {"beta": 10.0}}},
        {"standardize": False},
    ],
)
def test_a_regressor_comes_back(tmp_path: Path, more: dict) -> None:
    model, frame = regressor(**more)
    path = model.save(tmp_path / "model.safetensors")
    again = load(path)
    assert type(again) is BEDLRegressor
    for mine, theirs in zip(model.predict(frame, return_std=True), again.predict(frame, return_std=True), strict=True):
        assert np.array_equal(mine, theirs)
    kept = {key: value for key, value in model.get_params().items() if key != "device"}
    assert {key: again.get_params()[key] for key in kept} == kept
    assert list(again.feature_names_in_) == ["a", "b", "c"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]
    again.partial_fit(frame, np.zeros(len(frame)))


@pytest.mark.parametrize("kind", [str, object, int, float, bool])
def test_a_classifier_comes_back(tmp_path: Path, kind: type) -> None:
    X, y = labels(70)
    y = y.astype(kind) if kind in (str, object) else (y == "high").astype(kind)
    model = BEDLClassifier(**SHORT).fit(X, y)
    again = BEDLClassifier.load(model.save(tmp_path / "m"))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.classes_.dtype == model.classes_.dtype
    assert np.array_equal(again.predict(X), model.predict(X))


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    model, _ = regressor()
    path = tmp_path / "model"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        model.save(path)
    assert path.read_text() == "precious"
    model.save(path, overwrite=True)
    load(path)
    with pytest.raises(FileExistsError, match="folder"):
        model.save(tmp_path, overwrite=True)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    model, _ = regressor()
    path = model.save(tmp_path / "model")
    with safetensors.safe_open(path, framework="pt") as file:
        header = file.metadata()
    assert header["bedl"] == __version__
    tensors = safetensors.torch.load_file(path)
    for changed, complaint in [
        ({"schema": str(storage.SCHEMA + 1)}, "upgrade bedl"),
        ({"format": "other"}, "not an estimator"),
        ({"model": json.dumps({**json.loads(header["model"]), "class": "os.system"})}, "does not know"),
    ]:
        changed = {**header, **changed}
        changed["sha256"] = checksum(tensors, changed["model"])
        safetensors.torch.save_file(tensors, tmp_path / "changed", changed)
        with pytest.raises(ModelFileError, match=complaint):
            load(tmp_path / "changed")
    (tmp_path / "cut").write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match="whole"):
        load(tmp_path / "cut")
    with pytest.raises(ModelFileError, match="no file"):
        load(tmp_path / "missing")
    with pytest.raises(ModelFileError, match=r"BEDLRegressor\.load"):
        BEDLClassifier.load(path)


def test_one_flipped_bit_is_refused(tmp_path: Path) -> None:
    model, frame = regressor()
    content, random = model.save(tmp_path / "model").read_bytes(), np.random.default_rng(0)
    said = model.predict(frame)
    refused = 0
    for place, bit in zip(random.integers(0, len(content), 300), random.integers(0, 8, 300), strict=True):
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        (tmp_path / "damaged").write_bytes(damaged)
        try:
            again = load(tmp_path / "damaged")
        except ModelFileError:
            refused += 1
        else:  # in a word that decides nothing, such as the version of bedl
            assert np.array_equal(again.predict(frame), said)
    assert refused > 290


HOSTILE: dict[str, Any] = {
    "hidden layers": lambda c: c["params"].update(hidden_layers={"tuple": [20_000, 20_000]}),
    "many layers": lambda c: c["params"].update(hidden_layers={"tuple": [2] * 10**6}),
    "inputs": lambda c: c.update(input_shape=[500_000_000], n_features_in=500_000_000),
    "an ensemble": lambda c: c["params"].update(ensemble=1_000_000),
    "no class": lambda c: c.pop("class"),
    "a list for a class": lambda c: c.update({"class": ["BEDLRegressor"]}),
    "no parameters": lambda c: c.update(params=[1]),
    "a shape of text": lambda c: c.update(input_shape=["3"]),
    "a negative shape": lambda c: c.update(input_shape=[-3]),
    "an unknown type": lambda c: c.update(dtype="float33"),
    "an unknown method": lambda c: c["built"].update(method={"a": 1}),
    "options that are none": lambda c: c["built"].update(options=[1]),
    "an unknown activation": lambda c: c["params"].update(activation="sine of the times"),
    "scales of text": lambda c: c.update(target_scale=["a"]),
    "nesting": lambda c: c.update(target_names=json.loads("[" * 900 + "]" * 900)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_sizes_are_compared_with_the_weights_first(tmp_path: Path, case: str) -> None:
    """With a checksum that fits: whoever makes such a file can compute one."""
    import resource

    model, _ = regressor()
    path = model.save(tmp_path / "model")
    with safetensors.safe_open(path, framework="pt") as file:
        header = file.metadata()
    tensors, content = safetensors.torch.load_file(path), json.loads(header["model"])
    HOSTILE[case](content)
    text = json.dumps(content)
    header |= {"model": text, "sha256": checksum(tensors, text)}
    safetensors.torch.save_file(tensors, tmp_path / "hostile", header)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFileError, match=r"^[^\n]*$"):
        load(tmp_path / "hostile")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, number: float) -> None:
    model, _ = regressor()
    with torch.no_grad():
        next(model.method_.parameters()).view(-1)[0] = number
    with pytest.raises(ModelFileError, match="not finite"):
        load(model.save(tmp_path / "model"))


def make_net(n_features: int, n_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(n_features, 4), nn.Tanh(), nn.Linear(4, n_outputs))


def test_code_is_not_in_the_file(tmp_path: Path) -> None:
    model, frame = regressor(net=make_net)
    path = model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="net=…"):
        load(path)
    assert np.array_equal(load(path, net=make_net).predict(frame), model.predict(frame))
    with pytest.raises(ModelFileError, match="another network"):
        load(path, net=nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
    with pytest.raises(TypeError, match="no parameter"):
        load(path, net=make_net, netz=1)


def test_pickle_and_deepcopy() -> None:
    model, frame = regressor()
    model.partial_fit(frame, np.ones(len(frame)))
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert np.array_equal(twin.predict(frame), model.predict(frame))
        before = model.predict(frame)
        twin.partial_fit(frame, np.ones(len(frame)))  # its optimiser is its own
        assert np.array_equal(model.predict(frame), before)
        assert not np.array_equal(twin.predict(frame), before)


@pytest.mark.parametrize("more", [{}, {"ensemble": 2}, {"precision": "bf16-mixed"}])  # the last is no vectorised run
def test_an_interrupted_fit_goes_on(tmp_path: Path, more: dict[str, Any]) -> None:
    class Interrupt(Callback):
        def on_epoch(self, run: Any, row: dict) -> None:
            if row["epoch"] == 2:
                raise KeyboardInterrupt

    X, y = table(70)
    settings = {**QUICK, "epochs": 5, "patience": 5, **more}
    with pytest.raises(KeyboardInterrupt):
        BEDLRegressor(**settings, checkpoint=tmp_path / "run", callbacks=[Interrupt()]).fit(X, y)
    resumed = BEDLRegressor(**settings, checkpoint=tmp_path / "run").fit(X, y)
    whole = BEDLRegressor(**settings, callbacks=[Callback()]).fit(X, y)
    # the checkpoint has the rows of earlier epochs
    assert [row["epoch"] for row in resumed.history_] == [row["epoch"] for row in whole.history_]
    (log,) = (tmp_path / "run").rglob("history.jsonl")
    assert [row["epoch"] for row in read_history(log) if row["kind"] == "epoch"] == [0, 1, 2, 3, 4]
    assert list((tmp_path / "run").rglob("step-*.safetensors"))
    assert np.array_equal(resumed.predict(X), whole.predict(X))


def test_what_leaves_python() -> None:
    pytest.importorskip("bedl.deploy")
    model, frame = regressor(ensemble=2)
    out = model._exportable()
    x = torch.tensor(frame.to_numpy(), dtype=torch.float32)
    with torch.no_grad():
        prediction = out.module(x)
    mean, std = model.predict(frame, return_std=True)
    assert np.allclose(prediction.mean[:, 0], mean, rtol=1e-4)
    assert np.allclose(prediction.std[:, 0], std, rtol=1e-4)
    assert (out.task, list(out.feature_names), out.example.shape[1:]) == ("regression", ["a", "b", "c"], (3,))
    X, y = labels(70)
    classifier = BEDLClassifier(**SHORT).fit(X, y)
    out = classifier._exportable()
    with torch.no_grad():
        p = out.module(torch.tensor(X, dtype=torch.float32)).probabilities
    assert np.allclose(p, classifier.predict_proba(X), atol=1e-5)
    assert list(out.class_names) == ["high", "low", "middle"]
