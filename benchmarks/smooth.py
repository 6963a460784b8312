"""`python -m benchmarks.smooth`: networks with smooth activations, over the plain network; compiled over compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bedl
from bedl.bench.util import medians, threads


class TransformerBlock(nn.Module):
    """Pre-norm attention of 4 heads and an MLP with GELU, on 64 tokens of 128 numbers."""

    shape = (16, 64, 128)

    def __init__(self, width: int = 128):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class SiLUResNet(nn.Module):
    """Three residual blocks of group norm, SiLU and convolutions with 32 channels, on images of 16 × 16."""

    shape = (16, 3, 16, 16)

    def __init__(self, width: int = 32):
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Linear(width, 10)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
            for _ in range(6)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for first, second in zip(self.blocks[::2], self.blocks[1::2], strict=True):
            h = h + second(first(h))
        return self.out(F.silu(h).mean((2, 3)))


class WaveNet(nn.Module):
    """Eight dilated gated convolutions of 32 channels, on series of 256 steps."""

    shape = (8, 1, 256)

    def __init__(self, width: int = 32):
        super().__init__()
        self.stem, self.out = nn.Conv1d(1, width, 1), nn.Conv1d(width, 2, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(8))
        self.mix = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for dilated, mix in zip(self.dilated, self.mix, strict=True):
            filtered, gate = dilated(F.pad(h, (dilated.dilation[0], 0))).chunk(2, 1)
            h = h + mix(torch.tanh(filtered) * torch.sigmoid(gate))
        return self.out(F.relu(h))


def runs(net: Any, x: Tensor, compile: bool) -> dict[str, Callable[[], object]]:
    call = torch.compile(net, dynamic=False) if compile else net

    def predict() -> None:
        with torch.no_grad():
            call(x)

    def both() -> None:
        y = call(x)
        (y.loc.sum() + y.variance.sum() if isinstance(y, bedl.Moments) else y.sum()).backward()

    return {"predict": predict, "forward and backward": both}


def main() -> None:
    for make in (TransformerBlock, SiLUResNet, WaveNet):
        x = torch.randn(make.shape, generator=torch.Generator().manual_seed(0))
        cells = []
        for compile in (True, False):
            given = {f"{kind} {name}": run for kind, net in (("plain", make()), ("bedl", bedl.bayesianize(make())))
                     for name, run in runs(net, x, compile).items()}  # fmt: skip
            with threads(1):
                found = medians(given, 15)
            cells += [found[f"bedl {name}"] / found[f"plain {name}"] for name in ("predict", "forward and backward")]
        print(f"| {make.__name__} | {' | '.join(f'{cell:.1f}' for cell in cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
