"""Helpers for functions with derivatives of their own: how they are called, mapped over and differentiated once."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


def apply(function: Any, *inputs: Any) -> Any:
    """`function.apply(*inputs)`, in a way that kernels also serve inside `torch.func.vmap`.

    Args:
        function: an autograd function with `generate_vmap_rule`, whose tensors have any number of leading axes for
            independent points.
    """
    # compilers know PyTorch's own rule
    return (function if torch.compiler.is_compiling() else _mapped_in_front(function)).apply(*inputs)


@functools.lru_cache
def _mapped_in_front(function: Any) -> Any:
    """The same function, but for its vmap rule: it sees plain tensors, with what is mapped over as one more axis."""

    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        results = derived.apply(*to_front(info.batch_size, in_dims, inputs))
        return results, 0 if isinstance(results, Tensor) else (0,) * len(results)

    derived: Any = type(function.__name__, (function,), {"generate_vmap_rule": False, "vmap": staticmethod(vmap)})
    return derived


def differentiated(form: Any, inputs: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Derivatives by the inputs, from those by the results of `form`, which is computed once more for that."""
    pull_back = torch.func.vjp(form, *inputs)[1]
    return pull_back(grads)


def to_front(size: int, dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> list[Any]:
    """Inputs with the axis that `torch.vmap` maps over, of the given size, as the first one of each tensor."""
    return [
        x if not isinstance(x, Tensor) else x.expand(size, *x.shape) if d is None else x.movedim(d, 0)
        for x, d in zip(inputs, dims, strict=True)
    ]


class _FirstOrderOnly(torch.autograd.Function):
    """The identity on a gradient; refuses to be differentiated, where a hand-written backward would answer wrongly."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, *inputs: Tensor) -> Tensor:
        return grad.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            "the race has first derivatives only; use Dirichlet(..., method='mc') for second ones"
        )


def first_order_only(grad: Tensor, *inputs: Tensor) -> Tensor:
    """A gradient that raises when differentiated with respect to the inputs it was computed from."""
    if torch.compiler.is_compiling():  # compiled code refuses second derivatives by itself
        return grad
    return _FirstOrderOnly.apply(grad, *inputs)
