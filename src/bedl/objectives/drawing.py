"""Random numbers for copies of inputs: drawn where the generator is, given where the inputs are."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

__all__ = ["channel_range", "draw_integer", "draw_uniform"]


def draw_uniform(x: Tensor, *shape: int, generator: Generator | None) -> Tensor:
    """Uniform numbers in [0, 1) where `x` is; drawn where the generator is."""
    device = generator.device if generator is not None else x.device
    return torch.rand(shape, generator=generator, device=device, dtype=x.dtype).to(x.device)


def draw_integer(high: int, generator: Generator | None) -> int:
    """A whole number from 0 to high - 1."""
    device = generator.device if generator is not None else torch.device("cpu")
    return int(torch.randint(high, (), generator=generator, device=device))


def channel_range(x: Tensor) -> tuple[Tensor, Tensor]:
    """Least and greatest value of each channel over the batch. shapes: (1, channels, 1, 1)"""
    return x.amin((0, 2, 3), keepdim=True), x.amax((0, 2, 3), keepdim=True)
