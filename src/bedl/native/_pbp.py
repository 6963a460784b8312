"""Kernels of probabilistic backpropagation, for tensors in double precision; twins of `bedl.methods.pbp`."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

from torch import Tensor

from bedl.native import _kernels

__all__ = ["refine", "take_in"]


def take_in(
    sizes: Sequence[int], x: Tensor, y: Tensor, order: Tensor, mean: Tensor, variance: Tensor, shape: Tensor,
    rate: Tensor,
) -> None:  # fmt: skip
    """One pass over points, which changes weights and noise in place; all without gaps, in the CPU's memory.

    Args:
        sizes: of the layers: features, hidden widths, targets.
        x, y: points. shapes: (n, features), (n, targets)
        order: of the points. shape: (n,), int64
        mean, variance: of all weights, layer behind layer. shape: (weights,)
        shape, rate: of the noise precisions. shape: (targets,)
    """
    assert _kernels._library is not None
    widths = (ctypes.c_int64 * len(sizes))(*sizes)
    pointers = (tensor.data_ptr() for tensor in (order, x, y, mean, variance, shape, rate))
    _kernels._library.bedl_pbp_pass(len(sizes) - 1, widths, len(order), *pointers)


def refine(mean: Tensor, variance: Tensor, factors: Sequence[array[float]], both: array[float]) -> None:
    """One round over the factors of the prior, which changes everything in place.

    Args:
        mean, variance: of all weights. shape: (weights,)
        factors: of each weight: linear, precision, shape, rate.
        both: shape and rate of lambda.
    """
    assert _kernels._library is not None
    pointers = (numbers.buffer_info()[0] for numbers in (*factors, both))
    _kernels._library.bedl_pbp_refine(len(mean), mean.data_ptr(), variance.data_ptr(), *pointers)
