"""From the parameters of an estimator to a method: standardisation, network, head, objective."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bedl.heads import Head
from bedl.methods import BEDL
from bedl.moments import Moments
from bedl.nn import GaussianLayer, GaussianLinear, bayesianize
from bedl.nn.scaling import Standardize
from bedl.objectives import Objective, Sum
from bedl.predictive import Predictive

__all__ = ["ACTIVATIONS", "InUnits", "as_objective", "build", "standardize"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU, "gelu": nn.GELU, "leaky_relu": nn.LeakyReLU, "relu": nn.ReLU, "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU, "softplus": nn.Softplus, "tanh": nn.Tanh,
}  # fmt: skip


class InUnits(nn.Module):
    """A method that was trained on standardised targets, predicting in the targets' own units.

    Args:
        method: what was trained.
        loc, scale: of the targets. shape: (D,)
    """

    loc: Tensor
    scale: Tensor

    def __init__(self, method: nn.Module, loc: Tensor, scale: Tensor):
        super().__init__()
        self.method = method
        self.register_buffer("loc", loc)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor | Moments) -> Predictive:
        """x: shape (n, *input)"""
        return self.method(x).rescale(self.loc, self.scale)


def as_objective(choice: Any, presets: dict[str, Objective]) -> Objective | Sum | None:
    """A regulariser by name, or as it is."""
    if choice is None or isinstance(choice, (Objective, Sum)):
        return choice
    if isinstance(choice, str) and choice in presets:
        return presets[choice]
    names = ", ".join(map(repr, presets))
    raise ValueError(f"regularizer must be {names}, None, or an objective such as bedl.PAC(…), not {choice!r}")


def standardize(loc: np.ndarray, scale: np.ndarray, input_shape: tuple[int, ...], dtype: torch.dtype) -> Standardize:
    """The module for column (or channel) moments. loc, scale: shape (input_shape[0],)"""
    shape = (len(loc),) + (1,) * (len(input_shape) - 1)
    return Standardize(*(torch.tensor(part, dtype=dtype).reshape(shape) for part in (loc, scale)))


def build(
    net: Any,
    hidden_layers: Sequence[int],
    activation: Any,
    input_shape: tuple[int, ...],
    head: Head,
    objective: Objective | Sum | None,
    front: Standardize | None,
    dtype: torch.dtype,
) -> BEDL:
    """A fresh method; draws from torch's global generator.

    Args:
        net: a module, a callable that makes one, or None for a network of `hidden_layers`.
        hidden_layers: their widths.
        activation: a name or a function that makes a module.
        input_shape: of one point.
        head: what is on top.
        objective: the regulariser.
        front: what stands in front of the network.
        dtype: the precision of everything.
    """
    if net is None:
        body: nn.Module = _layers(hidden_layers, activation, input_shape[0], head.n_outputs)
    else:
        body = _own(net, input_shape, head.n_outputs)
    whole = nn.Sequential(*([front] if front is not None else []), body)
    method = BEDL(whole, head, objective).to(dtype)
    if net is not None:
        _check_outputs(method, input_shape, dtype)
    return method


def _layers(hidden_layers: Sequence[int], activation: Any, n_inputs: int, n_outputs: int) -> nn.Sequential:
    widths: list[Any] = [hidden_layers] if isinstance(hidden_layers, Integral) else list(hidden_layers)
    if not all(isinstance(width, Integral) and int(width) > 0 for width in widths):
        raise ValueError(f"hidden_layers are widths, such as (50,) or (100, 50), not {hidden_layers!r}")
    if not callable(activation) and activation not in ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {', '.join(ACTIVATIONS)}, or nn.Mish or the like; not {activation!r}"
        )
    make = activation if callable(activation) else ACTIVATIONS[activation]
    layers: list[nn.Module] = []
    for width in widths:
        layers += [GaussianLinear(n_inputs, int(width)), make()]
        n_inputs = int(width)
    return nn.Sequential(*layers, GaussianLinear(n_inputs, n_outputs))


def _own(net: Any, input_shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    if isinstance(net, nn.Module):
        body = net
    elif callable(net):
        body = net(input_shape[0] if len(input_shape) == 1 else input_shape, n_outputs)
    else:
        raise TypeError(f"net must be an nn.Module, or a function (n_features, n_outputs) -> nn.Module, not {net!r}")
    if not isinstance(body, nn.Module):
        raise TypeError(f"net(n_features, n_outputs) must return an nn.Module, not {type(body).__name__}")
    gaussian = any(isinstance(module, GaussianLayer) for module in body.modules())
    return copy.deepcopy(body) if gaussian else bayesianize(body)


def _check_outputs(method: BEDL, input_shape: tuple[int, ...], dtype: torch.dtype) -> None:
    wanted = method.head.n_outputs
    training = method.training
    method.eval()
    try:
        with torch.no_grad():
            outputs = method.net(torch.zeros((2, *input_shape), dtype=dtype))
    except RuntimeError as error:
        raise ValueError(
            f"net does not take inputs of shape (n, {', '.join(map(str, input_shape))}): {error}"
        ) from error
    finally:
        method.train(training)
    if tuple(outputs.shape) != (2, wanted):
        raise ValueError(
            f"net gives outputs of shape {tuple(outputs.shape)} for 2 points; {method.head} needs (2, {wanted}): "
            f"let its last layer have {wanted} outputs (two per target in regression, one per class in classification)"
        )
