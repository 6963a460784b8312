"""Kernels of infinitely wide ReLU networks with random weights, in closed form.

Weights are independent, N(0, σ_w²/fan-in), biases N(0, σ_b²). As layers grow wide, outputs for two inputs become normal
with a covariance that is found layer by layer. ReLU takes pre-activations with variances a, b and covariance c to

    E[relu(u) relu(v)] = (√(ab − c²) + (π − arccos(c/√(ab))) c) / 2π

(Y. Cho, L. Saul, "Kernel Methods for Deep Learning", NeurIPS 2009). A dense layer multiplies by σ_w² and adds σ_b²
(J. Lee et al., "Deep Neural Networks as Gaussian Processes", ICLR 2018). A convolution averages over its window first:
at each place of the image there is a covariance, and places are independent of each other when all channels are
(A. Garriga-Alonso, C. Rasmussen, L. Aitchison, "Deep Convolutional Networks as shallow Gaussian Processes", ICLR 2019).

A covariance is carried with the two variances beside it (`Pairs`), for blocks of pairs that bound the memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl import _kernels
from bedl.methods.baselines.exact_gp import MAX_ROWS, ExactGP
from bedl.methods.networks import widths_of
from bedl.methods.registry import Problem, register

MAX_BLOCK_NUMEL = 2**17  # numbers in a block of covariances: more than a cache holds take longer


def relu_covariance(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """E[relu(u) relu(v)] of normals with variances a, b and covariance c. shapes: broadcast to one

    Example:
        >>> one = torch.ones(())
        >>> relu_covariance(one, one, one).item(), round(relu_covariance(one, one, 0 * one).item(), 4)
        (0.5, 0.1592)
    """
    scale = (a.sqrt() * b.sqrt()).clamp_min(torch.finfo(c.dtype).tiny)
    cosine = (c / scale).clamp(-1.0, 1.0)
    sine = ((1 - cosine) * (1 + cosine)).sqrt()
    return scale * (sine + (math.pi - torch.arccos(cosine)) * cosine) / (2 * math.pi)


class Pairs(NamedTuple):
    """Variances and covariances at every place of the images of a block.

    Attributes:
        first: variances of the first images. shape: (n, 1, *places)
        second: variances of the second images. shape: (1, m, *places)
        both: covariances. shape: (n, m, *places)
    """

    first: Tensor
    second: Tensor
    both: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> Pairs:
        """The same function of all three."""
        return Pairs(*(function(part) for part in self))


Layer = Callable[[Pairs], Pairs]


def relu(pairs: Pairs) -> Pairs:
    """ReLU: variances are halved."""
    first, second, both = pairs
    return Pairs(first / 2, second / 2, relu_covariance(first, second, both))


@dataclasses.dataclass(frozen=True)
class Convolution:
    """A convolution whose weights have variance `weight` in all, spread evenly over its window, and its bias.

    Args:
        size: of the window; None: the whole image, which leaves one place.
        weight: variance σ_w² of the sum over the window of weights, per channel.
        bias: variance σ_b².
        stride: between windows.
    """

    size: int | None
    weight: float = 1.0
    bias: float = 0.0
    stride: int = 1

    def __call__(self, pairs: Pairs) -> Pairs:
        return pairs.map(self._one)

    def _one(self, x: Tensor) -> Tensor:
        """shape: (n, m, height, width)"""
        if self.size is None:
            return self.weight * x.mean((-2, -1), keepdim=True) + self.bias
        front, back = (self.size - 1) // 2, self.size // 2  # zeros that keep the size; more at the end, if uneven
        padded = F.pad(x, (front, back, front, back)) if self.size > 1 else x
        for window, stride in (((self.size, 1), (self.stride, 1)), ((1, self.size), (1, self.stride))):
            padded = F.avg_pool2d(padded, window, stride)  # rows, then columns: 2 s in place of s² sums
        return self.weight * padded + self.bias


@dataclasses.dataclass(frozen=True)
class Residual:
    """The sum of a shortcut and a branch, whose weights are independent of it: kernels add up."""

    branch: Sequence[Layer]
    shortcut: Sequence[Layer] = ()

    def __call__(self, pairs: Pairs) -> Pairs:
        one, other = _through(self.shortcut, pairs), _through(self.branch, pairs)
        return Pairs(*(a + b for a, b in zip(one, other, strict=True)))


def _through(layers: Sequence[Layer], pairs: Pairs) -> Pairs:
    for layer in layers:
        pairs = layer(pairs)
    return pairs


def _steps(layers: Sequence[Layer], depth: int = 0) -> list[_kernels.image_kernel.Step] | None:
    """Layers as `bedl._kernels.image_kernel` takes them; None if there are others, or blocks too deep in each other."""
    steps: list[_kernels.image_kernel.Step] = []
    for layer in layers:
        if layer is relu:
            steps.append(("relu", 0, 1, 0.0, 0.0))
        elif type(layer) is Convolution:
            kind = "mean" if layer.size is None else "convolution"
            steps.append((kind, layer.size or 0, layer.stride, layer.weight, layer.bias))
        elif type(layer) is Residual and depth < _kernels.image_kernel.DEEPEST:
            shortcut, branch = _steps(layer.shortcut, depth + 1), _steps(layer.branch, depth + 1)
            if shortcut is None or branch is None:
                return None
            mark = (0, 1, 0.0, 0.0)
            steps += [("keep", *mark), *shortcut, ("swap", *mark), *branch, ("add", *mark)]
        else:
            return None
    return steps


class DenseKernel:
    """The kernel of a dense ReLU network of `depth` hidden layers.

    Args:
        depth: hidden layers.
        weight: σ_w².
        bias: σ_b².

    Example:
        >>> kernel = DenseKernel(depth=1, weight=2.0, bias=0.0)
        >>> kernel(torch.eye(2), torch.eye(2))
        tensor([[1.0000, 0.3183],
                [0.3183, 1.0000]])
    """

    def __init__(self, depth: int, weight: float, bias: float):
        if depth < 0 or not weight > 0 or not bias >= 0:
            raise ValueError(f"a kernel has depth >= 0, weight > 0 and bias >= 0, not {depth}, {weight} and {bias}")
        self.depth, self.weight, self.bias = depth, weight, bias

    def __call__(self, x: Tensor, z: Tensor) -> Tensor:
        """Covariances of all pairs. x: shape (n, d), z: shape (m, d); result: shape (n, m)"""
        a, b = self._variance(x)[:, None], self._variance(z)[None]
        c = self.weight * (x @ z.T) / x.shape[1] + self.bias
        for _ in range(self.depth):
            c = self.weight * relu_covariance(a, b, c) + self.bias
            a, b = self.weight * a / 2 + self.bias, self.weight * b / 2 + self.bias
        return c

    def diagonal(self, x: Tensor) -> Tensor:
        """Variances. x: shape (n, d); result: shape (n,)"""
        a = self._variance(x)
        for _ in range(self.depth):
            a = self.weight * a / 2 + self.bias
        return a

    def _variance(self, x: Tensor) -> Tensor:
        return self.weight * x.square().mean(1) + self.bias


class ImageKernel:
    """The kernel of a convolutional network, given as its layers.

    Args:
        image: channels, height and width that a row of numbers is read as.
        layers: that end in one place, such as `Convolution(None)`.
    """

    def __init__(self, image: tuple[int, int, int], layers: Sequence[Layer]):
        self.image, self.layers = image, list(layers)

    def __call__(self, x: Tensor, z: Tensor) -> Tensor:
        """Covariances of all pairs, in blocks. x: shape (n, d), z: shape (m, d); result: shape (n, m)

        Of one tensor with itself, half of them are computed. A kernel in C does the work where there is one, and the
        layers are those of this module.
        """
        symmetric = x is z
        x, z = self._images(x), self._images(z)
        program = self._program(x, z)
        if program is not None:
            return _kernels.image_kernel.covariances(program, x, z, symmetric)
        places = self.image[1] * self.image[2]
        columns = max(1, min(len(z), MAX_BLOCK_NUMEL // places))
        rows = max(1, MAX_BLOCK_NUMEL // (places * columns))
        found = x.new_zeros(len(x), len(z))
        for i in range(0, len(x), rows):
            for j in range(0, len(z), columns):
                if not symmetric or j + columns > i:
                    found[i : i + rows, j : j + columns] = self._block(x[i : i + rows], z[j : j + columns])
        return found.triu() + found.triu(1).T if symmetric else found

    def _program(self, *images: Tensor) -> _kernels.image_kernel.Program | None:
        """The network for the kernel in C, if that can take it and these images; else None."""
        steps = _steps(self.layers)
        suits = all(x.dtype is torch.float64 and x.device.type == "cpu" and len(x) for x in images)
        watched = torch.is_grad_enabled() and any(x.requires_grad for x in images)
        if steps is None or not suits or watched or not _kernels.is_built():
            return None
        return _kernels.image_kernel.Program(steps, self.image)

    def diagonal(self, x: Tensor) -> Tensor:
        """Variances. x: shape (n, d); result: shape (n,)"""
        variance = self._images(x).square().mean(1, keepdim=True)
        blocks = variance.split(max(1, MAX_BLOCK_NUMEL // variance[0].numel()))
        found = [_through(self.layers, Pairs(v, v, v)).first.reshape(-1) for v in blocks]  # each image with itself
        return torch.cat(found)

    def _block(self, x: Tensor, z: Tensor) -> Tensor:
        first, second = x.square().mean(1)[:, None], z.square().mean(1)[None]
        both = torch.einsum("nchw,mchw->nmhw", x, z) / x.shape[1]
        return _through(self.layers, Pairs(first, second, both)).both[..., 0, 0]

    def _images(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), *self.image)


# The Gaussian process that a dense ReLU network becomes as its layers grow infinitely wide.
#
# J. Lee, Y. Bahri, R. Novak, S. Schoenholz, J. Pennington, J. Sohl-Dickstein, "Deep Neural Networks as Gaussian
# Processes", ICLR 2018. The kernel is `DenseKernel`, the solution `exact_gp`.


@register(
    "nngp",
    "Gaussian process of an infinitely wide dense ReLU net (Lee et al. 2018)",
    tasks=("regression", "classification"),
)
def nngp(
    problem: Problem,
    weight: float = 1.79,
    bias: float = 0.83,
    depth: int | None = None,
    noise: float | None = None,
    largest: int = MAX_ROWS,
) -> ExactGP:
    """Lee et al. 2018, with the variances of the authors' own example.

    Args:
        weight: variance σ_w² of the weights, times the fan-in.
        bias: variance σ_b² of the biases.
        depth: hidden layers; None: as many as `hidden_layers` has widths, 3 if it says nothing.
        noise: ratio of noise to signal; None: chosen by the evidence.
        largest: up to how many rows are solved for.
    """
    refuse_net(problem, "nngp")
    if depth is None:
        depth = len(widths_of(problem, default=(1, 1, 1)))
    front = None if problem.front is None else problem.front()
    return ExactGP(DenseKernel(depth, weight, bias), problem.task, problem.n_targets, front, largest, noise)


def refuse_net(problem: Problem, name: str) -> None:
    """A kernel in closed form is of one architecture."""
    if problem.net is not None:
        raise ValueError(f"method {name!r} is the limit of a network of its own; leave net out, or name another method")
    if problem.activation not in ("relu",):
        raise ValueError(f"method {name!r} knows the kernel of ReLU only; activation is {problem.activation!r}")


# The Gaussian processes of infinitely wide convolutional ReLU networks: plain, residual, and a ResNet.
#
# A. Garriga-Alonso, C. Rasmussen, L. Aitchison, "Deep Convolutional Networks as shallow Gaussian Processes", ICLR 2019;
# the three architectures and their variances are the paper's best on MNIST. Its residual network adds a shortcut after
# the ReLU, where activations have no mean of 0: a valid kernel, though of no network, and kept as published. Rows of a
# table are images if their number of columns is a square (8 × 8 digits, 28 × 28 MNIST) or `image_shape` says so; other
# tables are refused.


TASKS = ("regression", "classification")


@register("convnet-gp", "Gaussian process of a wide convolutional net (Garriga-Alonso et al. 2019)", tasks=TASKS)
def convnet_gp(
    problem: Problem,
    depth: int = 7,
    size: int = 7,
    weight: float = 2.79,
    bias: float = 7.86,
    image: Sequence[int] | None = None,
    noise: float | None = None,
    largest: int = MAX_ROWS,
) -> ExactGP:
    """Convolutions and ReLU in turn, then a dense layer.

    Args:
        depth: convolutions.
        size: of their windows.
        weight: variance σ_w² of a weight, times the channels.
        bias: variance σ_b² of a bias.
        image: channels, height and width of a row; None: the estimator's `image_shape`, or a square of one channel.
        noise: ratio of noise to signal; None: chosen by the evidence.
        largest: up to how many rows are solved for.
    """
    layers: list[Layer] = []
    for _ in range(depth):
        layers += [Convolution(size, weight * size**2, bias), relu]
    return _process("convnet-gp", problem, [*layers, Convolution(None, weight, bias)], image, noise, largest)


@register("residual-cnn-gp", "Gaussian process of a wide residual convolutional net, as published (same)", tasks=TASKS)
def residual_cnn_gp(
    problem: Problem,
    blocks: int = 8,
    size: int = 4,
    weight: float = 7.27,
    bias: float = 4.69,
    image: Sequence[int] | None = None,
    noise: float | None = None,
    largest: int = MAX_ROWS,
) -> ExactGP:
    """Blocks x + relu(conv x), a convolution, a dense layer; arguments as for "convnet-gp"."""
    step: list[Layer] = [Convolution(size, weight * size**2, bias), relu]
    layers: list[Layer] = [Residual(step) for _ in range(blocks)]
    dense = Convolution(None, weight, bias)
    return _process("residual-cnn-gp", problem, [*layers, *step, dense], image, noise, largest)


@register("resnet-gp", "Gaussian process of an infinitely wide ResNet-32 (same)", tasks=TASKS)
def resnet_gp(
    problem: Problem,
    blocks: int = 5,
    image: Sequence[int] | None = None,
    noise: float | None = None,
    largest: int = MAX_ROWS,
) -> ExactGP:
    """Three groups of `blocks` residual blocks, the second and third of half the size; variances are 1, no biases."""
    layers: list[Layer] = [Convolution(3)]
    for group in range(3):
        stride = 1 if group == 0 else 2
        branch: list[Layer] = [Convolution(3, stride=stride), relu, Convolution(3)]
        layers += [relu, Residual(branch, [Convolution(1, stride=stride)])]
        layers += [Residual([relu, Convolution(3), relu, Convolution(3)]) for _ in range(blocks - 1)]
    layers += [Convolution(None), relu, Convolution(None)]  # the former in place of average pooling
    return _process("resnet-gp", problem, layers, image, noise, largest)


def _process(
    name: str, problem: Problem, layers: Sequence[Layer], image: Sequence[int] | None, noise: float | None, largest: int
) -> ExactGP:
    refuse_net(problem, name)
    kernel = ImageKernel(image_of(name, problem, image), layers)
    front = None if problem.front is None else problem.front()
    return ExactGP(kernel, problem.task, problem.n_targets, front, largest, noise)


def image_of(name: str, problem: Problem, image: Sequence[int] | None) -> tuple[int, int, int]:
    """Channels, height and width that the numbers of a point are read as.

    Args:
        name: of the method, for messages.
        problem: whose points they are.
        image: what the user says; one of the three may be −1, for as many as there are.

    Example:
        >>> image_of("convnet-gp", Problem("regression", 1, (64,)), None)
        (1, 8, 8)
        >>> image_of("convnet-gp", Problem("regression", 1, (12,)), (3, 2, -1))
        (3, 2, 2)
    """
    shape = problem.input_shape
    count = math.prod(shape)
    given = image if image is not None else shape if len(shape) == 3 else problem.image_shape
    if given is None:
        side = math.isqrt(count)
        if side * side != count or side < 2:
            raise ValueError(
                f"method {name!r} convolves images, and {count} columns are no square one: say which with "
                "image_shape=(channels, height, width), or name a method for tables, such as 'nngp'"
            )
        return 1, side, side
    sizes = [int(size) for size in ((1, *given) if len(given) == 2 else given)]
    if len(sizes) == 3 and sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = count // abs(math.prod(sizes))
    if len(sizes) != 3 or min(sizes) < 1 or math.prod(sizes) != count:
        raise ValueError(f"method {name!r}: image is (channels, height, width) of {count} numbers, not {tuple(given)}")
    return sizes[0], sizes[1], sizes[2]
