"""A chain of layers, predicting, as one call: see `chain.c`."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bedl.native import _kernels

__all__ = ["Link", "chain", "panels"]

ROOM = (
    2**21
)  # numbers that a thread keeps for what lies between layers: pages that are new each time cost as much again
FILLED = 16  # outputs are filled up to a multiple of at most this


class Link(NamedTuple):
    """A convolution, or a linear layer as one whose window is all that there is.

    Attributes:
        height, width: of its inputs, with the zeros around them.
        down, across: its window.
        rectifies: whether ReLU follows.
    """

    channels: int
    height: int
    width: int
    outputs: int
    down: int
    across: int
    stride_down: int
    stride_across: int
    pad_down: int
    pad_across: int
    rectifies: bool

    @property
    def inputs(self) -> int:
        """Numbers of one point."""
        return self.channels * self.height * self.width

    @property
    def window(self) -> int:
        """Numbers that an output sees."""
        return self.channels * self.down * self.across

    @property
    def made(self) -> tuple[int, int]:
        """Height and width of its outputs."""
        return (self.height - self.down) // self.stride_down + 1, (self.width - self.across) // self.stride_across + 1


class _Kept(threading.local):
    room: Tensor | None = None


_kept = _Kept()


def _numbers(links: Sequence[Link]) -> ctypes.Array:
    numbers = [number for link in links for number in link]
    return (ctypes.c_int64 * len(numbers))(*numbers)


def panels(link: Link, mean: Tensor, spread: Tensor, is_log: bool, gain: Tensor | None) -> Tensor:
    """A layer's weights as the kernel reads them; all tensors without gaps.

    Args:
        mean: shape (outputs, channels, down, across), or (outputs, inputs)
        spread: variances, or their logarithms where `is_log`. shape: as `mean`
        gain: what the inputs' variances are multiplied by; None: the means' squares. shape: as `mean`
    """
    assert _kernels._library is not None
    made = mean.new_empty(3 * link.window * (-(-link.outputs // FILLED) * FILLED))
    _kernels._library.bedl_panels(
        _numbers([link]), mean.data_ptr(), spread.data_ptr(), is_log, None if gain is None else gain.data_ptr(),
        made.data_ptr(),
    )  # fmt: skip
    return made


def chain(
    x: Tensor, links: Sequence[Link], weights: Sequence[Tensor], biases: Sequence[Tensor | None],
    fit: Sequence[float], unit: float, far: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Means and variances of the last layer's outputs, for known inputs.

    Args:
        x: without gaps. shape: (n, channels, height, width), or (n, inputs)
        links: one or more, each fitting the one before.
        weights: of each, from `panels`.
        biases: of each, without gaps. shape: (outputs,)
        fit, unit, far: as for `rectified`.

    Returns:
        shapes: (n, height, width, outputs), (n, height, width, outputs)
    """
    assert _kernels._library is not None
    even, odd = (max((link.inputs for link in part), default=0) for part in (links[::2], links[1::2]))
    at_a_time = max(1, min(len(x), ROOM // (3 * (even + odd))))
    size = 3 * at_a_time * (even + odd)
    room = _kept.room if size <= ROOM else None
    if room is None or room.numel() < size:
        room = torch.empty(size)
        _kept.room = room if size <= ROOM else _kept.room
    pointers = [
        None if part is None else part.data_ptr() for pair in zip(weights, biases, strict=True) for part in pair
    ]
    made = len(x), *links[-1].made, links[-1].outputs
    loc, variance = x.new_empty(made), x.new_empty(made)
    _kernels._library.bedl_chain(
        len(x), at_a_time, len(links), _numbers(links), (ctypes.c_void_p * len(pointers))(*pointers), x.data_ptr(),
        _kernels._floats(tuple(fit)), unit, far, room.data_ptr(), even, odd, loc.data_ptr(), variance.data_ptr(),
    )  # fmt: skip
    return loc, variance
