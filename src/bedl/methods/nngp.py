"""The Gaussian process that a dense ReLU network becomes as its layers grow infinitely wide.

J. Lee, Y. Bahri, R. Novak, S. Schoenholz, J. Pennington, J. Sohl-Dickstein, "Deep Neural Networks as Gaussian
Processes", ICLR 2018. The kernel is `bedl.methods.relu_kernels.DenseKernel`, the solution `bedl.methods.exact_gp`.
"""

from __future__ import annotations

from bedl.methods.exact_gp import LARGEST, ExactGP
from bedl.methods.networks import widths_of
from bedl.methods.registry import Problem, register
from bedl.methods.relu_kernels import DenseKernel

__all__: list[str] = []


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
    largest: int = LARGEST,
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
