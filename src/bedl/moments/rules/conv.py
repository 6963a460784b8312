"""Convolutions with strides, trained on CPUs: the derivative by the weight as a product of matrices.

The library's own runs at half the speed of its other convolutions there, or less. A matrix product over patches does
not, if so few are laid out at a time that they stay in the cache, and for many outputs. Same result, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl.moments import Moments
from bedl.moments.rules.linear import Operand, biased

NUMBERS_AT_A_TIME = 2**21  # of patches: eight megabytes of float32

Pair = tuple[int, int]


def _patches(x: Tensor, window: list[int], stride: list[int], padding: list[int], dilation: list[int]) -> Tensor:
    """What each output sees, as a view if nothing is padded.

    Args:
        x: shape (n, channels, height, width)

    Returns:
        shape (n, rows, columns, *window, channels)
    """
    x = x.permute(0, 2, 3, 1)
    if any(padding):
        x = F.pad(x, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, window, strict=True)]
    seen = x.unfold(1, spans[0], stride[0]).unfold(2, spans[1], stride[1])[..., :: dilation[0], :: dilation[1]]
    return seen.permute(0, 1, 2, 4, 5, 3)


@torch.library.custom_op("bedl::convolution_weight_gradient", mutates_args=())
def _weight_gradient(
    grad: Tensor, x: Tensor, window: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    """The derivative of a convolution by its weight: what an output sees, times the derivative by that output, summed.

    Args:
        grad: derivative by the output. shape: (n, outputs, rows, columns)
        x: shape (n, channels, height, width)

    Returns:
        shape (outputs, channels, *window)
    """
    (n, channels), (outputs, rows, columns) = x.shape[:2], grad.shape[1:]
    patches = _patches(x, window, stride, padding, dilation)
    grad = grad.permute(0, 2, 3, 1).reshape(n, rows * columns, outputs)
    size = window[0] * window[1] * channels
    at_a_time = max(1, min(n, NUMBERS_AT_A_TIME // max(rows * columns * size, 1)))
    laid_out = x.new_empty(at_a_time, *patches.shape[1:])
    result = x.new_zeros(outputs, size)
    for start in range(0, n, at_a_time):
        count = min(at_a_time, n - start)
        laid_out[:count].copy_(patches[start : start + count])
        one = grad[start : start + count].reshape(-1, outputs)
        result.addmm_(one.t(), laid_out[:count].view(-1, size))
    return result.view(outputs, *window, channels).permute(0, 3, 1, 2)


@_weight_gradient.register_fake
def _(grad: Tensor, x: Tensor, window: list[int], *_: list[int]) -> Tensor:
    return x.new_empty(grad.shape[1], *window, x.shape[1]).permute(0, 3, 1, 2)


@_weight_gradient.register_vmap
def _(info: Any, in_dims: tuple, grad: Tensor, x: Tensor, *how: list[int]) -> tuple[Tensor, int]:
    several = [
        [t] * info.batch_size if dim is None else t.unbind(dim)
        for t, dim in zip((grad, x), in_dims[:2], strict=True)
    ]  # fmt: skip
    return torch.stack([_weight_gradient(g, one, *how) for g, one in zip(*several, strict=True)]), 0


def _input_gradient(grad: Tensor, x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any) -> Tensor:
    """The derivative of a convolution by its input; the library's. shapes: as in `_weight_gradient`"""
    wanted = (True, False, False)
    return torch.ops.aten.convolution_backward(
        grad, x, weight, None, stride, padding, dilation, False, (0, 0), 1, wanted
    )[0]


class _WeightGradient(torch.autograd.Function):
    """`_weight_gradient`, differentiable. It is linear in both: what multiplies `grad` is a convolution of x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, x: Tensor, window: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
        return _weight_gradient(grad, x, window, stride, padding, dilation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        grad, x, _, *ctx.how = inputs
        ctx.save_for_backward(grad, x)

    @staticmethod
    def backward(ctx: Any, by_weight: Tensor) -> tuple[Tensor | None, ...]:
        grad, x = ctx.saved_tensors
        return F.conv2d(x, by_weight, None, *ctx.how), _input_gradient(grad, x, by_weight, *ctx.how), *[None] * 4


class _Strided(torch.autograd.Function):
    """The library's convolution, with its own derivative by the input."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
        return F.conv2d(x, weight, bias, *how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, weight, _, *ctx.how = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
        return (
            _input_gradient(grad, x, weight, *ctx.how) if for_x else None,
            _WeightGradient.apply(grad, x, tuple(weight.shape[2:]), *ctx.how) if for_weight else None,
            grad.sum((0, 2, 3)) if for_bias else None,
            None, None, None,
        )  # fmt: skip


def convolve_strided(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair
) -> Tensor:
    """`F.conv2d` without groups.

    Args:
        x: shape (n, channels, height, width)
        weight: shape (outputs, channels, *window)
        bias: shape (outputs,)

    Returns:
        shape (n, outputs, rows, columns)
    """
    return _Strided.apply(x, weight, bias, stride, padding, dilation)


# Convolutions: products whose sums run over a window, in the memory layout that is fastest.


MIN_OUTPUTS = 128  # from there on the weight's derivative takes 0.4 to 1.0 of the library's time, below 0.8 to 2.4


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
    return max(how.stride) > 1 and max(weight.shape[2:]) > 1 and weight.shape[0] >= MIN_OUTPUTS


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
