"""Kernels of wide convolutional networks in C, in double precision; twin of `bedl.methods.relu_kernels.ImageKernel`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bedl.native import _kernels

__all__ = ["DEEPEST", "Program", "Variances", "covariances", "variances"]

LANES, DEEPEST = 16, 16  # as in image_kernel.c
KINDS = ("relu", "convolution", "mean", "keep", "swap", "add")
Step = tuple[str, int, int, float, float]  # kind, size, stride, weight, bias


class Program:
    """A network as a list of steps on a map of covariances.

    "keep" lays a copy of the map on a pile, "swap" takes the top of the pile for the map, "add" adds it.

    Args:
        steps: kind, size, stride, weight, bias; the last three of convolutions, weight and bias of means.
        image: channels, height and width.
    """

    def __init__(self, steps: Sequence[Step], image: tuple[int, int, int]):
        kinds, sizes, strides, weights, biases = zip(*steps, strict=True)
        whole, real = ctypes.c_int64 * len(steps), ctypes.c_double * len(steps)
        self.steps = (len(steps), whole(*map(KINDS.index, kinds)), whole(*sizes), whole(*strides), real(*weights),
                      real(*biases))  # fmt: skip
        self.image = image
        self.looked_up = _places_of_relus(steps, image[1:])


class Variances(NamedTuple):
    """Of images in a network.

    Attributes:
        roots: at each place of each ReLU. shape: (places, images and padding)
        last: of the network's output. shape: (images,)
    """

    roots: Tensor
    last: Tensor


def variances(program: Program, x: Tensor) -> Variances:
    """x: shape (n, channels, height, width)"""
    padded = _padded(x.square().mean(1).flatten(1))
    roots, last = x.new_empty(program.looked_up, padded.shape[1]), x.new_empty(padded.shape[1])
    pointers = (tensor.data_ptr() for tensor in (padded, roots, last))
    _library().bedl_image_variances(*program.steps, *program.image[1:], padded.shape[1], *pointers)
    return Variances(roots, last[: len(x)])


def covariances(program: Program, x: Tensor, z: Tensor, symmetric: bool) -> Tensor:
    """Of all pairs.

    Args:
        x, z: shapes (n, channels, height, width), (m, channels, height, width), in double precision
        symmetric: whether both are the same images.

    Returns:
        shape: (n, m)
    """
    first, second = variances(program, x), variances(program, z)
    own, others = x.contiguous(), _padded(z.flatten(1))
    looked_up = first.roots[:, : len(x)].T.contiguous()
    found = x.new_zeros(len(x), others.shape[1])
    sizes = (*program.image, len(x), others.shape[1], program.looked_up, int(symmetric))
    pointers = (tensor.data_ptr() for tensor in (own, others, looked_up, second.roots, found))
    _library().bedl_image_covariances(*program.steps, *sizes, *pointers)
    found = found[:, : len(z)].contiguous()
    return found.triu_().add_(found.triu(1).T) if symmetric else found


def _padded(x: Tensor) -> Tensor:
    """Rows as columns, and more of them, as the kernel takes so many at a time. shape: (n, d) -> (d, n and more)"""
    more = -len(x) % LANES
    return torch.cat([x, x.new_zeros(more, x.shape[1])]).T.contiguous()


def _places_of_relus(steps: Sequence[Step], shape: tuple[int, int]) -> int:
    """How many variances all ReLUs look up."""
    (height, width), pile, count = shape, [], 0
    for kind, _, stride, _, _ in steps:
        if kind == "relu":
            count += height * width
        elif kind == "convolution":
            height, width = (height - 1) // stride + 1, (width - 1) // stride + 1
        elif kind == "mean":
            height = width = 1
        elif kind == "keep":
            pile.append((height, width))
        elif kind == "swap":
            (height, width), pile[-1] = pile[-1], (height, width)
        elif kind == "add":
            pile.pop()
    return count


def _library() -> Any:
    assert _kernels._library is not None
    return _kernels._library
