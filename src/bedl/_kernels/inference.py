"""The kernels themselves: how they are found, and one function for each, of tensors that suit it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

MAX_NODES = 64  # of a race, in kernels that run one
_POINTER, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIGNATURES = {
    "bedl_rectified": [_COUNT, *[_POINTER] * 5, _NUMBER, _NUMBER],
    "bedl_rectified_gradients": [_COUNT, *[_POINTER] * 8, _NUMBER, _NUMBER],
    "bedl_tabulated": [_COUNT, *[_POINTER] * 6, _NUMBER, _COUNT],
    "bedl_tabulated_gradients": [_COUNT, *[_POINTER] * 7, _NUMBER, _COUNT],
    "bedl_elu": [_COUNT, *[_POINTER] * 4, _NUMBER, _POINTER, _NUMBER, _NUMBER],
    "bedl_elu_gradients": [_COUNT, *[_POINTER] * 7, _NUMBER, _POINTER, _NUMBER, _NUMBER],
    "bedl_clipped": [_COUNT, *[_POINTER] * 4, _NUMBER, _NUMBER, _POINTER, _POINTER, _NUMBER, _NUMBER],
    "bedl_clipped_gradients": [_COUNT, *[_POINTER] * 7, _NUMBER, _NUMBER, _POINTER, _POINTER, _NUMBER, _NUMBER],
    "bedl_hardswish": [_COUNT, *[_POINTER] * 6, _NUMBER, _NUMBER],
    "bedl_hardswish_gradients": [_COUNT, *[_POINTER] * 8, _NUMBER, _NUMBER],
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


_library: Any = _load()  # None where there is none


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


def relu_moments(m: Tensor, v: Tensor, fit: Sequence[float], unit: float, far: float) -> tuple[Tensor, Tensor]:
    """Mean and variance of max(x, 0), x ~ N(m, v).

    Args:
        m, v: shapes (*shape)
        fit, unit: coefficients and unit of `bedl.moments.numerics`'s fit on the half line.
        far: standard deviations beyond which tails need not be told apart.

    Returns:
        shapes: (*shape), (*shape)
    """
    m, v = aligned(m, v)
    mean, variance = torch.empty_like(m), torch.empty_like(m)
    _library.bedl_rectified(m.numel(), *(x.data_ptr() for x in (m, v, mean, variance)), _floats(tuple(fit)), unit, far)
    return mean, variance


def relu_moments_backward(
    m: Tensor, v: Tensor, mean: Tensor, by_mean: Tensor, by_variance: Tensor,
    fit: Sequence[float], unit: float, far: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Derivatives by m and v, from those by the results of `relu_moments`, of which `mean` is one. shapes: (*shape)"""
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
        fit, unit, far: as for `relu_moments`.

    Returns:
        shapes: (n, outputs), (n, outputs)
    """
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
    made = m.new_empty(4, m.shape[0], targets)
    _library.bedl_normal_parts(m.shape[0], targets, learned, log_beta, m.data_ptr(), v.data_ptr(), made.data_ptr())
    return made.unbind()


def log_survival_and_density(m: Tensor, v: Tensor, nodes: Tensor, mixture: Sequence[float]) -> tuple[Tensor, Tensor]:
    """`bedl.heads.integrals.nodes.log_survival_and_density` without slopes.

    Args:
        m, v: shapes (*batch, C)
        nodes: shape (*batch, T)
        mixture: probability, mean and variance of each of 4, 6 or 8 components, the widest first.

    Returns:
        shapes: (*batch, C, T), (*batch, C, T)
    """
    log_survival, log_density = _log_survival_and_density(m, v, nodes, mixture, results=2)
    return log_survival, log_density


def log_survival_density_and_slopes(
    m: Tensor, v: Tensor, nodes: Tensor, mixture: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same with slopes. shapes: 4 × (*batch, C, T)"""
    log_survival, log_density, by_mean, by_variance = _log_survival_and_density(m, v, nodes, mixture, results=4)
    return log_survival, log_density, by_mean, by_variance


