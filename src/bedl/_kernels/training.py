"""Kernels of a training step of many networks, for tensors that suit them, as `bedl.training.engines.fused`.

Row r of each tensor belongs to network r. Parameters, and derivatives by them, are parts of matrices (R, P): their rows
are as far apart as those, and without gaps in themselves. All results are written into tensors that are given.
"""

from __future__ import annotations

import ctypes
import functools
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from bedl._kernels import inference

MAX_SIZE = 8  # numbers that a column is embedded in


def weights(mean: Tensor, logvar: Tensor, variance: Tensor, second_moment: Tensor) -> Tensor:
    """Variances and second moments of Gaussian weights; returns the divergences from N(0, 1).

    Args:
        mean, logvar: parts of a matrix of parameters. shape: (R, n)
        variance, second_moment: results. shape: (R, n)

    Returns:
        shape: (R,)
    """
    divergence = mean.new_empty(len(mean))
    pointers = (x.data_ptr() for x in (mean, logvar, variance, second_moment, divergence))
    inference._library.bedl_weights(*mean.shape, mean.stride(0), *pointers)
    return divergence


def weights_gradients(
    pull: Tensor, mean: Tensor, variance: Tensor, by_variance: Tensor, by_second_moment: Tensor, by_mean: Tensor,
    by_logvar: Tensor,
) -> None:  # fmt: skip
    """Derivatives by means, which are added, and by log-variances.

    Args:
        pull: factor on the derivatives of the divergence. shape: (R,)
        mean, by_mean, by_logvar: parts of matrices of the same shape. shape: (R, n)
        variance, by_variance, by_second_moment: shape (R, n)
    """
    given = (pull, mean, variance, by_variance, by_second_moment, by_mean, by_logvar)
    inference._library.bedl_weights_gradients(*mean.shape, mean.stride(0), *(x.data_ptr() for x in given))


@functools.lru_cache
def _sizes(*sizes: int) -> ctypes.Array:
    return (ctypes.c_int64 * len(sizes))(*sizes)


def _pointers(tensors: Iterable[Tensor | None]) -> Iterator[int | None]:
    return (None if x is None else x.data_ptr() for x in tensors)


def affine(
    weight: Sequence[Tensor], bias: Tensor | None, x: Tensor, x_variance: Tensor | None, square: Tensor, loc: Tensor,
    variance: Tensor,
) -> None:  # fmt: skip
    """A Gaussian linear layer.

    Args:
        weight: means, variances, second moments. shapes: (R, outputs, inputs)
        bias: shape (R, outputs)
        x, x_variance: without gaps. shape: (R, n, inputs)
        square: room for the squares of `x`. shape: (R, n, inputs)
        loc, variance: results. shape: (R, n, outputs)
    """
    sizes = _sizes(*x.shape, loc.shape[2], weight[0].stride(0), weight[1].stride(0))
    inference._library.bedl_affine(sizes, *_pointers((*weight, bias, x, x_variance, square, loc, variance)))


def affine_gradients(
    weight: Sequence[Tensor], x: Tensor, x_variance: Tensor | None, square: Tensor, by_loc: Tensor,
    by_variance: Tensor, by: Sequence[Tensor | None], to: Sequence[Tensor | None],
) -> None:  # fmt: skip
    """Derivatives of what `affine` gives.

    Args:
        weight, x, x_variance, square: as there.
        by_loc, by_variance: derivatives by the results, without gaps. shape: (R, n, outputs)
        by: derivatives by means, variances, second moments and bias, which are written; as far apart as those.
        to: derivatives by `x` and `x_variance`, which are written where they are asked for.
    """
    sizes = _sizes(*x.shape, by_loc.shape[2], weight[0].stride(0), weight[1].stride(0))
    given = (*weight, x, x_variance, square, by_loc, by_variance, *by, *to)
    inference._library.bedl_affine_gradients(sizes, *_pointers(given))


def relu_moments(tensors: Sequence[Tensor], fit: Sequence[float], unit: float, far: float) -> None:
    """As the kernel without room. tensors: m, v, results; all without gaps. shapes: (*shape)"""
    pointers = (x.data_ptr() for x in tensors)
    inference._library.bedl_rectified(tensors[0].numel(), *pointers, inference._floats(tuple(fit)), unit, far)


def relu_moments_backward(tensors: Sequence[Tensor], fit: Sequence[float], unit: float, far: float) -> None:
    """The same. tensors: m, v, mean, derivatives by both results, those by m and v. shapes: (*shape)"""
    pointers = (x.data_ptr() for x in tensors)
    inference._library.bedl_rectified_gradients(tensors[0].numel(), *pointers, inference._floats(tuple(fit)), unit, far)


def norms(x: Tensor) -> Tensor:
    """The norm of each row. x: shape (R, P), without gaps; result: shape (R,)"""
    result = x.new_empty(len(x))
    inference._library.bedl_norms(*x.shape, x.data_ptr(), result.data_ptr())
    return result


