"""Networks of the same build, run as one: a few large operations in place of many small ones.

For what tables are learned with. Everything is made of operations that have rules and derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bedl.moments import Moments
from bedl.nn.columns import Columns, WithShortcut, bounded
from bedl.nn.layers import GaussianLinear
from bedl.nn.scaling import Standardize
from bedl.rules.weights import LayerWeight

__all__ = ["forward_of_many"]

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
    if kind in (nn.Sequential, WithShortcut):
        return all(_is_known(part) for part in module.children() if type(part) is not nn.Linear)
    return kind is Columns or (kind is Standardize and module.loc.dim() == 1) or kind in ELEMENTWISE


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


def _linear(modules: Sequence[Any], x: Value) -> Value:
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
    GaussianLinear: _linear,
    Columns: _columns,
    WithShortcut: _with_shortcut,
}
