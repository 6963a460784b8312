"""What an export did, and how far it is from the model: numbers, with NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bedl.deploy.schema import Task

__all__ = ["ExportReport", "absolute_differences", "accuracy_loss", "scaled_differences"]

Outputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class ExportReport:
    """What was written. ``print(report)`` says it in a few lines.

    Attributes:
        path: the file.
        task: ``"regression"`` or ``"classification"``.
        precision: how the weights are stored.
        nodes: operations in the graph.
        size: of the file, in bytes.
        size_ratio: to the same graph with float32 weights.
        seconds: what the export took.
        points: on how many random points around the example it was compared with the model; 0 without a check.
        absolute: largest absolute difference, by output.
        scaled: largest difference, by output, in units that mean something: for classes as it is, for targets the
            mean and std in predicted stds, variances in predicted variances.
        loss: what a lower precision costs; empty for float32. For classes ``probability`` and ``entropy`` (largest
            differences) and ``labels_changed`` (share of points); for targets ``mean_in_stds`` (largest difference) and
            ``std_ratio_min``, ``std_ratio_max``.
    """

    path: Path
    task: Task
    precision: str
    nodes: int
    size: int
    size_ratio: float
    seconds: float
    points: int = 0
    absolute: dict[str, float] = field(default_factory=dict)
    scaled: dict[str, float] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)

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


def absolute_differences(truth: Outputs, other: Outputs) -> dict[str, float]:
    """Largest absolute difference of each output."""
    return {name: float(np.abs(truth[name] - other[name]).max(initial=0.0)) for name in truth}


def scaled_differences(task: Task, truth: Outputs, other: Outputs) -> dict[str, float]:
    """Largest difference of each output in the units of `ExportReport.scaled`.

    Example:
        >>> one = {"mean": np.array([100.0]), "std": np.array([10.0]), "aleatoric": np.array([100.0])}
        >>> two = {"mean": np.array([101.0]), "std": np.array([11.0]), "aleatoric": np.array([110.0])}
        >>> scaled_differences("regression", one, two)
        {'mean': 0.1, 'std': 0.1, 'aleatoric': 0.1}
    """
    if task == "classification":
        return absolute_differences(truth, other)
    std = truth["std"]
    unit = {"mean": std, "std": std}
    return {
        name: float((np.abs(truth[name] - other[name]) / unit.get(name, np.square(std))).max(initial=0.0))
        for name in truth
    }


def accuracy_loss(task: Task, truth: Outputs, other: Outputs) -> dict[str, float]:
    """What a lower precision costs, as in `ExportReport.loss`."""
    if task == "classification":
        labels = [outputs["probabilities"].argmax(-1) for outputs in (truth, other)]
        return {
            "probability": float(np.abs(truth["probabilities"] - other["probabilities"]).max()),
            "entropy": float(np.abs(truth["entropy"] - other["entropy"]).max()),
            "labels_changed": float(np.mean(labels[0] != labels[1])),
        }
    ratio = other["std"] / truth["std"]
    return {
        "mean_in_stds": float((np.abs(truth["mean"] - other["mean"]) / truth["std"]).max()),
        "std_ratio_min": float(ratio.min()),
        "std_ratio_max": float(ratio.max()),
    }
