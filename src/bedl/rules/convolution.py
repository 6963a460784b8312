"""Convolutions: products whose sums run over a window, in the memory layout that is fastest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl.moments import Moments
from bedl.rules.affine import Operand, biased

__all__ = ["convolution"]


def convolution(conv: Callable[..., Tensor], dims: int) -> Callable[..., Moments]:
    """The rule of a convolution function (transposed or not) over `dims` spatial dimensions."""

    def rule(input: Operand, weight: Operand, bias: Operand | None = None, *args: Any, **kwargs: Any) -> Moments:
        input = _channels_last(input)
        few = conv is F.conv2d and _suits_patches(input, weight, *args, **kwargs)

        def convolve(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
            if few:
                return _by_patches(x, w, bias, *args, **kwargs)
            return conv(_one_channel_last(x) if dims == 2 else x, w, bias, *args, **kwargs)

        def total(x: Tensor, by_output: Tensor) -> Tensor:
            return _window_sums(conv, dims, x, weight.shape[2:], args, kwargs) * by_output.view(-1, *[1] * dims)

        return biased(convolve, input, weight, bias, total, dims)

    rule.__name__ = getattr(conv, "__name__", "convolution")
    return rule


def _window_sums(
    conv: Callable[..., Tensor], dims: int, x: Tensor, window: torch.Size, args: tuple, kwargs: dict[str, Any]
) -> Tensor:
    """The sum of all inputs that an output sees, for a convolution without groups.

    Args:
        x: one point, or several. shape: (*n, channels, *positions)
        window: shape of the kernel. shape: (*window)

    Returns:
        shape: (*n, 1, *outputs)
    """
    ones = torch.ones(1, 1, *window, dtype=x.dtype, device=x.device)
    return conv(x.sum(-dims - 1, keepdim=True), ones, None, *args, **kwargs)


def _channels_last(x: Operand) -> Operand:
    """The same values with channels innermost in memory: there CPUs convolve up to twice as fast. shape: (*shape)"""
    if x.dim() != 4 or not _is_fast_cpu(x):
        return x
    if isinstance(x, Moments):
        return Moments(_innermost(x.loc), _innermost(x.variance))
    return _innermost(x)


def _innermost(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # vmap knows no memory formats


def _one_channel_last(x: Tensor) -> Tensor:
    """One channel is innermost and outermost at once: its stride alone tells the library which is meant. shape: (*)"""
    if x.dim() != 4 or x.shape[1] != 1 or not _is_fast_cpu(x):
        return x
    return x.reshape(x.shape[0], *x.shape[2:], 1).permute(0, 3, 1, 2)


def _is_fast_cpu(x: Operand) -> bool:
    return x.device.type == "cpu" and x.dtype != torch.float64 and not torch.compiler.is_exporting()


def _suits_patches(
    x: Operand, weight: Operand, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> bool:
    """Images with one channel, compiled: the library's convolution leaves channels outermost and is itself slower.

    Uncompiled nothing is gained, and the patches would be kept for the backward pass.
    """
    return (
        torch.compiler.is_compiling() and weight.shape[1] == 1 and groups == 1 and x.dim() == 4
        and not isinstance(padding, str) and dilation in (1, (1,), (1, 1)) and _is_fast_cpu(x)
    )  # fmt: skip


def _by_patches(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any = 1, padding: Any = 0, *_: Any, **__: Any
) -> Tensor:
    """A convolution as one product of matrices, its result with channels innermost in memory.

    Args:
        x: shape (n, 1, height, width)
        weight: shape (outputs, 1, *window)
    """
    across, down = (stride, stride) if isinstance(stride, int) else (stride[-1], stride[0])
    sides = (padding, padding) if isinstance(padding, int) else (padding[-1], padding[0])
    if any(sides):
        x = F.pad(x, (sides[0], sides[0], sides[1], sides[1]))
    patches = x.squeeze(1).unfold(1, weight.shape[2], down).unfold(2, weight.shape[3], across)
    return F.linear(patches.flatten(3), weight.flatten(1), bias).permute(0, 3, 1, 2)
