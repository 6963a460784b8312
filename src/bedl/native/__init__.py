"""A few kernels in C for uncompiled code on CPUs; where they are not built, or do not suit, callers go on in PyTorch.

They are built with the package if there is a C compiler (`hatch_build.py`), depend on neither Python's nor PyTorch's
binary interface, and share PyTorch's own threads. `BEDL_NATIVE=0` in the environment leaves them out.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = ["apply", "clocks", "is_built", "rectified", "rectified_gradients", "suits"]

Fit = tuple[tuple[float, ...], float]

_POINTER, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIGNATURES = {
    "bedl_rectified": [_COUNT, *[_POINTER] * 5, _NUMBER, _NUMBER],
    "bedl_rectified_gradients": [_COUNT, *[_POINTER] * 8, _NUMBER, _NUMBER],
    "bedl_clocks": [*[_COUNT] * 4, *[_POINTER] * 8],
}


def _load() -> ctypes.CDLL | None:
    source = Path(__file__).with_name("kernels.c")
    if os.environ.get("BEDL_NATIVE") == "0" or sys.byteorder != "little" or not source.exists():
        return None
    # The file's name tells what it was built from: one from another version, with other arguments, is never called.
    path = source.with_name(f"kernels-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.so")
    try:
        library = ctypes.CDLL(str(path))  # PyTorch is loaded by now, and with it the threads that the kernels ask for
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
    except (OSError, AttributeError):  # not built, or for another machine
        return None
    return library


_library = _load()


def is_built() -> bool:
    """Whether the kernels are there."""
    return _library is not None


def suits(*tensors: Tensor) -> bool:
    """Whether a kernel may take these tensors: float32 in the CPU's memory, and nobody watching the operations.

    Compilers, transforms, modes and autograd see PyTorch's operations only, so for them there have to be some.
    """
    if torch.compiler.is_compiling() or _library is None or torch.jit.is_tracing():
        return False
    if torch._C._len_torch_dispatch_stack() or forward_ad._current_level >= 0:
        return False
    recorded = torch.is_grad_enabled()
    return all(
        type(x) is Tensor
        and x.dtype is torch.float32
        and x.device.type == "cpu"
        and x.layout is torch.strided
        and not (recorded and x.requires_grad)
        and not x.is_neg()  # its memory holds the negative
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        for x in tensors
    )


def _aligned(*tensors: Tensor) -> list[Tensor]:
    """The same values, all laid out in memory as the first is, without gaps. shapes: (*shape), the same for all"""
    first = tensors[0]
    if not first.is_contiguous() and not first.is_contiguous(memory_format=torch.channels_last):
        first = first.contiguous()
    layout = first.shape, first.stride()
    return [x if (x.shape, x.stride()) == layout else torch.empty_like(first).copy_(x) for x in (first, *tensors[1:])]


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
        moved = [
            x if not isinstance(x, Tensor) else x.expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0)
            for x, d in zip(inputs, in_dims, strict=True)
        ]
        results = twin.apply(*moved)
        return results, 0 if isinstance(results, Tensor) else (0,) * len(results)

    twin: Any = type(function.__name__, (function,), {"generate_vmap_rule": False, "vmap": staticmethod(vmap)})
    return twin


@functools.lru_cache
def _floats(numbers: tuple[float, ...]) -> ctypes.Array:
    return (ctypes.c_float * len(numbers))(*numbers)


def rectified(m: Tensor, v: Tensor, fit: Fit, far: float) -> tuple[Tensor, Tensor]:
    """Mean and variance of max(x, 0), x ~ N(m, v).

    Args:
        m, v: tensors that it `suits`. shapes: (*shape)
        fit: coefficients and unit of `bedl.special`'s fit on the half line.
        far: standard deviations beyond which tails need not be told apart.

    Returns:
        shapes: (*shape), (*shape)
    """
    assert _library is not None
    m, v = _aligned(m, v)
    mean, variance = torch.empty_like(m), torch.empty_like(m)
    _library.bedl_rectified(m.numel(), *(x.data_ptr() for x in (m, v, mean, variance)), _floats(fit[0]), fit[1], far)
    return mean, variance


def rectified_gradients(
    m: Tensor, v: Tensor, mean: Tensor, by_mean: Tensor, by_variance: Tensor, fit: Fit, far: float
) -> tuple[Tensor, Tensor]:
    """Derivatives by m and v, from those by the results of `rectified`, of which `mean` is one. shapes: (*shape)"""
    assert _library is not None
    tensors = _aligned(m, v, mean, by_mean, by_variance)
    tensors += [torch.empty_like(tensors[0]), torch.empty_like(tensors[0])]
    _library.bedl_rectified_gradients(m.numel(), *(x.data_ptr() for x in tensors), _floats(fit[0]), fit[1], far)
    return tensors[-2], tensors[-1]


def clocks(
    m: Tensor, v: Tensor, nodes: Tensor, mixture: tuple[tuple[float, float, float], ...], slopes: bool
) -> tuple[Tensor, ...]:
    """`bedl.heads._clocks.clocks`, for tensors that `suits`.

    Args:
        m, v: shapes (*batch, C)
        nodes: shape (*batch, T)
        mixture: probability, mean and variance of each of 4, 6 or 8 components, the widest first.
        slopes: whether derivatives are asked for.

    Returns:
        shapes: (*batch, C, T), 2 or, with slopes, 4 of them
    """
    assert _library is not None
    m, v, nodes = (x.contiguous() for x in (m, v.expand_as(m), nodes.expand(*m.shape[:-1], -1)))
    results = tuple(m.new_empty(*m.shape, nodes.shape[-1]) for _ in range(4 if slopes else 2))
    points, classes = nodes.shape[:-1].numel(), m.shape[-1]
    pointers = [x.data_ptr() for x in (m, v, nodes, *results)] + [None] * (0 if slopes else 2)
    _library.bedl_clocks(points, classes, nodes.shape[-1], len(mixture), _floats(sum(mixture, ())), *pointers)
    return results
