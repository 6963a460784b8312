"""Whether an exported model says what the model says."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bedl.deploy.export_report import absolute_differences
from bedl.deploy.exportable import Prepared
from bedl.deploy.schema import ExportError
from bedl.tasks import Quantities, Task

__all__ = ["TOLERANCE", "compare", "points_around"]

TOLERANCE = 1e-3
POINTS, FEWEST = 256, 8
POINTS_OF_MAPS = 8  # each of which has hundreds of predictions
WORK = 2**24  # numbers that one operation may make of all points; of large images a deep network takes a second each


def points_around(prepared: Prepared, seed: int = 0) -> tuple[Tensor, ...]:
    """Rows of the example, numbers moved by half a standard deviation of their feature. shapes: (count, *input)"""
    generator = torch.Generator().manual_seed(seed)
    most = POINTS_OF_MAPS if prepared.dense else POINTS
    count = min(max(WORK // max(prepared.numbers, 1), FEWEST), most)
    chosen = torch.randint(len(prepared.example[0]), (count,), generator=generator)
    return tuple(_moved(part, chosen, generator) for part in prepared.example)


def _moved(example: Tensor, chosen: Tensor, generator: torch.Generator) -> Tensor:
    rows = example[chosen]
    if not rows.is_floating_point():  # a token or a mask has no neighbours
        return rows
    spread = example.std(0, correction=0, keepdim=True)
    spread = torch.where(spread > 0, spread, example.std(correction=0).clamp_min(1e-6))
    return rows + 0.5 * spread * torch.randn(rows.shape, generator=generator)


def compare(task: Task, truth: Quantities, outputs: Quantities, strict: bool = True) -> dict[str, Any]:
    """The fields of `ExportReport` about agreement; an error where it fails and `strict` asks for it."""
    broken = [name for name, values in truth.items() if not np.isfinite(values).all()]
    if broken:
        raise ExportError(f"the model's own {', '.join(broken)} are not finite near the example; is it trained?")
    scaled = task.differences(truth, outputs)
    if strict and not max(scaled.values()) <= TOLERANCE:  # NaN is no agreement either
        worst = ", ".join(f"{name} {value:.1e}" for name, value in scaled.items())
        raise ExportError(
            f"the exported graph does not agree with the model (tolerance {TOLERANCE}): {worst}. Nothing was written; "
            "please report the network that this happened with, or pass check=False to write the file all the same"
        )
    absolute = absolute_differences(truth, outputs)
    return {"points": len(next(iter(truth.values()))), "absolute": absolute, "scaled": scaled}
