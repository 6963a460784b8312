"""Blocks in which the Gaussian layers of a network work differently: weights drawn, or prepared once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from bedl.errors import BEDLError
from bedl.nn.draws import point_value
from bedl.nn.layers import GaussianLayer

__all__ = ["drawing", "drawn_function", "frozen", "refuse_frozen", "sampled"]

Net = TypeVar("Net", bound=nn.Module)
_LOCK = threading.Lock()  # blocks of several threads may overlap; the last to end thaws the weights


def _gaussian_layers(module: nn.Module) -> list[GaussianLayer]:
    return [m for m in module.modules() if isinstance(m, GaussianLayer)]


@contextmanager
def frozen(module: Net) -> Iterator[Net]:
    """Inside the block weights are constants: their variances and squares are computed once, not at every call.

    For many predictions with the same weights, above all of few points each: for a batch of one, preparing the weights
    costs more than using them. Inside the block weights must not be changed (`fit` and `load_state_dict` refuse to)
    and have no gradients.

    Example:
        >>> import bedl, torch
        >>> net = bedl.GaussianLinear(3, 2)
        >>> with bedl.frozen(net):
        ...     predictions = [net(torch.ones(1, 3)) for _ in range(4)]
        >>> bool((predictions[0].variance == net(torch.ones(1, 3)).variance).all())
        True
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"frozen takes a network or a method, an nn.Module, not {type(module).__name__}")
    layers = _gaussian_layers(module)
    entered = []
    try:
        with _LOCK, torch.no_grad():
            for layer in layers:
                if layer.frozen_by == 0:
                    layer.prepare()
                layer.frozen_by += 1
                entered.append(layer)
        yield module
    finally:
        with _LOCK:
            for layer in entered:
                layer.frozen_by -= 1
                if layer.frozen_by == 0:
                    layer.prepared = None


def refuse_frozen(module: nn.Module, who: str) -> None:
    """An error if weights, which `who` is about to change, are constants now."""
    if any(layer.prepared is not None for layer in _gaussian_layers(module)):
        raise BEDLError(f"{who}: inside `with bedl.frozen(...)` weights are constants; call it outside the block")


@contextmanager
def sampled(module: nn.Module) -> Iterator[nn.Module]:
    """Inside the block every Gaussian layer of `module` draws its weights, anew for each data point.

    The module then maps tensors to tensors, one draw from the model per call: the brute-force answer that the
    moments approximate in one pass. A data point is a row of a layer's input (its first axis). Within one call of the
    module a layer draws once per point, however often it is used, and so do layers that share a weight.

    Example:
        >>> import bedl, torch
        >>> net = bedl.GaussianLinear(3, 2)
        >>> with bedl.sampled(net):
        ...     draws = torch.stack([net(torch.ones(1, 3)) for _ in range(4)])
        >>> draws.shape
        torch.Size([4, 1, 2])
    """
    with drawing(module, once=True):
        yield module


@contextmanager
def drawn_function(module: nn.Module) -> Iterator[nn.Module]:
    """Inside the block every Gaussian layer of `module` has one draw of its weights, the same for all data points.

    The module is then an ordinary function, one of those that a posterior over global weights speaks of; `sampled`
    draws for each point anew, as local weights have it.

    Example:
        >>> import bedl, torch
        >>> net = bedl.GaussianLinear(3, 2)
        >>> with bedl.nn.drawn_function(net):
        ...     twice = net(torch.ones(2, 3))
        >>> bool((twice[0] == twice[1]).all())
        True
    """
    layers = _gaussian_layers(module)
    before = [layer.prepared for layer in layers]
    drawn: dict[int, dict[str, Any]] = {}  # layers that share a weight share its draw
    try:
        for layer in layers:
            if layer.weight_key() not in drawn:
                pairs = {name: layer.gaussian(name) for name in layer.gaussian_parameters}
                drawn[layer.weight_key()] = {name: point_value(pair) for name, pair in pairs.items()}
            layer.prepared = drawn[layer.weight_key()]
        yield module
    finally:
        for layer, prepared in zip(layers, before, strict=True):
            layer.prepared = prepared


@contextmanager
def drawing(module: nn.Module, once: bool) -> Iterator[None]:
    """Inside the block layers draw their weights: `once` per point and pass, or anew at each of their calls."""
    layers = _gaussian_layers(module)
    before = [(layer.is_sampling, layer.drawn) for layer in layers]
    handles: list[Any] = []
    try:
        for layer in layers:
            layer.is_sampling, layer.drawn = True, None
        if once:
            handles = _remembering(module, layers)
        yield
    finally:
        for handle in handles:
            handle.remove()
        for layer, (is_sampling, drawn) in zip(layers, before, strict=True):
            layer.is_sampling, layer.drawn = is_sampling, drawn


def _remembering(module: nn.Module, layers: list[GaussianLayer]) -> list[Any]:
    """Hooks by which layers remember what they drew until the outermost call of the module, or of a part, has ended."""
    depth = 0

    def enter(*_: Any) -> None:
        nonlocal depth
        if depth == 0:
            draws: dict[int, dict] = {}
            for layer in layers:
                layer.drawn = draws.setdefault(layer.weight_key(), {})
        depth += 1

    def leave(*_: Any) -> None:
        nonlocal depth
        depth -= 1
        if depth == 0:
            for layer in layers:
                layer.drawn = None

    handles = []
    for part in module.modules():
        handles.append(part.register_forward_pre_hook(enter, prepend=True))
        handles.append(part.register_forward_hook(leave, always_call=True))
    return handles
