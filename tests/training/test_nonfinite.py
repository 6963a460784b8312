"""A loss that is not a number: where it began, what to do, and nothing broken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bedl.methods import Batch
from bedl.training import GradientOptions, NonFiniteLossError, fit
from bedl.training import checkpoint as ck
from bedl.training.diagnostics import find_origin
from tests.training.problems import method, regression, vector


class Explodes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.inf


class ExplodesBackwards(nn.Module):
    """sqrt has an infinite slope at 0."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (x[:, :1] * 0).sqrt()


def batch() -> Batch:
    x, y = regression(10)
    return Batch(x, y, 10)


def test_bad_data_are_named() -> None:
    b = batch()
    b.x[3, 1] = torch.nan
    assert find_origin(method(), [b]).where == "x"
    b = batch()
    b.y[3] = torch.inf
    assert find_origin(method(), [b]).where == "y"


def test_a_bad_parameter_is_named() -> None:
    model = method()
    with torch.no_grad():
        model.net[3].weight_logvar[0, 0] = torch.nan
    assert find_origin(model, [batch()]).where == "net.3.weight_logvar"


def test_the_layer_is_named() -> None:
    model = method()
    model.net.insert(0, nn.Sequential(nn.Linear(3, 3), Explodes()))
    origin = find_origin(model, [batch()])
    assert origin.where == "net.0.1"
    assert "Explodes" in origin.what


def test_a_gradient_is_named() -> None:
    model = method()
    model.net.insert(0, nn.Sequential(nn.Linear(3, 3), ExplodesBackwards()))
    origin = find_origin(model, [batch()])
    assert origin.where == "net.0.0.bias"
    assert "gradient" in origin.what


class Trap(nn.Module):
    """Fine until it has seen so many batches."""

    def __init__(self, calls: int):
        super().__init__()
        self.left = calls

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        return x if self.left >= 0 else x / 0


def test_training_stops_at_the_step_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    model = method()
    model.net.insert(0, Trap(7))
    with pytest.raises(NonFiniteLossError) as caught:
        fit(model, regression(), epochs=5, batch_size=10, checkpoint=tmp_path, fabric={"accelerator": "cpu"})
    error = caught.value
    assert error.step == 7
    assert error.origin.where == "net.0"
    assert error.checkpoint == ck.path_of(tmp_path, 5)
    assert "learning rate" in str(error)
    assert str(error.checkpoint) in str(error)
    assert ck.read(error.checkpoint)["position"]["step"] == 5
    assert bool(vector(model).isfinite().all())  # the step was not taken
    assert all(p.grad is None for p in model.parameters())


def test_a_learning_rate_that_is_too_high_is_found_out() -> None:
    with pytest.raises(NonFiniteLossError, match="learning rate"):
        fit(
            method(),
            regression(),
            epochs=50,
            optimizer=lambda p: torch.optim.SGD(p, lr=1e9),
            gradient=GradientOptions(clip=None),
            fabric={"accelerator": "cpu"},
        )
