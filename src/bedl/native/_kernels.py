"""The kernels themselves: how they are found, and one function for each, of tensors that suit it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Small", "aligned", "clocks", "clocks_and_slopes", "data_entropy", "is_built", "log_mean_softmax",
    "normal_parts", "rectified",
    "rectified_gradients", "small_network",
]  # fmt: skip

MOST_NODES = 64  # of a race, in kernels that run one
_POINTER, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIGNATURES = {
    "bedl_rectified": [_COUNT, *[_POINTER] * 5, _NUMBER, _NUMBER],
    "bedl_rectified_gradients": [_COUNT, *[_POINTER] * 8, _NUMBER, _NUMBER],
    "bedl_clocks": [*[_COUNT] * 4, *[_POINTER] * 8],
    "bedl_log_mean_softmax": [*[_COUNT] * 4, *[_POINTER] * 4],
    "bedl_data_entropy": [*[_COUNT] * 7, _NUMBER, *[_POINTER] * 5],
    "bedl_small_network": [_COUNT, _COUNT, *[_POINTER] * 6, _NUMBER, _NUMBER, *[_POINTER] * 2],
    "bedl_normal_parts": [*[_COUNT] * 3, _NUMBER, *[_POINTER] * 3],
    "bedl_panels": [*[_POINTER] * 3, _COUNT, _POINTER, _POINTER],
    "bedl_chain": [*[_COUNT] * 3, *[_POINTER] * 4, _NUMBER, _NUMBER, _POINTER, _COUNT, _COUNT, _POINTER, _POINTER],
    # a training step, see `_training`
    "bedl_weights": [*[_COUNT] * 3, *[_POINTER] * 5],
    "bedl_weights_gradients": [*[_COUNT] * 3, *[_POINTER] * 7],
    "bedl_affine": [_POINTER] * 10,
    "bedl_affine_gradients": [_POINTER] * 15,
    "bedl_norms": [_COUNT, _COUNT, _POINTER, _POINTER],
    "bedl_adam": [_COUNT, _COUNT, _POINTER, _POINTER, *[_NUMBER] * 4, *[_POINTER] * 4],
    "bedl_columns": [*[_COUNT] * 6, *[_POINTER] * 6],
    "bedl_columns_gradients": [*[_COUNT] * 6, *[_POINTER] * 9],
    "bedl_normal_loss": [*[_COUNT] * 5, _NUMBER, _NUMBER, *[_POINTER] * 8],
    "bedl_dirichlet_loss": [*[_COUNT] * 6, _NUMBER, *[_POINTER] * 10],
    # see `_pbp`
    "bedl_pbp_pass": [_COUNT, _POINTER, _COUNT, *[_POINTER] * 7],
    "bedl_pbp_refine": [_COUNT, *[_POINTER] * 7],
    # see `_image_kernel`
    "bedl_image_variances": [_COUNT, *[_POINTER] * 5, *[_COUNT] * 3, *[_POINTER] * 3],
    "bedl_image_covariances": [_COUNT, *[_POINTER] * 5, *[_COUNT] * 7, *[_POINTER] * 5],
}


def _load() -> ctypes.CDLL | None:
    room = Path(__file__).parent
    if os.environ.get("BEDL_NATIVE") == "0" or sys.byteorder != "little":
        return None
    # The file's name tells what it was built from: one from another version, with other arguments, is never called.
    text = b"".join(path.read_bytes() for path in sorted(room.glob("*.[ch]")))
    path = room / f"kernels-{hashlib.sha256(text).hexdigest()[:12]}.so"
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


def aligned(*tensors: Tensor) -> list[Tensor]:
    """The same values, all laid out in memory as the first is, without gaps. shapes: (*shape), the same for all"""
    first = tensors[0]
    if not first.is_contiguous() and not first.is_contiguous(memory_format=torch.channels_last):
        first = first.contiguous()
    layout = first.shape, first.stride()
    return [x if (x.shape, x.stride()) == layout else torch.empty_like(first).copy_(x) for x in (first, *tensors[1:])]


@functools.lru_cache
def _floats(numbers: tuple[float, ...]) -> ctypes.Array:
    return (ctypes.c_float * len(numbers))(*numbers)


def rectified(m: Tensor, v: Tensor, fit: Sequence[float], unit: float, far: float) -> tuple[Tensor, Tensor]:
    """Mean and variance of max(x, 0), x ~ N(m, v).

    Args:
        m, v: shapes (*shape)
        fit, unit: coefficients and unit of `bedl.special`'s fit on the half line.
        far: standard deviations beyond which tails need not be told apart.

    Returns:
        shapes: (*shape), (*shape)
    """
    assert _library is not None
    m, v = aligned(m, v)
    mean, variance = torch.empty_like(m), torch.empty_like(m)
    _library.bedl_rectified(m.numel(), *(x.data_ptr() for x in (m, v, mean, variance)), _floats(tuple(fit)), unit, far)
    return mean, variance


def rectified_gradients(
    m: Tensor, v: Tensor, mean: Tensor, by_mean: Tensor, by_variance: Tensor,
    fit: Sequence[float], unit: float, far: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Derivatives by m and v, from those by the results of `rectified`, of which `mean` is one. shapes: (*shape)"""
    assert _library is not None
    tensors = aligned(m, v, mean, by_mean, by_variance)
    tensors += [torch.empty_like(tensors[0]), torch.empty_like(tensors[0])]
    _library.bedl_rectified_gradients(m.numel(), *(x.data_ptr() for x in tensors), _floats(tuple(fit)), unit, far)
    return tensors[-2], tensors[-1]


