"""Networks predicting: all layers in one call of a kernel, where they are of kinds that it knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl import _kernels
from bedl._kernels import LayerSpec
from bedl.moments import Moments, numerics
from bedl.moments.dispatch import default_rules_active
from bedl.moments.numerics import NEGLIGIBLE
from bedl.moments.rules._base import LayerWeight, are_rounded
from bedl.nn.layers import GaussianConv2d, GaussianLinear
from bedl.nn.tabular import PeriodicEmbedding, QuantileCodes, SkipLinear, Standardize, bounded

MAX_MULTIPLICATIONS = 2**19  # up to which calls take longer than they: one kernel for all, weights as they lie
MAX_WINDOW_SIZE = 1024  # numbers that an output sees: more weights than stay in the cache are the library's business
MIN_REUSE = 2  # weights that are not prepared, for each activation that need not be written and read
# Of known inputs, before the first layer.
IN_FRONT = (Standardize, QuantileCodes, nn.Flatten, nn.Unflatten, nn.Identity)
Shape = tuple[int, ...]


def forward(net: nn.Module, x: Any) -> Moments | None:
    """What a network says of known inputs, without derivatives; None where it has to go layer by layer.

    What it saves is calls in small networks, and passes over memory in others: between calls of PyTorch each result is
    written, and read again for its square, for ReLU and for the next layer. Its products are as fast as the library's,
    so that three of them cost what they have to.

    Args:
        net: a `Sequential`, nested or not, of Gaussian convolutions in two dimensions and linear layers, ReLU and
            Flatten, perhaps with `Standardize` or `QuantileCodes` in front.
        x: shape (n, *input)

    Returns:
        shape: (n, *outputs)

    Example:
        >>> net = nn.Sequential(GaussianConv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), GaussianLinear(36, 2))
        >>> with torch.no_grad():
        ...     known = forward(net, torch.ones(40, 1, 5, 5))
        ...     few = known is None or torch.allclose(known.loc, net(torch.ones(40, 1, 5, 5)).loc, atol=1e-5)
        >>> few
        True
    """
    if type(net) is not nn.Sequential or type(x) is not Tensor or torch.is_grad_enabled():
        return None
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu") or are_rounded() or not _kernels.supported(x):
        return None
    modules = _modules_of(net)
    if modules is None or not default_rules_active(F.linear, F.conv2d, F.relu, F.dropout, Tensor.flatten):
        return None
    scaling = None
    if modules and type(modules[0]) is Standardize and x.dim() == 2 and modules[0].loc.dim() == 1:
        scaling = modules.pop(0)  # which the kernel for small networks does itself
    if modules and type(modules[0]) in IN_FRONT:
        while modules and type(modules[0]) in IN_FRONT:
            x, scaling = modules.pop(0)(x if scaling is None else scaling(x)), None
        if type(x) is not Tensor or not _kernels.supported(x):
            return None
    found = _layers_of(modules, x.dim() == 2)
    if found is None:
        return None
    layers, flat = found
    small = _small(x, scaling, layers) if x.dim() == 2 and x.is_contiguous() else None
    return _chain(x if scaling is None else scaling(x), layers, flat) if small is None else small


Layers = list[tuple[Any, bool]]  # and whether ReLU follows


def _layers_of(modules: Sequence[Any], flat: bool) -> tuple[Layers, bool] | None:
    """The Gaussian layers, and whether the last result is flat; None where a module is of a kind that kernels do not
    know. flat: whether the first input is.
    """
    layers: Layers = []
    for module in modules:
        kind = type(module)
        if (kind is GaussianLinear and flat) or (kind is GaussianConv2d and not flat):
            layers.append((module, False))
        elif kind is nn.ReLU and layers and not layers[-1][1]:
            layers[-1] = layers[-1][0], True
        elif kind is nn.Flatten and layers and (module.start_dim, module.end_dim) == (1, -1):
            flat = True
        elif kind is not nn.Identity and (kind is not nn.Dropout or module.training):
            return None
    return (layers, flat) if layers else None


def _small(x: Tensor, scaling: Any, layers: Layers) -> Moments | None:
    """Few linear layers, whose weights are read as they lie."""
    scale = None if scaling is None else (scaling.loc, scaling.scale)
    if scale is not None and not all(map(is_plain_tensor, scale)):
        return None
    weights, width, size = [], x.shape[1], 0
    for layer, rectifies in layers:
        weight = _weights(layer, rectifies)
        if weight is None or weight.mean.shape[1] != width or not all(map(is_plain_tensor, weight.tensors)):
            return None
        weights.append(weight)
        width, size = weight.mean.shape[0], size + weight.mean.numel()
    if len(x) * size > MAX_MULTIPLICATIONS:
        return None
    return Moments(*_kernels.small_network(x, scale, weights, *numerics.HALF_LINE, NEGLIGIBLE[torch.float32]))


def _chain(x: Tensor, layers: Layers, flat: bool) -> Moments | None:
    """Layers whose weights are laid out for products."""
    shape, links = tuple(x.shape[1:]), []
    for layer, rectifies in layers:
        link = (_linear if type(layer) is GaussianLinear else _convolution)(layer, shape)
        if link is None or min(link.made) < 1 or link.window > MAX_WINDOW_SIZE:
            return None
        links.append(link._replace(rectifies=rectifies))
        shape = (link.outputs, *link.made)
    if any(layer.prepared is None for layer, _ in layers) and not _are_many(links, len(x)):
        return None
    found = [_packed(link, layer) for link, (layer, _) in zip(links, layers, strict=True)]
    weights = [weight for weight in found if weight is not None]
    biases = [layer.bias for layer, _ in layers]
    if len(weights) < len(links) or not all(bias is None or is_plain_tensor(bias) for bias in biases):
        return None
    made = _kernels.chain(x.contiguous(), links, weights, biases, *numerics.HALF_LINE, NEGLIGIBLE[torch.float32])
    loc, variance = (part.permute(0, 3, 1, 2) for part in made)
    return Moments(loc.flatten(1), variance.flatten(1)) if flat else Moments(loc, variance)


def has_hooks(module: Any) -> bool:
    """Whether somebody wants to know of a module's calls."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def is_plain_tensor(x: Tensor) -> bool:
    """Whether a kernel can read a tensor's memory."""
    usual = x.dtype is torch.float32 and x.device.type == "cpu" and x.is_contiguous()
    return usual and not torch._C._functorch.is_functorch_wrapped_tensor(x)


