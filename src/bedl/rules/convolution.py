"""Convolutions: products whose sums run over a window, in the memory layout that is fastest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl.moments import Moments
from bedl.rules._strided import convolve_strided
from bedl.rules.affine import Operand, biased

__all__ = ["convolution"]

MANY_OUTPUTS = 128  # from there on the weight's derivative takes 0.4 to 1.0 of the library's time, below 0.8 to 2.4


def convolution(conv: Callable[..., Tensor], dims: int) -> Callable[..., Moments]:
    """The rule of a convolution function (transposed or not) over `dims` spatial dimensions."""

    def rule(input: Operand, weight: Operand, bias: Operand | None = None, *args: Any, **kwargs: Any) -> Moments:
        input = _channels_last(input)
        how = _how(input, *args, **kwargs) if conv is F.conv2d else None

        def convolve(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
            if how is not None and w.shape[1] == 1 and how.dilation == (1, 1) and torch.compiler.is_compiling():
                return _by_patches(x, w, bias, how)
            x = _one_channel_last(x) if dims == 2 else x
            if how is not None and _suits_products(w, how) and _is_trained(x, w):
                return convolve_strided(x, w, bias, how.stride, how.padding, how.dilation)
            return conv(x, w, bias, *args, **kwargs)

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


class _How(NamedTuple):
    """The arguments of a convolution in two dimensions, without groups."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


def _how(x: Operand, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> _How | None:
    """The arguments of a convolution of x, if it is one for which there are several ways. shape: (*shape)"""
    if groups != 1 or x.dim() != 4 or isinstance(padding, str) or not _is_fast_cpu(x):
        return None
    return _How(*((a, a) if isinstance(a, int) else (a[0], a[-1]) for a in (stride, padding, dilation)))


def _suits_products(weight: Tensor, how: _How) -> bool:
    """Whether `convolve_strided` is faster: laying out patches pays off over many outputs, not over few.

    Args:
        weight: shape (outputs, channels, *window)
    """
    return max(how.stride) > 1 and max(weight.shape[2:]) > 1 and weight.shape[0] >= MANY_OUTPUTS


def _is_trained(x: Tensor, weight: Tensor) -> bool:
    """Whether there will be a derivative by the weight, in the precision of the operands. shapes: (*)"""
    same = x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return same and torch.is_grad_enabled() and weight.requires_grad


def _by_patches(x: Tensor, weight: Tensor, bias: Tensor | None, how: _How) -> Tensor:
    """A convolution as one product of matrices, its result with channels innermost in memory.

    For images with one channel, compiled: the library's convolution leaves channels outermost and is itself slower.
    Uncompiled nothing is gained, and the patches would be kept for the backward pass.

    Args:
        x: shape (n, 1, height, width)
        weight: shape (outputs, 1, *window)
    """
    down, across = how.padding
    if down or across:
        x = F.pad(x, (across, across, down, down))
    patches = x.squeeze(1).unfold(1, weight.shape[2], how.stride[0]).unfold(2, weight.shape[3], how.stride[1])
    return F.linear(patches.flatten(3), weight.flatten(1), bias).permute(0, 3, 1, 2)