class Small(NamedTuple):
    """A layer of a small network.

    Attributes:
        mean: shape (outputs, inputs)
        spread: variances, or their logarithms where `is_log`. shape: (outputs, inputs)
        bias: shape (outputs,)
        rectifies: whether ReLU follows.
    """

    mean: Tensor
    spread: Tensor
    is_log: bool
    bias: Tensor | None
    rectifies: bool

    @property
    def tensors(self) -> list[Tensor]:
        """Those that there are."""
        return [self.mean, self.spread] if self.bias is None else [self.mean, self.spread, self.bias]


def small_network(
    x: Tensor, scaling: tuple[Tensor, Tensor] | None, layers: Sequence[Small],
    fit: Sequence[float], unit: float, far: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Means and variances of a network's outputs, for known inputs; all tensors without gaps.

    Args:
        x: shape (n, d)
        scaling: what is taken from x, and what the rest is divided by. shapes: (d,)
        layers: one or more.
        fit, unit, far: as for `rectified`.

    Returns:
        shapes: (n, outputs), (n, outputs)
    """
    assert _library is not None
    count, made = len(layers), (x.shape[0], layers[-1].mean.shape[0])
    numbers = [x.shape[1]]
    pointers: list[int | None] = []
    for mean, spread, is_log, bias, rectifies in layers:
        numbers += (mean.shape[0], is_log, rectifies)
        pointers += (mean.data_ptr(), spread.data_ptr(), None if bias is None else bias.data_ptr())
    shift, scale = (None, None) if scaling is None else (part.data_ptr() for part in scaling)
    loc, variance = x.new_empty(made), x.new_empty(made)
    _library.bedl_small_network(
        made[0], count, _whole(len(numbers))(*numbers), _several(len(pointers))(*pointers), x.data_ptr(), shift, scale,
        _floats(tuple(fit)), unit, far, loc.data_ptr(), variance.data_ptr(),
    )  # fmt: skip
    return loc, variance


@functools.lru_cache
def _whole(count: int) -> type[ctypes.Array]:
    return ctypes.c_int64 * count


@functools.lru_cache
def _several(count: int) -> type[ctypes.Array]:
    return ctypes.c_void_p * count


def normal_parts(m: Tensor, v: Tensor, targets: int, learned: bool, log_beta: float) -> tuple[Tensor, ...]:
    """What `bedl.heads.Normal` makes of outputs: mean, data, distributional, model.

    Args:
        m, v: without gaps. shape: (n, outputs)
        targets: how many there are, D.
        learned: whether the third output is the noise.
        log_beta: of the head.

    Returns:
        shapes: 4 × (n, D)
    """
    assert _library is not None
    made = m.new_empty(4, m.shape[0], targets)
    _library.bedl_normal_parts(m.shape[0], targets, learned, log_beta, m.data_ptr(), v.data_ptr(), made.data_ptr())
    return made.unbind()


def clocks(m: Tensor, v: Tensor, nodes: Tensor, mixture: Sequence[float]) -> tuple[Tensor, Tensor]:
    """`bedl.heads.race.clocks.clocks` without slopes.

    Args:
        m, v: shapes (*batch, C)
        nodes: shape (*batch, T)
        mixture: probability, mean and variance of each of 4, 6 or 8 components, the widest first.

    Returns:
        shapes: (*batch, C, T), (*batch, C, T)
    """
    log_survival, log_density = _clocks(m, v, nodes, mixture, results=2)
    return log_survival, log_density


def clocks_and_slopes(
    m: Tensor, v: Tensor, nodes: Tensor, mixture: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same with slopes. shapes: 4 × (*batch, C, T)"""
    log_survival, log_density, by_mean, by_variance = _clocks(m, v, nodes, mixture, results=4)
    return log_survival, log_density, by_mean, by_variance


def log_mean_softmax(m: Tensor, v: Tensor, times: int, mixture: Sequence[float]) -> Tensor:
    """`bedl.heads.race.log_mean_softmax`, without derivatives.

    Args:
        m, v: shapes (*batch, C)
        times: nodes of the race, at most `MOST_NODES`.
        mixture: as for `clocks`.

    Returns:
        shape: (*batch, C)
    """
    assert _library is not None
    m, v = m.contiguous(), v.expand_as(m).contiguous()
    made = torch.empty_like(m)
    points, tensors = m.shape[:-1].numel(), (x.data_ptr() for x in (m, v, made))
    _library.bedl_log_mean_softmax(points, m.shape[-1], times, len(mixture) // 3, _floats(tuple(mixture)), *tensors)
    return made


def data_entropy(
    m: Tensor, v: Tensor, mixture: Sequence[float], coarse: tuple[int, int], fine: tuple[int, int], wide: float,
    hermite: Sequence[float],
) -> Tensor:  # fmt: skip
    """`bedl.heads.race.evidence`, without derivatives.

    Args:
        m, v: shapes (*batch, C)
        mixture: as for `clocks`.
        coarse, fine: nodes of the race, at most 64, and around each mode, at most 21.
        wide: variance from which the fine rule is taken.
        hermite: nodes and weights of 7, and of the coarse and the fine rule.

    Returns:
        shape: (*batch)
    """
    assert _library is not None
    m, v = m.contiguous(), v.contiguous()
    made = m.new_empty(m.shape[:-1])
    tensors = (x.data_ptr() for x in (m, v, made))
    laws = _floats(tuple(mixture)), _floats(tuple(hermite))
    _library.bedl_data_entropy(made.numel(), m.shape[-1], len(mixture) // 3, *coarse, *fine, wide, *laws, *tensors)
    return made


def _clocks(m: Tensor, v: Tensor, nodes: Tensor, mixture: Sequence[float], results: int) -> list[Tensor]:
    assert _library is not None
    m, v, nodes = (x.contiguous() for x in (m, v.expand_as(m), nodes.expand(*m.shape[:-1], -1)))
    made = [m.new_empty(*m.shape, nodes.shape[-1]) for _ in range(results)]
    points, classes = nodes.shape[:-1].numel(), m.shape[-1]
    pointers = [x.data_ptr() for x in (m, v, nodes, *made)] + [None] * (4 - results)
    _library.bedl_clocks(points, classes, nodes.shape[-1], len(mixture) // 3, _floats(tuple(mixture)), *pointers)
    return made
