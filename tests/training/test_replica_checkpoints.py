"""Replicas that were interrupted and taken up again end bit for bit like a whole run: the same route, twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bedl.training import Callback, CheckpointError, Checkpoints, EarlyStopping, fit_replicas, load_weights
from tests.training.problems import method, regression, vector


class Interrupted(Exception):
    pass


class Interrupt(Callback):
    def __init__(self, step: int):
        self.step, self.rows = step, []

    def on_step(self, run, row):
        if row["step"] == self.step:
            raise Interrupted

    def on_epoch(self, run, row):
        self.rows.append(row)


def train(directory: Path | None, step: int = -1, **other: object):
    models = [method("perturbed", seed=s, dropout=0.3) for s in range(3)]
    data = [regression(n, seed=n) for n in (45, 60, 33)]
    callback = Interrupt(step)
    places = None if directory is None else Checkpoints(directory, every_steps=3)
    settings = {"epochs": 6, "batch_size": 16, "seeds": [5, 6, 7], **other}
    result = fit_replicas(
        models, data, validation=regression(20, seed=1), early_stopping=EarlyStopping(patience=2), lr=0.03,
        checkpoint=places, callbacks=[callback], **settings,
    )  # fmt: skip
    return torch.stack([vector(model) for model in models]), result, callback


@pytest.mark.parametrize("step", [1, 5, 12, 19])
def test_a_resumed_run_is_the_same_run(tmp_path: Path, step: int) -> None:
    whole, expected, _ = train(None)
    with pytest.raises(Interrupted):
        train(tmp_path, step)
    before = torch.get_rng_state()
    found, result, _ = train(tmp_path)
    assert torch.equal(found, whole)
    assert result.rows == expected.rows
    assert torch.equal(torch.get_rng_state(), before)


def test_callbacks_see_one_run() -> None:
    _, result, callback = train(None)
    assert {row["epoch"] for row in callback.rows} <= set(range(6))
    assert all({"loss", "val_nll", "step"} <= set(row) for row in callback.rows)
    assert result.steps == callback.rows[-1]["step"]


@pytest.mark.parametrize("other", [{"seeds": [5, 6, 8]}, {"batch_size": 8}, {"epochs": 7}])
def test_another_run_is_refused(tmp_path: Path, other: dict) -> None:
    with pytest.raises(Interrupted):
        train(tmp_path, 7)
    with pytest.raises(CheckpointError, match="not be the same run"):
        train(tmp_path, **other)
    with pytest.raises(CheckpointError, match="earlier run"):
        train(tmp_path, resume=False)
    newest = max(tmp_path.glob("step-*.safetensors"))
    with pytest.raises(CheckpointError, match="resume that run"):
        load_weights(method("perturbed"), newest)
