"""Replicas that have stopped are computed no more, and the others end where they would have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bedl.methods import Batch
from bedl.training import Callback, Checkpoints, EarlyStopping, fit_replicas
from bedl.training.engines.stacked import ActiveReplicas, StackedNetworks
from tests.training.problems import method, regression, vector


class Interrupted(Exception):
    pass


class Interrupt(Callback):
    def __init__(self, step: int):
        self.step = step

    def on_step(self, run: Any, row: Any) -> None:
        if row["step"] > self.step:
            raise Interrupted

    def on_epoch(self, run: Any, row: Any) -> None:
        assert len(run.methods) == 3  # those that have stopped are still shown


def run(**how: Any) -> tuple[Tensor, list[int]]:
    """Parameters and numbers of epochs of replicas that stop at different times, the quick learners first."""
    models = [method("pac", seed=seed).double() for seed in range(3)]
    result = fit_replicas(
        models, regression(45, seed=2, dtype=torch.float64), epochs=40, batch_size=16, lr=[0.1, 0.03, 0.001],
        validation=regression(20, seed=1, dtype=torch.float64), early_stopping=EarlyStopping(patience=2), **how,
    )  # fmt: skip
    epochs = [sum(row["replica"] == replica for row in result.rows) for replica in range(3)]
    return torch.stack([vector(model) for model in models]), epochs


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many replicas each step computes."""
    seen: list[int] = []
    gradients = StackedNetworks.gradients

    def counted(stacked: StackedNetworks, batch: Batch) -> tuple[Tensor, Tensor]:
        seen.append(len(stacked.methods))
        return gradients(stacked, batch)

    monkeypatch.setattr(StackedNetworks, "gradients", counted)
    return seen


def test_those_that_go_on_end_where_they_would_have(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    found, epochs = run()
    assert len(set(epochs)) == 3
    assert sum(sizes) == 3 * sum(epochs)  # three steps an epoch: nothing is computed for those that have stopped
    monkeypatch.setattr(ActiveReplicas, "keep", lambda *_: None)
    expected, same = run()
    assert epochs == same
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_a_run_resumed_after_some_have_stopped_is_the_same_run(sizes: list[int], tmp_path: Path) -> None:
    expected, epochs = run()
    whole = sizes.copy()
    step = 3 * (min(epochs) + 1)  # the first has stopped

    places = Checkpoints(tmp_path, every_steps=1)
    with pytest.raises(Interrupted):
        run(checkpoint=places, callbacks=[Interrupt(step)])
    sizes.clear()
    found, same = run(checkpoint=places)
    assert epochs == same
    assert sizes == whole[-len(sizes) :]
    assert len(sizes) < len(whole)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
