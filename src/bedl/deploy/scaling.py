"""A method that was trained on standardised targets, in the targets' own units."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bedl.deploy.schema import ExportError

__all__ = ["InUnits"]


class InUnits(nn.Module):
    """Predicts in the targets' own units what a method says of standardised targets.

    Args:
        method: the method that was trained.
        loc: what the standardised 0 stands for. shape: () or (D,)
        scale: what the standardised 1 stands for; positive. shape: () or (D,)
    """

    loc: Tensor
    scale: Tensor

    def __init__(self, method: nn.Module, loc: Tensor, scale: Tensor):
        super().__init__()
        if not bool(((scale > 0) & scale.isfinite()).all()):
            raise ValueError("InUnits: the scale of the targets must be positive and finite")
        self.method = method
        self.register_buffer("loc", loc)
        self.register_buffer("scale", scale)

    def forward(self, x: Any) -> Any:
        """x: shape (n, *input)"""
        prediction = self.method(x)
        if not hasattr(prediction, "rescale"):
            raise ExportError(f"targets of the task {prediction.task} have no units that could be scaled")
        return prediction.rescale(self.loc, self.scale)
