"""Weights that are computed from other parameters (weight norm, spectral norm, any parametrisation), made plain."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

__all__ = ["copied", "make_weights_plain", "type_of"]

Net = TypeVar("Net", bound=nn.Module)


def type_of(layer: nn.Module) -> type[nn.Module]:
    """A layer's type; of one with parametrisations, that from before them."""
    return parametrize.type_before_parametrizations(layer)


def copied(module: Net) -> Net:
    """A deep copy, also of modules that keep a computed weight, which torch refuses to copy."""
    values = [v for m in module.modules() for v in vars(m).values() if isinstance(v, Tensor) and not v.is_leaf]
    return copy.deepcopy(module, {id(value): value.detach().clone() for value in values})


def make_weights_plain(layer: nn.Module) -> None:
    """Replace what computes a weight by its result, a parameter like any other; in place."""
    training = layer.training
    layer.eval()  # spectral norm takes another step whenever it is asked while training
    if parametrize.is_parametrized(layer):
        parametrizations: Any = layer.parametrizations
        own: Any = type(layer)  # which the layer that this one is a copy of has, too, and which is about to be changed
        layer.__class__ = type(own.__name__, own.__bases__, dict(vars(own)))
        with torch.enable_grad():  # or a weight that is made of several would come back as no parameter
            for name in list(parametrizations):
                parametrize.remove_parametrizations(layer, name, leave_parametrized=True)
    for key, hook in list(layer._forward_pre_hooks.items()):
        if isinstance(hook, (WeightNorm, SpectralNorm)):
            hook.remove(layer)
            del layer._forward_pre_hooks[key]
    for key, state_hook in list(layer._state_dict_hooks.items()):  # by which spectral norm marks its version
        if "SpectralNorm" in type(state_hook).__name__:
            del layer._state_dict_hooks[key]
    for key, load_hook in list(layer._load_state_dict_pre_hooks.items()):
        if "SpectralNorm" in type(getattr(load_hook, "hook", load_hook)).__name__:
            del layer._load_state_dict_pre_hooks[key]
    layer.train(training)
