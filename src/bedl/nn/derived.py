"""Weights that are computed from other parameters (weight norm, spectral norm, parametrisations), made plain."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from bedl._utils.errors import BEDLError

Net = TypeVar("Net", bound=nn.Module)


def type_of(layer: nn.Module) -> type[nn.Module]:
    """A layer's type; of one with parametrisations, that from before them."""
    return parametrize.type_before_parametrizations(layer)


def copied(module: Net, instead: Mapping[int, Any] | None = None) -> Net:
    """A deep copy, also of modules that keep a computed weight, which torch refuses to copy.

    Args:
        module: to be copied.
        instead: what comes in place of objects, by their id.
    """
    values = [v for m in module.modules() for v in vars(m).values() if isinstance(v, Tensor) and not v.is_leaf]
    return copy.deepcopy(module, {**(instead or {}), **{id(value): value.detach().clone() for value in values}})


def computed_by(layer: nn.Module) -> list[str]:
    """What computes weights of a layer, by the names of its classes: "SpectralNorm", "WeightNorm", "Orthogonal"…"""
    parts: list[Any] = [
        hook for hook in layer._forward_pre_hooks.values() if isinstance(hook, (WeightNorm, SpectralNorm))
    ]
    if parametrize.is_parametrized(layer):
        parametrizations: Any = layer.parametrizations
        parts += [part for name in parametrizations for part in parametrizations[name]]
    return list(dict.fromkeys(type(part).__name__.lstrip("_") for part in parts))


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


def compute_stored_weights(state: dict[str, Any], prefix: str, weights: Sequence[str], along: int) -> None:
    """Put weights where the state of a plain layer has what they are computed from; in place.

    Args:
        state: that of a network.
        prefix: of the layer's entries.
        weights: names of the layer's weights.
        along: the dimension of a weight that the layer's outputs lie along, by which spectral norm makes it a matrix.
    """
    for name in weights:
        new, old = f"{prefix}parametrizations.{name}.", f"{prefix}{name}_"
        for length, direction in ((f"{new}original0", f"{new}original1"), (f"{old}g", f"{old}v")):
            if length in state and direction in state:
                g, v = state.pop(length), state.pop(direction)
                summed = [i for i in range(v.dim()) if g.dim() == 0 or g.shape[i] == 1]
                state[f"{prefix}{name}"] = v * (g / torch.linalg.vector_norm(v, dim=summed, keepdim=True))
        for whole, left, right in (
            (f"{new}original", f"{new}0._u", f"{new}0._v"),
            (f"{old}orig", f"{old}u", f"{old}v"),
        ):
            if whole in state and left in state and right in state:
                weight, u, v = state.pop(whole), state.pop(left), state.pop(right)
                state[f"{prefix}{name}"] = weight / torch.dot(u, weight.movedim(along, 0).flatten(1) @ v)
        unknown = [key.removeprefix(prefix) for key in state if key.startswith(new)]
        if unknown:
            raise BEDLError(
                f"load_state_dict: what computes the weight of layer '{prefix.removesuffix('.')}' ({unknown[0]}) is "
                "not known here. Load the state into the plain model and convert that: bedl.bayesianize(model)"
            )
