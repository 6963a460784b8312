"""The kernels as operators of PyTorch, `torch.ops.bedl`, which compilers call as they are.

The formulas behind them are long: to compile those takes most of the time of compiling a network, and gives code
that is no faster.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from bedl._kernels import inference
from bedl._utils.autograd import to_front

_room = torch.library.Library("bedl", "DEF")  # the operators are there as long as this is
Kernel = TypeVar("Kernel", bound=Callable[..., tuple[Tensor, ...]])
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)


def _refuse(ctx: Any, *_: Any) -> Any:
    raise NotImplementedError("a kernel of bedl._kernels without derivatives was differentiated: please report this")


def _operator(
    kernel: Kernel,
    result: Callable[..., Tensor],
    backward: Callable[..., Any] = _refuse,
) -> Kernel:
    """The kernel, which compilers see as one operator; others call it directly, as dispatch would take longer.

    Args:
        kernel: of tensors with any number of leading axes for independent points.
        result: of the same arguments: an empty tensor, laid out as each result will be.
        backward: of a context, with all tensors among inputs and results saved, and the derivatives by the results.
            Autograd functions that call kernels have derivatives of their own; under `vmap` compilers look inside.
    """
    name = kernel.__name__
    _room.define(name + torch.library.infer_schema(kernel, mutates_args=()), tags=_TAGS)
    _room.impl(name, kernel, "CPU")
    operator = getattr(torch.ops.bedl, name).default
    count = len(operator._schema.returns)

    def fake(*inputs: Any) -> tuple[Tensor, ...]:
        return tuple(result(*inputs) for _ in range(count))

    def vmap(info: Any, dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return operator(*to_front(info.batch_size, dims, inputs)), (0,) * count

    def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.constants = [x for x in inputs if not isinstance(x, Tensor)]
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)), *output)

    torch.library.register_autograd(f"bedl::{name}", backward, setup_context=setup, lib=_room)
    _room.impl(name, fake, "Meta")  # `register_fake` does the same, after a look into the files of all modules
    torch.library.register_vmap(f"bedl::{name}", vmap, lib=_room)

    @functools.wraps(kernel)
    def call(*inputs: Any) -> Any:
        return operator(*inputs) if torch.compiler.is_compiling() else kernel(*inputs)

    return cast(Kernel, call)


def _like_first(m: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(inference.aligned(m)[0])


def _class_by_node(m: Tensor, v: Tensor, nodes: Tensor, *_: Any) -> Tensor:
    return m.new_empty(*m.shape, nodes.shape[-1])


def _backward_of_relu_moments(ctx: Any, by_mean: Tensor, by_variance: Tensor) -> tuple[Tensor | None, ...]:
    m, v, mean, _ = ctx.saved_tensors
    by_m, by_v = torch.ops.bedl.relu_moments_backward(m, v, mean, by_mean, by_variance, *ctx.constants)
    return by_m, by_v, None, None, None


def _backward_of_log_survival(ctx: Any, by_survival: Tensor, by_density: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    """First derivatives, so none by the slopes: dL/dm = -D, dL/dv = -D'/2, as in the race's `pull_back`."""
    _, v, _, log_survival, log_density, by_mean, by_variance = ctx.saved_tensors
    lost = by_survival * torch.exp(log_density - log_survival)
    by_m = (by_density * by_mean - lost).sum(-1)
    by_v = (by_density * by_variance - 0.5 * lost * by_mean).sum(-1)
    return by_m, by_v.sum_to_size(v.shape), None, None


def _backward_of_elu(ctx: Any, by_mean: Tensor, by_variance: Tensor) -> tuple[Tensor | None, ...]:
    m, v, mean, _ = ctx.saved_tensors
    by_m, by_v = torch.ops.bedl.elu_moments_backward(m, v, mean, by_mean, by_variance, *ctx.constants)
    return by_m, by_v, *[None] * len(ctx.constants)


def _backward_of_clipped(ctx: Any, by_mean: Tensor, by_variance: Tensor) -> tuple[Tensor | None, ...]:
    m, v, mean, _ = ctx.saved_tensors
    by_m, by_v = torch.ops.bedl.clipped_moments_backward(m, v, mean, by_mean, by_variance, *ctx.constants)
    return by_m, by_v, *[None] * len(ctx.constants)


def _backward_of_hardswish(ctx: Any, by_mean: Tensor, by_variance: Tensor) -> tuple[Tensor | None, ...]:
    m, v, *_ = ctx.saved_tensors
    by_m, by_v = torch.ops.bedl.hardswish_moments_backward(m, v, by_mean, by_variance, *ctx.constants)
    return by_m, by_v, *[None] * len(ctx.constants)


def _backward_of_tabulated(ctx: Any, by_mean: Tensor, by_variance: Tensor) -> tuple[Tensor | None, ...]:
    m, v, *_ = ctx.saved_tensors
    by_m, by_v = torch.ops.bedl.tabulated_moments_backward(m, v, by_mean, by_variance, *ctx.constants)
    return by_m, by_v, None, None, None, None


relu_moments_backward = _operator(inference.relu_moments_backward, _like_first)
relu_moments = _operator(inference.relu_moments, _like_first, _backward_of_relu_moments)
log_survival_and_density = _operator(inference.log_survival_and_density, _class_by_node)
log_survival_density_and_slopes = _operator(
    inference.log_survival_density_and_slopes, _class_by_node, _backward_of_log_survival
)
tabulated_moments_backward = _operator(inference.tabulated_moments_backward, _like_first)
tabulated_moments = _operator(inference.tabulated_moments, _like_first, _backward_of_tabulated)
elu_moments_backward = _operator(inference.elu_moments_backward, _like_first)
elu_moments = _operator(inference.elu_moments, _like_first, _backward_of_elu)
hardswish_moments_backward = _operator(inference.hardswish_moments_backward, _like_first)
hardswish_moments = _operator(inference.hardswish_moments, _like_first, _backward_of_hardswish)
clipped_moments_backward = _operator(inference.clipped_moments_backward, _like_first)
clipped_moments = _operator(inference.clipped_moments, _like_first, _backward_of_clipped)