def adam(
    scale: Sequence[float], rate: Sequence[float], beta1: float, beta2: float, root: float, eps: float,
    parameters: Tensor, gradient: Tensor, mean: Tensor, square: Tensor,
) -> None:  # fmt: skip
    """A step of Adam.

    Args:
        scale, rate: factors on each row's gradient, and on its update.
        root: sqrt(1 − beta2^t)
        parameters, gradient, mean, square: shape (R, P), without gaps
    """
    pointers = (x.data_ptr() for x in (parameters, gradient, mean, square))
    floats = ctypes.c_float * len(rate)
    inference._library.bedl_adam(*gradient.shape, floats(*scale), floats(*rate), beta1, beta2, root, eps, *pointers)


def columns(z: Tensor, frequency: Tensor, phase: Tensor, weight: Tensor, bias: Tensor, made: Tensor) -> None:
    """Bounded columns and what their waves make.

    Args:
        z: shape (R, n, d)
        frequency, phase: shape (R, d, waves)
        weight: shape (R, d, waves, size)
        bias: shape (R, d, size)
        made: result. shape: (R, n, d · (1 + size))
    """
    pointers = (x.data_ptr() for x in (z, frequency, phase, weight, bias, made))
    inference._library.bedl_columns(*z.shape, *weight.shape[2:], weight.stride(0), *pointers)


def columns_gradients(
    z: Tensor, frequency: Tensor, phase: Tensor, weight: Tensor, by_made: Tensor, *by: Tensor
) -> None:
    """Derivatives by the four parameters, of those by what `columns` has made; shapes: as there"""
    pointers = (x.data_ptr() for x in (z, frequency, phase, weight, by_made, *by))
    inference._library.bedl_columns_gradients(*z.shape, *weight.shape[2:], weight.stride(0), *pointers)


def normal_loss(
    loc: Tensor, variance: Tensor, y: Tensor, weight: Tensor | None, strengths: Tensor, learned: bool, log_beta: float,
    prior_precision: float, by_loc: Tensor, by_variance: Tensor,
) -> Tensor:  # fmt: skip
    """Losses of networks under the head `Normal`, and the derivatives by their outputs.

    Args:
        loc, variance: outputs for points and, behind them, their copies. shape: (R, n + copies, outputs)
        y: targets. shape: (R, n, D)
        weight: of the points. shape: (R, n)
        strengths: of PAC, log B/N − log delta/N, of Known, log(N / observations), of Unknown. shape: (R, 5)
        learned: whether the third output is the noise.
        log_beta, prior_precision: of the head.
        by_loc, by_variance: results. shape: (R, n + copies, outputs)

    Returns:
        shape: (R,)
    """
    rows, n, targets = y.shape
    loss = torch.empty(rows)
    given = (strengths, loc, variance, y, weight, loss, by_loc, by_variance)
    pointers = (None if x is None else x.data_ptr() for x in given)
    inference._library.bedl_normal_loss(
        rows, n, loc.shape[1] - n, targets, int(learned), log_beta, prior_precision, *pointers
    )
    return loss


def dirichlet_loss(
    loc: Tensor, variance: Tensor, y: Tensor, weight: Tensor | None, strengths: Tensor, nodes: int,
    mixture: Sequence[float], curves: Sequence[float], by_loc: Tensor, by_variance: Tensor,
) -> Tensor:  # fmt: skip
    """Losses of networks under the head `Dirichlet`, and the derivatives by their outputs.

    Args:
        loc, variance: outputs for points and, behind them, their copies. shape: (R, n + copies, C)
        y: shares of the classes. shape: (R, n, C)
        weight: of the points. shape: (R, n)
        strengths: of Known, log(N / observations), of Unknown. shape: (R, 3)
        nodes: of the race, at most `inference.MAX_NODES`.
        mixture: as for the kernel `log_survival_and_density`.
        curves: of the expected divergence, see `bedl.heads.integrals.kl`.
        by_loc, by_variance: results. shape: (R, n + copies, C)

    Returns:
        shape: (R,)
    """
    rows, n, classes = y.shape
    loss = torch.empty(rows)
    given = (strengths, loc, variance, y, weight, loss, by_loc, by_variance)
    pointers = (None if x is None else x.data_ptr() for x in given)
    laws = (inference._floats(tuple(mixture)), inference._floats(tuple(curves)))
    sizes = (rows, n, loc.shape[1] - n, classes, nodes, len(mixture) // 3)
    inference._library.bedl_dirichlet_loss(*sizes, math.lgamma(classes), *laws, *pointers)
    return loss


# Kernels of probabilistic backpropagation, for tensors in double precision, as `bedl.methods.baselines.pbp`.


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
    widths = (ctypes.c_int64 * len(sizes))(*sizes)
    pointers = (tensor.data_ptr() for tensor in (order, x, y, mean, variance, shape, rate))
    inference._library.bedl_pbp_pass(len(sizes) - 1, widths, len(order), *pointers)


def refine(mean: Tensor, variance: Tensor, factors: Sequence[array[float]], both: array[float]) -> None:
    """One round over the factors of the prior, which changes everything in place.

    Args:
        mean, variance: of all weights. shape: (weights,)
        factors: of each weight: linear, precision, shape, rate.
        both: shape and rate of lambda.
    """
    pointers = (numbers.buffer_info()[0] for numbers in (*factors, both))
    inference._library.bedl_pbp_refine(len(mean), mean.data_ptr(), variance.data_ptr(), *pointers)
