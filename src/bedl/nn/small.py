"""Small networks predicting: all layers in one call of a kernel, as calls are most of what such a network costs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl import native, special
from bedl.dispatch import usual_rules
from bedl.moments import Moments
from bedl.nn.layers import GaussianLinear
from bedl.nn.scaling import Standardize
from bedl.rules.weights import are_rounded
from bedl.special import NEGLIGIBLE

__all__ = ["outputs_of_small"]

MOST = 2**19  # multiplications, up to which calls take longer than they


def outputs_of_small(net: nn.Module, x: Any) -> Moments | None:
    """What a network says of known inputs, without derivatives; None where it has to go layer by layer.

    Args:
        net: a `Sequential`, perhaps with `Standardize` in front, of Gaussian linear layers and ReLU.
        x: shape (n, d)

    Returns:
        shape: (n, outputs)

    Example:
        >>> net = nn.Sequential(GaussianLinear(3, 8), nn.ReLU(), GaussianLinear(8, 2))
        >>> with torch.no_grad():
        ...     known = outputs_of_small(net, torch.zeros(4, 3))
        ...     few = known is None or torch.allclose(known.loc, net(torch.zeros(4, 3)).loc, atol=1e-6)
        >>> few
        True
    """
    if not may_be_one_call(net, x) or x.dim() != 2 or not x.is_contiguous() or not usual_rules(F.linear, F.relu):
        return None
    found = _layers(net)
    if found is None:
        return None
    scaling, layers = found
    size = sum(layer.mean.numel() for layer in layers)
    if not layers or len(x) * size > MOST or x.shape[1] != layers[0].mean.shape[1]:
        return None
    if not all(map(is_usual, (*(t for layer in layers for t in layer.tensors), *(scaling or ())))):
        return None
    return Moments(*native.small_network(x, scaling, layers, *special.HALF_LINE, NEGLIGIBLE[torch.float32]))


def may_be_one_call(net: nn.Module, x: Any) -> bool:
    """Whether nothing but the result of a `Sequential` for known inputs is asked for. x: shape (n, *input)"""
    if type(net) is not nn.Sequential or type(x) is not Tensor or torch.is_grad_enabled():
        return False
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu") or are_rounded():
        return False
    return native.suits(x)


def _layers(net: nn.Module) -> tuple[tuple[Tensor, Tensor] | None, list[native.Small]] | None:
    """What the kernel needs to know of the modules, if these are all of a kind that it knows."""
    scaling, layers = None, []
    modules: Any = net._modules.values()
    for module in modules:
        kind = type(module)
        if is_watched(module):
            return None
        if kind is GaussianLinear:
            layer = _weights(module)
            if layer is None:
                return None
            layers.append(layer)
        elif kind is nn.ReLU and layers and not layers[-1].rectifies:
            layers[-1] = layers[-1]._replace(rectifies=True)
        elif kind is Standardize and not layers and scaling is None and module.loc.dim() == 1:
            scaling = module.loc, module.scale
        else:
            return None
    return None if is_watched(net) else (scaling, layers)


def is_watched(module: Any) -> bool:
    """Whether somebody wants to know of a module's calls."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def is_usual(x: Tensor) -> bool:
    """Whether a kernel can read a tensor's memory."""
    usual = x.dtype is torch.float32 and x.device.type == "cpu" and x.is_contiguous()
    return usual and not torch._C._functorch.is_functorch_wrapped_tensor(x)


def _weights(layer: Any) -> native.Small | None:
    parameters, bias = layer._parameters, layer._parameters.get("bias")
    if layer.is_sampling or layer.variances != "full" or layer._buffers.get("covariance_factor") is not None:
        return None
    if layer.prepared is not None:
        weight = layer.prepared["weight"]
        if not isinstance(weight, Moments):  # one draw of it
            return None
        return native.Small(weight.loc, weight.variance, False, bias, False)
    return native.Small(parameters["weight_mean"], parameters["weight_logvar"], True, bias, False)
