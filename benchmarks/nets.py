"""The networks that benchmarks measure, as ordinary PyTorch; `NETS` makes a BEDL method of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import bedl
from bedl.bench.util import cifar_net, lenet5, mlp

__all__ = ["NETS", "Net", "resnet18"]


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch normalisation and a shortcut (He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def resnet18(classes: int = 10, width: int = 64) -> nn.Module:
    """ResNet-18 for 32×32: a 3×3 stem without pooling, then stages of two blocks."""
    stages, inputs = [], width
    for stage in range(4):
        outputs = width * 2**stage
        stages += [BasicBlock(inputs, outputs, 1 if stage == 0 else 2), BasicBlock(outputs, outputs)]
        inputs = outputs
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        *stages,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes),
    )  # fmt: skip


@dataclass(frozen=True)
class Net:
    """A network of the benchmarks.

    Attributes:
        plain: makes the deterministic network.
        input_shape: of one point.
        classes: how many, or 0 for a regression with one target.
    """

    plain: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    classes: int

    def factory(self, seed: int = 0, variances: str = "full") -> bedl.BEDL:
        """A BEDL method around the network with Gaussian weights; `variances` as in `bedl.bayesianize`."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            head = bedl.Dirichlet(self.classes) if self.classes else bedl.Normal(1)
            return bedl.BEDL(bedl.bayesianize(self.plain(), keep_means=False, variances=variances), head)

    def inputs(self, n: int, seed: int = 0) -> Tensor:
        """Standard normal inputs. shape: (n, *input_shape)"""
        return torch.randn(n, *self.input_shape, generator=torch.Generator().manual_seed(seed))


NETS: dict[str, Net] = {
    "MLP 8-50-2": Net(mlp, (8,), 0),
    "LeNet-5": Net(lenet5, (1, 28, 28), 10),
    "CIFAR net": Net(cifar_net, (3, 32, 32), 5),
    "ResNet-18": Net(resnet18, (3, 32, 32), 10),
}
