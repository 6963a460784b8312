"""What an export did, and how far it is from the model: numbers, with NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bedl.tasks import Quantities

__all__ = ["ExportReport", "absolute_differences"]


MOVED, WIDENED, CHANGED, UNLIKE = 0.2, 0.1, 0.01, 0.05  # beyond which a lower precision is warned of


@dataclass(frozen=True)
class ExportReport:
    """What was written. ``print(report)`` says it in a few lines.

    Attributes:
        path: the file.
        task: the name of what is predicted.
        precision: how the weights are stored.
        nodes: operations in the graph.
        size: the size of the file, in bytes.
        size_ratio: the ratio of that size to the one of the same graph with float32 weights.
        seconds: what the export took.
        points: the number of random points around the example that it was compared with the model on; 0 without a
            check.
        absolute: largest absolute difference, by output.
        scaled: largest difference, by output, in units that mean something: probabilities and entropies as they are,
            mean and std in predicted stds, variances in predicted variances.
        loss: what a lower precision costs; empty for float32. For classes ``probability`` and ``entropy`` (largest
            differences) and ``labels_changed`` (share of points); for targets ``mean_in_stds`` (largest difference) and
            ``std_ratio_min``, ``std_ratio_max``; for others see `Task.cost`.
    """

    path: Path
    task: str
    precision: str
    nodes: int
    size: int
    size_ratio: float
    seconds: float
    points: int = 0
    absolute: dict[str, float] = field(default_factory=dict)
    scaled: dict[str, float] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)

    @property
    def caution(self) -> str:
        """What a lower precision changes so much that a user would notice, as a sentence; "" where nothing."""
        moved, changed = self.loss.get("mean_in_stds", 0.0), self.loss.get("labels_changed", 0.0)
        low, high = self.loss.get("std_ratio_min", 1.0), self.loss.get("std_ratio_max", 1.0)
        said = [f"means move by up to {moved:.2g} predicted standard deviations"] if moved > MOVED else []
        if low < 1 - WIDENED or high > 1 + WIDENED:
            said.append(f"standard deviations are {low:.2g} to {high:.2g} times what they were")
        if changed > CHANGED:
            said.append(f"{changed:.1%} of the answers change")
        probability = self.loss.get("probability", 0.0)
        if probability > UNLIKE:
            said.append(f"probabilities change by up to {probability:.2g}")
        if not said:
            return ""
        better = "float16 or float32" if self.precision == "int8" else "float32"
        return f"with weights in {self.precision} {' and '.join(said)}; if that is too much, export in {better}"

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.task}, {self.precision}, {self.nodes} operations, {self.size / 1e6:.2f} MB"]
        if self.loss:
            costs = ", ".join(f"{name} {value:.2g}" for name, value in self.loss.items())
            lines[0] += f" ({self.size_ratio:.0%} of float32)"
            lines.append(f"cost of {self.precision}, on {self.points} points: {costs}")
        elif self.scaled:
            lines.append(f"agrees with PyTorch to {max(self.scaled.values()):.1e} on {self.points} points")
        else:
            lines.append("not compared with PyTorch")
        return "\n".join(lines)


def absolute_differences(truth: Quantities, other: Quantities) -> dict[str, float]:
    """Largest absolute difference of each output."""
    return {name: float(np.abs(truth[name] - other[name]).max(initial=0.0)) for name in truth}
