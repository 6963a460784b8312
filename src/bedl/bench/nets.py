"""The paper's networks, as ordinary PyTorch."""

from __future__ import annotations

from typing import Literal

from torch import nn

__all__ = ["Dropped", "cifar_net", "lenet5", "mlp", "two_layers"]

Dropped = Literal["hidden", "dense"]  # layers that dropout stands behind: all hidden ones, or the dense ones of them


def mlp(features: int = 8, hidden: int = 50, outputs: int = 2, dropout: float = 0.0) -> nn.Module:
    """One hidden layer, as for the UCI tables: two outputs for one target."""
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), *_dropout(dropout), nn.Linear(hidden, outputs))


def lenet5(classes: int = 10, dropout: float = 0.0, dropped: Dropped = "hidden") -> nn.Module:
    """LeNet-5 for 28×28 with 20-50-500 units; strides in place of pooling, as in the paper.

    Args:
        classes: outputs.
        dropout: its probability; 0: there is none.
        dropped: behind which layers.
    """
    return _lenet(1, 20, 50, 4 * 4, 500, classes, dropout, dropped)


def cifar_net(classes: int = 5, dropout: float = 0.0, dropped: Dropped = "hidden") -> nn.Module:
    """The same for 3×32×32 with 192-192-1000 units."""
    return _lenet(3, 192, 192, 5 * 5, 1000, classes, dropout, dropped)


def two_layers(
    side: int, channels: int, classes: int = 10, dropout: float = 0.0, dropped: Dropped = "hidden"
) -> nn.Module:
    """Two convolutions with 96 filters 5×5 and stride 2, then the classes: the paper's net against Gaussian processes.

    Example:
        >>> import torch
        >>> two_layers(28, 1)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    left, behind = ((side - 5) // 2 - 4) // 2 + 1, dropout if dropped == "hidden" else 0.0
    return nn.Sequential(
        nn.Conv2d(channels, 96, 5, stride=2), nn.ReLU(), *_dropout(behind),
        nn.Conv2d(96, 96, 5, stride=2), nn.ReLU(), *_dropout(behind),
        nn.Flatten(),
        nn.Linear(96 * left * left, classes),
    )  # fmt: skip


def _lenet(
    channels: int, first: int, second: int, flat: int, hidden: int, classes: int, dropout: float, dropped: Dropped
) -> nn.Module:
    behind = dropout if dropped == "hidden" else 0.0
    return nn.Sequential(
        nn.Conv2d(channels, first, 5, stride=2), nn.ReLU(), *_dropout(behind),
        nn.Conv2d(first, second, 5, stride=2), nn.ReLU(), *_dropout(behind),
        nn.Flatten(),
        nn.Linear(second * flat, hidden), nn.ReLU(), *_dropout(dropout),
        nn.Linear(hidden, classes),
    )  # fmt: skip


def _dropout(probability: float) -> list[nn.Module]:
    return [nn.Dropout(probability)] if probability else []
