"""Moments of activations: the kernels, and the tables that some of them read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bedl._kernels import inference
from bedl._kernels.inference import _floats, aligned

# Coefficients by the name of the function, made when they are first asked for; filled by bedl.moments.rules.tables.
TABLES: dict[str, Callable[[], Tensor]] = {}


def tabulated_moments(
    m: Tensor, v: Tensor, plain: Tensor, name: str, scale: float, grows: bool
) -> tuple[Tensor, Tensor]:
    """Mean and variance of f(x), x ~ N(m, v).

    Args:
        m, v, plain: the latter f(m). shapes: (*shape)
        name, scale, grows: of the table, see `bedl.moments.rules.tables`.

    Returns:
        shapes: (*shape), (*shape)
    """
    tensors = aligned(m, v, plain)
    mean, variance = torch.empty_like(tensors[0]), torch.empty_like(tensors[0])
    pointers = (x.data_ptr() for x in (*tensors, mean, variance, TABLES[name]()))
    _library().bedl_tabulated(m.numel(), *pointers, scale, grows)
    return mean, variance


def tabulated_moments_backward(
    m: Tensor, v: Tensor, by_mean: Tensor, by_variance: Tensor, name: str, scale: float, grows: bool
) -> tuple[Tensor, Tensor]:
    """Derivatives by m and v, from those by the results of `tabulated_moments`. shapes: (*shape)"""
    return _slopes("tabulated", (m, v, by_mean, by_variance), TABLES[name]().data_ptr(), scale, grows)


# Activations made of pieces. `fit`, `unit` and `far` are those of `bedl._kernels.relu_moments`; all shapes (*shape).


def elu_moments(
    m: Tensor, v: Tensor, alpha: float, fit: Sequence[float], unit: float, far: float
) -> tuple[Tensor, Tensor]:
    """Mean and variance of ELU."""
    return _moments("elu", m, v, alpha, _floats(tuple(fit)), unit, far)


def elu_moments_backward(
    m: Tensor, v: Tensor, mean: Tensor, by_mean: Tensor, by_variance: Tensor, alpha: float,
    fit: Sequence[float], unit: float, far: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Derivatives by m and v, from those by the results of `elu_moments`, of which `mean` is one."""
    return _slopes("elu", (m, v, mean, by_mean, by_variance), alpha, _floats(tuple(fit)), unit, far)


def clipped_moments(
    m: Tensor, v: Tensor, low: float, high: float, nodes: Sequence[float], fit: Sequence[float], unit: float, far: float
) -> tuple[Tensor, Tensor]:
    """Mean and variance of min(max(x, low), high); `nodes` are 12 of Gauss and Legendre, each with its weight."""
    return _moments("clipped", m, v, low, high, _floats(tuple(nodes)), _floats(tuple(fit)), unit, far)


def clipped_moments_backward(
    m: Tensor, v: Tensor, mean: Tensor, by_mean: Tensor, by_variance: Tensor, low: float, high: float,
    nodes: Sequence[float], fit: Sequence[float], unit: float, far: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Derivatives by m and v, from those by the results of `clipped_moments`, of which `mean` is one."""
    law = _floats(tuple(nodes)), _floats(tuple(fit))
    return _slopes("clipped", (m, v, mean, by_mean, by_variance), low, high, *law, unit, far)


def hardswish_moments(m: Tensor, v: Tensor, fit: Sequence[float], unit: float, far: float) -> tuple[Tensor, Tensor]:
    """Mean and variance of hardswish."""
    return _moments("hardswish", m, v, TABLES["hardswish"]().data_ptr(), _floats(tuple(fit)), unit, far)


def hardswish_moments_backward(
    m: Tensor, v: Tensor, by_mean: Tensor, by_variance: Tensor, fit: Sequence[float], unit: float, far: float
) -> tuple[Tensor, Tensor]:
    """Derivatives by m and v, from those by the results of `hardswish_moments`."""
    table = TABLES["hardswish"]().data_ptr()
    return _slopes("hardswish", (m, v, by_mean, by_variance), table, _floats(tuple(fit)), unit, far)


def _moments(name: str, m: Tensor, v: Tensor, *constants: Any) -> tuple[Tensor, Tensor]:
    m, v = aligned(m, v)
    mean, variance = torch.empty_like(m), torch.empty_like(m)
    pointers = (x.data_ptr() for x in (m, v, mean, variance))
    getattr(_library(), f"bedl_{name}")(m.numel(), *pointers, *constants)
    return mean, variance


def _slopes(name: str, tensors: Sequence[Tensor], *constants: Any) -> tuple[Tensor, Tensor]:
    tensors = aligned(*tensors)
    by_m, by_v = torch.empty_like(tensors[0]), torch.empty_like(tensors[0])
    pointers = (x.data_ptr() for x in (*tensors, by_m, by_v))
    getattr(_library(), f"bedl_{name}_gradients")(by_m.numel(), *pointers, *constants)
    return by_m, by_v


def _library() -> inference.ctypes.CDLL:
    assert inference._library is not None
    return inference._library