def _weights(layer: Any, rectifies: bool) -> _kernels.Small | None:
    parameters, bias = layer._parameters, layer._parameters.get("bias")
    if layer.is_sampling or layer.variances != "full":
        return None
    if layer._buffers.get("covariance_factor") is not None or layer._buffers.get("common_variance") is not None:
        return None
    if layer.prepared is not None:
        weight = layer.prepared["weight"]
        if not isinstance(weight, Moments):  # one draw of it
            return None
        return _kernels.Small(weight.loc, weight.variance, False, bias, rectifies)
    return _kernels.Small(parameters["weight_mean"], parameters["weight_logvar"], True, bias, rectifies)


def _modules_of(net: Any) -> list[Any] | None:
    """The modules of a `Sequential` and of those inside it; None where somebody watches one."""
    if has_hooks(net):
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


def _convolution(layer: Any, shape: Shape) -> LayerSpec | None:
    """shape: (channels, height, width)"""
    usual = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    if not usual or isinstance(layer.padding, str) or len(shape) != 3 or shape[0] != layer.in_channels:
        return None
    (down, across), (_, high, wide) = layer.padding, shape
    window = layer.in_channels, high + 2 * down, wide + 2 * across, layer.out_channels, *layer.kernel_size
    return LayerSpec._make((*window, *layer.stride, down, across, False))


def _linear(layer: Any, shape: Shape) -> LayerSpec | None:
    """shape: (inputs,), or (channels, height, width) that are flattened"""
    channels, high, wide = (*shape, 1, 1)[:3]
    if channels * high * wide != layer.in_features:
        return None
    return LayerSpec(channels, high, wide, layer.out_features, high, wide, 1, 1, 0, 0, rectifies=False)


def _are_many(links: Sequence[LayerSpec], points: int) -> bool:
    """Whether points are so many that laying out the weights takes less time than is saved."""
    weights = sum(link.window * link.outputs for link in links)
    return weights <= MIN_REUSE * points * sum(math.prod(link.made) * link.outputs for link in links)


def _packed(link: LayerSpec, layer: Any) -> Tensor | None:
    """A layer's weights as the kernel reads them; kept where they are prepared (`cached_weights`)."""
    buffers, parameters = layer._buffers, layer._parameters
    if layer.is_sampling or layer.variances != "full" or buffers.get("common_variance") is not None:
        return None
    link = link._replace(rectifies=False)
    if layer.prepared is not None:
        weight = layer.prepared["weight"]
        if not isinstance(weight, LayerWeight) or weight.gain is None:  # one draw of it
            return None
        if not all(map(is_plain_tensor, (weight.loc, weight.variance, weight.gain))):
            return None
        if link not in weight.packed_weights:
            weight.packed_weights[link] = _kernels.packed_weights(link, weight.loc, weight.variance, False, weight.gain)
        return weight.packed_weights[link]
    mean, logvar = parameters["weight_mean"], parameters["weight_logvar"]
    if buffers.get("covariance_factor") is not None or not (is_plain_tensor(mean) and is_plain_tensor(logvar)):
        return None
    return _kernels.packed_weights(link, mean, logvar, True, None)


