"""The Gaussian process that a dense ReLU network becomes as its layers grow infinitely wide.

J. Lee, Y. Bahri, R. Novak, S. Schoenholz, J. Pennington, J. Sohl-Dickstein, "Deep Neural Networks as Gaussian
Processes", ICLR 2018. The kernel is `wide_kernels.DenseKernel`, the solution `exact_gp`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bedl.methods.baselines.exact_gp import MAX_ROWS, ExactGP
from bedl.methods.baselines.wide_kernels import Convolution, DenseKernel, ImageKernel, Layer, Residual, relu
from bedl.methods.networks import widths_of
from bedl.methods.registry import Problem, register


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
        problem: what it is for.
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
        problem: what it is for.
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
