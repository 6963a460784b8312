"""The networks that methods are built on: layers of given widths, or a network of the user's own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import nn

from bedl.methods.registry import Problem
from bedl.nn import GaussianLayer, GaussianLinear, bayesianize
from bedl.nn.layers import INIT_LOGVAR, LOGVAR_JITTER

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU, "gelu": nn.GELU, "leaky_relu": nn.LeakyReLU, "relu": nn.ReLU, "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU, "softplus": nn.Softplus, "tanh": nn.Tanh,
}  # fmt: skip

MakeLayer = Callable[[int, int], nn.Module]


def gaussian_network(problem: Problem, n_outputs: int) -> nn.Sequential:
    """The network of a problem with Gaussian weights, behind what stands in front of it.

    A plain network of the user's own is converted, and copied in any case.
    """
    if problem.net is None:
        body: nn.Module = hidden_layers(problem, problem.input_shape[0], n_outputs)
    else:
        body = _own(problem.net, problem.input_shape, n_outputs)
        gaussian = any(isinstance(module, GaussianLayer) for module in body.modules())
        body = copy.deepcopy(body) if gaussian else bayesianize(body)
        _check_outputs(body, problem.input_shape, n_outputs)
    return nn.Sequential(*([problem.front()] if problem.front is not None else []), body)


def draw_weights(net: nn.Module, gain: float) -> None:
    """Give Gaussian layers fresh parameters: means ~ N(0, gain / fan-in), log-variances ~ N(−9, 0.001²), biases 0."""
    if not gain > 0:
        raise ValueError(f"gain must be positive, such as 2 (He) or 1, not {gain!r}")
    for layer in net.modules():
        if isinstance(layer, GaussianLayer):
            layer.reset_parameters()
            with torch.no_grad():
                for name in layer.gaussian_parameters:
                    if f"{name}_mean" in layer._parameters:
                        getattr(layer, f"{name}_mean").normal_(0.0, math.sqrt(gain / layer.fan_in()))
                        getattr(layer, f"{name}_logvar").normal_(INIT_LOGVAR, LOGVAR_JITTER)


def plain_network(problem: Problem, n_outputs: int, linear: MakeLayer = nn.Linear) -> nn.Sequential:
    """The network of a problem with ordinary weights, behind what stands in front of it.

    A network of the user's own is copied; Gaussian weights are refused, as a method of ordinary ones would not see
    their variances.

    Args:
        problem: what it is for.
        n_outputs: of the last layer.
        linear: makes each layer of a network that is not the user's own, (n_inputs, n_outputs) -> module.
    """
    if problem.net is None:
        body: nn.Module = hidden_layers(problem, problem.input_shape[0], n_outputs, linear=linear)
    else:
        body = copy.deepcopy(_own(problem.net, problem.input_shape, n_outputs))
        if any(isinstance(module, GaussianLayer) for module in body.modules()):
            raise ValueError(
                "this method is for networks with ordinary weights, and net has Gaussian ones: pass "
                "bedl.deterministic(net), or choose a method such as 'bedl'"
            )
        _check_outputs(body, problem.input_shape, n_outputs)
    return nn.Sequential(*([problem.front()] if problem.front is not None else []), body)


def hidden_layers(
    problem: Problem,
    n_inputs: int,
    n_outputs: int,
    default: Sequence[int] = (50,),
    linear: MakeLayer = GaussianLinear,
) -> nn.Sequential:
    """Layers of the widths that the problem asks for, or of the default ones; Gaussian unless said otherwise."""
    widths, activation = widths_of(problem, default), problem.activation
    if not callable(activation) and activation not in ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {', '.join(ACTIVATIONS)}, or nn.Mish or the like; not {activation!r}"
        )
    make = activation if callable(activation) else ACTIVATIONS[activation]
    layers: list[nn.Module] = []
    for width in widths:
        layers += [linear(n_inputs, width), make()]
        n_inputs = width
    return nn.Sequential(*layers, linear(n_inputs, n_outputs))


def widths_of(problem: Problem, default: Sequence[int] = (50,)) -> list[int]:
    """The widths of the hidden layers that the problem asks for, or the default ones."""
    given = problem.hidden_layers
    if isinstance(given, str) and given != "auto":
        raise ValueError(f"hidden_layers are widths, such as (50,) or (100, 50), or 'auto', not {given!r}")
    widths: Sequence[Any] = default if given == "auto" else [given] if isinstance(given, Integral) else list(given)
    if not all(isinstance(width, Integral) and int(width) > 0 for width in widths):
        raise ValueError(f"hidden_layers are widths, such as (50,) or (100, 50), not {given!r}")
    return [int(width) for width in widths]


def _own(net: Any, input_shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    if isinstance(net, nn.Module):
        return net
    if not callable(net):
        raise TypeError(f"net must be an nn.Module, or a function (n_features, n_outputs) -> nn.Module, not {net!r}")
    body = net(input_shape[0] if len(input_shape) == 1 else input_shape, n_outputs)
    if not isinstance(body, nn.Module):
        raise TypeError(f"net(n_features, n_outputs) must return an nn.Module, not {type(body).__name__}")
    return body


def _check_outputs(network: nn.Module, input_shape: tuple[int, ...], n_outputs: int) -> None:
    dtype = next((p.dtype for p in network.parameters()), torch.float32)
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad():
            outputs = network(torch.zeros((2, *input_shape), dtype=dtype))
    except RuntimeError as error:
        raise ValueError(
            f"net does not take inputs of shape (n, {', '.join(map(str, input_shape))}): {error}"
        ) from error
    finally:
        for module, training in modes:
            module.training = training
    if tuple(outputs.shape) != (2, n_outputs):
        raise ValueError(
            f"net gives outputs of shape {tuple(outputs.shape)} for 2 points; (2, {n_outputs}) is needed: let its last "
            f"layer have {n_outputs} outputs (two per target in regression, one per class in classification)"
        )