# Networks of the same build, run as one: a few large operations in place of many small ones.
#
# For what tables are learned with. Everything is made of operations that have rules and derivatives.


Value = Any  # a tensor or Moments
ELEMENTWISE = (nn.Identity, nn.ReLU, nn.ELU, nn.GELU, nn.LeakyReLU, nn.Mish, nn.Sigmoid, nn.SiLU, nn.Softplus, nn.Tanh)


def forward_of_many(nets: Sequence[nn.Module], x: Value) -> Value | None:
    """What each network says of the same inputs; None where one is made of something that is not known here.

    Args:
        nets: of the same build.
        x: tensor or Moments. shape: (n, d)

    Returns:
        shape: (networks, n, outputs)

    Example:
        >>> nets = [nn.Sequential(GaussianLinear(3, 8), nn.ReLU(), GaussianLinear(8, 2)) for _ in range(5)]
        >>> forward_of_many(nets, torch.zeros(4, 3)).shape
        torch.Size([5, 4, 2])
    """
    if x.dim() != 2 or not all(_is_known(net) for net in nets):
        return None
    return _run(nets, x.expand(len(nets), *x.shape))


def _is_known(module: Any) -> bool:
    kind = type(module)
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    if kind is GaussianLinear:
        return module.variances == "full" and not module.is_sampling
    if kind in (nn.Sequential, SkipLinear):
        return all(_is_known(part) for part in module.children() if type(part) is not nn.Linear)
    return kind is PeriodicEmbedding or (kind is Standardize and module.loc.dim() == 1) or kind in ELEMENTWISE


def _run(modules: Sequence[Any], x: Value) -> Value:
    """x: shape (networks, n, k)"""
    return _RULES.get(type(modules[0]), _elementwise)(modules, x)


def _stack(modules: Sequence[Any], name: str) -> Tensor:
    return torch.stack([getattr(module, name) for module in modules])


def _elementwise(modules: Sequence[Any], x: Value) -> Value:
    return modules[0](x)


def _sequential(modules: Sequence[Any], x: Value) -> Value:
    for parts in zip(*(module._modules.values() for module in modules), strict=True):
        x = _run(parts, x)
    return x


def _standardize(modules: Sequence[Any], x: Value) -> Value:
    return (x - _stack(modules, "loc").unsqueeze(1)) / _stack(modules, "scale").unsqueeze(1)


def _linear_replicas(modules: Sequence[Any], x: Value) -> Value:
    if all(module.prepared is None and module.covariance_factor is None for module in modules):
        weight = LayerWeight(_stack(modules, "weight_mean").mT, _stack(modules, "weight_logvar").mT.exp(), None, None)
    else:
        made = [module.weight for module in modules]
        gain = torch.stack([w.loc.square() if w.gain is None else w.gain for w in made])
        loc, variance = (torch.stack([getattr(w, name) for w in made]) for name in ("loc", "variance"))
        weight = LayerWeight(loc.mT, variance.mT, gain.mT, None)
    y: Any = torch.matmul(x, weight)  # type: ignore[arg-type]
    if any(module.common_variance is not None for module in modules):
        none = y.variance.new_zeros(y.shape[-1])
        common = [none if module.common_variance is None else module.common_variance.to(none) for module in modules]
        y = Moments(y.loc, y.variance + torch.stack(common).unsqueeze(1))
    return y if modules[0].bias is None else y + _stack(modules, "bias").unsqueeze(1)


def _columns(modules: Sequence[Any], x: Value) -> Value:
    z = bounded(x)
    if not modules[0].size:
        return z
    frequency, phase, weight, bias = (_stack(modules, name) for name in ("frequency", "phase", "weight", "bias"))
    angles = 2 * math.pi * z.transpose(1, 2)[..., None] * frequency[:, :, None] + phase[:, :, None]
    made = torch.matmul(torch.cos(angles), weight) + bias[:, :, None]  # shape: (networks, columns, n, size)
    return torch.cat([z, made.transpose(1, 2).flatten(2)], -1)


def _with_shortcut(modules: Sequence[Any], x: Value) -> Value:
    embedded = _columns([module.columns for module in modules], x)
    straight = torch.matmul(
        embedded[..., : modules[0].columns.n_columns], _stack([module.shortcut for module in modules], "weight").mT
    )
    return _run([module.body for module in modules], embedded) + straight


_RULES: dict[type, Callable[[Sequence[Any], Value], Value]] = {
    nn.Sequential: _sequential,
    Standardize: _standardize,
    GaussianLinear: _linear_replicas,
    PeriodicEmbedding: _columns,
    SkipLinear: _with_shortcut,
}
