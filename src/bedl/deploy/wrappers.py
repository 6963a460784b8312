"""What stands behind a method that was trained: the targets' own units, or the temperatures of probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bedl.deploy.schema import ExportError


class InUnits(nn.Module):
    """Predicts in the targets' own units what a method says of standardised targets.

    Args:
        method: the method that was trained.
        loc: what the standardised 0 stands for. shape: () or (D,)
        scale: what the standardised 1 stands for; positive. shape: () or (D,)
        link: of a prediction in these units, what leads to the targets; None: they are the targets' own.
    """

    loc: Tensor
    scale: Tensor

    link: Callable[[Any], Any] | None

    def __init__(self, method: nn.Module, loc: Tensor, scale: Tensor, link: Callable[[Any], Any] | None = None):
        super().__init__()
        if not bool(((scale > 0) & scale.isfinite()).all()):
            raise ValueError("InUnits: the scale of the targets must be positive and finite")
        self.method, self.link = method, link
        self.register_buffer("loc", loc)
        self.register_buffer("scale", scale)

    def forward(self, x: Any) -> Any:
        """x: shape (n, *input)"""
        prediction = self.method(x)
        if not hasattr(prediction, "rescale"):
            raise ExportError(f"targets of the task {prediction.task} have no units that could be scaled")
        found = prediction.rescale(self.loc, self.scale)
        return found if self.link is None else self.link(found)


class Tempered(nn.Module):
    """Predicts classes as a method does, bolder or more careful.

    Args:
        method: the method that was trained.
        temperatures: where there is evidence, and where there is none; see `CategoricalPredictive.tempered`.
    """

    temperatures: Tensor

    def __init__(self, method: nn.Module, temperatures: tuple[float, float]):
        super().__init__()
        self.method = method
        self.register_buffer("temperatures", torch.tensor(temperatures))

    def forward(self, x: Any) -> Any:
        """x: shape (n, *input)"""
        known, unknown = self.temperatures.unbind()
        return self.method(x).tempered(known, unknown)