def log_mean_softmax(m: Tensor, v: Tensor, times: int, mixture: Sequence[float]) -> Tensor:
    """`bedl.heads.integrals.log_mean_softmax`, without derivatives.

    Args:
        m, v: shapes (*batch, C)
        times: nodes of the race, at most `MAX_NODES`.
        mixture: as for `log_survival_and_density`.

    Returns:
        shape: (*batch, C)
    """
    m, v = m.contiguous(), v.expand_as(m).contiguous()
    made = torch.empty_like(m)
    points, tensors = m.shape[:-1].numel(), (x.data_ptr() for x in (m, v, made))
    _library.bedl_log_mean_softmax(points, m.shape[-1], times, len(mixture) // 3, _floats(tuple(mixture)), *tensors)
    return made


def data_entropy(
    m: Tensor, v: Tensor, mixture: Sequence[float], coarse: tuple[int, int], fine: tuple[int, int], wide: float,
    hermite: Sequence[float],
) -> Tensor:  # fmt: skip
    """`bedl.heads.integrals.moments`, without derivatives.

    Args:
        m, v: shapes (*batch, C)
        mixture: as for `log_survival_and_density`.
        coarse, fine: nodes of the race, at most 64, and around each mode, at most 21.
        wide: variance from which the fine rule is taken.
        hermite: nodes and weights of 7, and of the coarse and the fine rule.

    Returns:
        shape: (*batch)
    """
    m, v = m.contiguous(), v.contiguous()
    made = m.new_empty(m.shape[:-1])
    tensors = (x.data_ptr() for x in (m, v, made))
    laws = _floats(tuple(mixture)), _floats(tuple(hermite))
    _library.bedl_data_entropy(made.numel(), m.shape[-1], len(mixture) // 3, *coarse, *fine, wide, *laws, *tensors)
    return made


def _log_survival_and_density(
    m: Tensor, v: Tensor, nodes: Tensor, mixture: Sequence[float], results: int
) -> list[Tensor]:
    m, v, nodes = (x.contiguous() for x in (m, v.expand_as(m), nodes.expand(*m.shape[:-1], -1)))
    made = [m.new_empty(*m.shape, nodes.shape[-1]) for _ in range(results)]
    points, classes = nodes.shape[:-1].numel(), m.shape[-1]
    pointers = [x.data_ptr() for x in (m, v, nodes, *made)] + [None] * (4 - results)
    _library.bedl_clocks(points, classes, nodes.shape[-1], len(mixture) // 3, _floats(tuple(mixture)), *pointers)
    return made


# A chain of layers, predicting, as one call: see `chain.c`.


ROOM = (
    2**21
)  # numbers that a thread keeps for what lies between layers: pages that are new each time cost as much again
FILLED = 16  # outputs are filled up to a multiple of at most this


class LayerSpec(NamedTuple):
    """A convolution, or a linear layer as one whose window is all that there is.

    Attributes:
        height, width: of its inputs, with the zeros around them.
        down, across: its window.
        rectifies: whether ReLU follows.
    """

    channels: int
    height: int
    width: int
    outputs: int
    down: int
    across: int
    stride_down: int
    stride_across: int
    pad_down: int
    pad_across: int
    rectifies: bool

    @property
    def inputs(self) -> int:
        """Numbers of one point."""
        return self.channels * self.height * self.width

    @property
    def window(self) -> int:
        """Numbers that an output sees."""
        return self.channels * self.down * self.across

    @property
    def made(self) -> tuple[int, int]:
        """Height and width of its outputs."""
        return (self.height - self.down) // self.stride_down + 1, (self.width - self.across) // self.stride_across + 1


class _Kept(threading.local):
    room: Tensor | None = None


_kept = _Kept()


def _numbers(links: Sequence[LayerSpec]) -> ctypes.Array:
    numbers = [number for link in links for number in link]
    return (ctypes.c_int64 * len(numbers))(*numbers)


def packed_weights(link: LayerSpec, mean: Tensor, spread: Tensor, is_log: bool, gain: Tensor | None) -> Tensor:
    """A layer's weights as the kernel reads them; all tensors without gaps.

    Args:
        mean: shape (outputs, channels, down, across), or (outputs, inputs)
        spread: variances, or their logarithms where `is_log`. shape: as `mean`
        gain: what the inputs' variances are multiplied by; None: the means' squares. shape: as `mean`
    """
    made = mean.new_empty(3 * link.window * (-(-link.outputs // FILLED) * FILLED))
    _library.bedl_panels(
        _numbers([link]), mean.data_ptr(), spread.data_ptr(), is_log, None if gain is None else gain.data_ptr(),
        made.data_ptr(),
    )  # fmt: skip
    return made


def chain(
    x: Tensor, links: Sequence[LayerSpec], weights: Sequence[Tensor], biases: Sequence[Tensor | None],
    fit: Sequence[float], unit: float, far: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Means and variances of the last layer's outputs, for known inputs.

    Args:
        x: without gaps. shape: (n, channels, height, width), or (n, inputs)
        links: one or more, each fitting the one before.
        weights: of each, from `packed_weights`.
        biases: of each, without gaps. shape: (outputs,)
        fit, unit, far: as for `relu_moments`.

    Returns:
        shapes: (n, height, width, outputs), (n, height, width, outputs)
    """
    even, odd = (max((link.inputs for link in part), default=0) for part in (links[::2], links[1::2]))
    at_a_time = max(1, min(len(x), ROOM // (3 * (even + odd))))
    size = 3 * at_a_time * (even + odd)
    room = _kept.room if size <= ROOM else None
    if room is None or room.numel() < size:
        room = torch.empty(size)
        _kept.room = room if size <= ROOM else _kept.room
    pointers = [
        None if part is None else part.data_ptr() for pair in zip(weights, biases, strict=True) for part in pair
    ]
    made = len(x), *links[-1].made, links[-1].outputs
    loc, variance = x.new_empty(made), x.new_empty(made)
    _library.bedl_chain(
        len(x), at_a_time, len(links), _numbers(links), (ctypes.c_void_p * len(pointers))(*pointers), x.data_ptr(),
        _floats(tuple(fit)), unit, far, room.data_ptr(), even, odd, loc.data_ptr(), variance.data_ptr(),
    )  # fmt: skip
    return loc, variance


# Kernels of wide convolutional networks in C, in double precision; counterpart of
# `bedl.methods.baselines.wide_kernels.ImageKernel`.


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
    _library.bedl_image_variances(*program.steps, *program.image[1:], padded.shape[1], *pointers)
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
    _library.bedl_image_covariances(*program.steps, *sizes, *pointers)
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


# Moments of activations: the kernels, and the tables that some of them read.


# Coefficients by the name of the function, made when they are first asked for; filled by bedl.moments.rules.numerical.
TABLES: dict[str, Callable[[], Tensor]] = {}


def tabulated_moments(
    m: Tensor, v: Tensor, plain: Tensor, name: str, scale: float, grows: bool
) -> tuple[Tensor, Tensor]:
    """Mean and variance of f(x), x ~ N(m, v).

    Args:
        m, v, plain: the latter f(m). shapes: (*shape)
        name, scale, grows: of the table, see `bedl.moments.rules.numerical`.

    Returns:
        shapes: (*shape), (*shape)
    """
    tensors = aligned(m, v, plain)
    mean, variance = torch.empty_like(tensors[0]), torch.empty_like(tensors[0])
    pointers = (x.data_ptr() for x in (*tensors, mean, variance, TABLES[name]()))
    _library.bedl_tabulated(m.numel(), *pointers, scale, grows)
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
    getattr(_library, f"bedl_{name}")(m.numel(), *pointers, *constants)
    return mean, variance


def _slopes(name: str, tensors: Sequence[Tensor], *constants: Any) -> tuple[Tensor, Tensor]:
    tensors = aligned(*tensors)
    by_m, by_v = torch.empty_like(tensors[0]), torch.empty_like(tensors[0])
    pointers = (x.data_ptr() for x in (*tensors, by_m, by_v))
    getattr(_library, f"bedl_{name}_gradients")(by_m.numel(), *pointers, *constants)
    return by_m, by_v
