"""Networks that are a chain of layers, predicting: all of it in one call of a kernel, as `small` does for small ones.

What it saves is passes over memory: between calls of PyTorch each result is written, and read again for its square, for
ReLU and for the next layer. Its products are as fast as the library's, so that three of them cost what they have to.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl import native, special
from bedl.dispatch import usual_rules
from bedl.moments import Moments
from bedl.native import Link
from bedl.nn.layers import GaussianConv2d, GaussianLinear
from bedl.nn.scaling import Standardize
from bedl.nn.small import is_usual, is_watched, may_be_one_call
from bedl.rules.weights import LayerWeight
from bedl.special import NEGLIGIBLE

__all__ = ["outputs_of_chain"]

LONGEST_WINDOW = 1024  # numbers that an output sees: more weights than stay in the cache are the library's business
WORTH_LAYING_OUT = 2  # weights that are not prepared, for each activation that need not be written and read
IN_FRONT = (Standardize, nn.Flatten, nn.Unflatten, nn.Identity)  # of known inputs, before the first Gaussian layer
Shape = tuple[int, ...]


def outputs_of_chain(net: nn.Module, x: Any) -> Moments | None:
    """What a network says of known inputs, without derivatives; None where it has to go layer by layer.

    Args:
        net: a `Sequential`, nested or not, of Gaussian convolutions in two dimensions and linear layers, ReLU and
            Flatten, perhaps with `Standardize` in front.
        x: shape (n, *input)

    Returns:
        shape: (n, *outputs)

    Example:
        >>> net = nn.Sequential(GaussianConv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), GaussianLinear(36, 2))
        >>> with torch.no_grad():
        ...     known = outputs_of_chain(net, torch.ones(40, 1, 5, 5))
        ...     few = known is None or torch.allclose(known.loc, net(torch.ones(40, 1, 5, 5)).loc, atol=1e-5)
        >>> few
        True
    """
    if not may_be_one_call(net, x) or not usual_rules(F.linear, F.conv2d, F.relu, F.dropout, Tensor.flatten):
        return None
    modules = _modules_of(net)
    if modules is None:
        return None
    while modules and type(modules[0]) in IN_FRONT:
        x = modules.pop(0)(x)
    found = _links(modules, tuple(x.shape[1:])) if type(x) is Tensor and native.suits(x) else None
    if not found:
        return None
    links, layers, flat = found
    if any(layer.prepared is None for layer in layers) and not _are_many(links, len(x)):
        return None
    found_weights = [_panels(link, layer) for link, layer in zip(links, layers, strict=True)]
    weights = [panels for panels in found_weights if panels is not None]
    biases = [layer.bias for layer in layers]
    if len(weights) < len(links) or not all(bias is None or is_usual(bias) for bias in biases):
        return None
    made = native.chain(x.contiguous(), links, weights, biases, *special.HALF_LINE, NEGLIGIBLE[torch.float32])
    loc, variance = (part.permute(0, 3, 1, 2) for part in made)
    return Moments(loc.flatten(1), variance.flatten(1)) if flat else Moments(loc, variance)


def _modules_of(net: Any) -> list[Any] | None:
    """The modules of a `Sequential` and of those inside it; None where somebody watches one."""
    if is_watched(net):
        return None
    if type(net) is not nn.Sequential:
        return [net]
    found: list[Any] = []
    for module in net._modules.values():
        inside = _modules_of(module)
        if inside is None:
            return None
        found += inside
    return found


def _links(modules: list[Any], shape: Shape) -> tuple[list[Link], list[Any], bool] | None:
    """What the kernel needs to know of each layer, the layers, and whether the last result is flat; None where a module
    is of a kind that it does not know.

    Args:
        shape: of one point.
    """
    links: list[Link] = []
    layers: list[Any] = []
    flat = len(shape) == 1
    for module in modules:
        kind, link = type(module), None
        if kind is GaussianConv2d and not flat:
            link = _convolution(module, shape)
        elif kind is GaussianLinear and flat:
            link = _linear(module, shape)
        elif kind is nn.ReLU and links and not links[-1].rectifies:
            links[-1] = links[-1]._replace(rectifies=True)
            continue
        elif kind is nn.Flatten and links and (module.start_dim, module.end_dim) == (1, -1):
            flat = True
            continue
        elif kind is nn.Identity or (kind is nn.Dropout and not module.training):
            continue
        if link is None or min(link.made) < 1 or link.window > LONGEST_WINDOW:
            return None
        links.append(link)
        layers.append(module)
        shape = (link.outputs, *link.made)
    return (links, layers, flat) if links else None


def _convolution(layer: Any, shape: Shape) -> Link | None:
    """shape: (channels, height, width)"""
    usual = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    if not usual or isinstance(layer.padding, str) or len(shape) != 3 or shape[0] != layer.in_channels:
        return None
    (down, across), (_, high, wide) = layer.padding, shape
    window = layer.in_channels, high + 2 * down, wide + 2 * across, layer.out_channels, *layer.kernel_size
    return Link._make((*window, *layer.stride, down, across, False))


def _linear(layer: Any, shape: Shape) -> Link | None:
    """shape: (inputs,), or (channels, height, width) that are flattened"""
    channels, high, wide = (*shape, 1, 1)[:3]
    if channels * high * wide != layer.in_features:
        return None
    return Link(channels, high, wide, layer.out_features, high, wide, 1, 1, 0, 0, rectifies=False)


def _are_many(links: list[Link], points: int) -> bool:
    """Whether points are so many that laying out the weights takes less time than is saved."""
    weights = sum(link.window * link.outputs for link in links)
    return weights <= WORTH_LAYING_OUT * points * sum(math.prod(link.made) * link.outputs for link in links)


def _panels(link: Link, layer: Any) -> Tensor | None:
    """A layer's weights as the kernel reads them; kept where they are prepared, which they are once (`frozen`)."""
    buffers, parameters = layer._buffers, layer._parameters
    if layer.is_sampling or layer.variances != "full" or buffers.get("common_variance") is not None:
        return None
    link = link._replace(rectifies=False)
    if layer.prepared is not None:
        weight = layer.prepared["weight"]
        if not isinstance(weight, LayerWeight) or weight.gain is None:  # one draw of it
            return None
        if not all(map(is_usual, (weight.loc, weight.variance, weight.gain))):
            return None
        if link not in weight.panels:
            weight.panels[link] = native.panels(link, weight.loc, weight.variance, False, weight.gain)
        return weight.panels[link]
    mean, logvar = parameters["weight_mean"], parameters["weight_logvar"]
    if buffers.get("covariance_factor") is not None or not (is_usual(mean) and is_usual(logvar)):
        return None
    return native.panels(link, mean, logvar, True, None)
