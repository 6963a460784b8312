"""Blocks in which the Gaussian layers of a network work differently: weights drawn, or prepared once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from bedl._utils.errors import BEDLError
from bedl.moments import Moments
from bedl.nn.draws import Draws, Sharing, point_value
from bedl.nn.layers import GaussianLayer
from bedl.nn.points import PointsOfLayers, Shares

Net = TypeVar("Net", bound=nn.Module)
_LOCK = threading.Lock()  # blocks of several threads may overlap; the last to end drops what was cached


def _gaussian_layers(module: nn.Module) -> list[GaussianLayer]:
    return [m for m in module.modules() if isinstance(m, GaussianLayer)]


def _is_moments(x: Any) -> bool:
    return isinstance(x, Moments)


@contextmanager
def cached_weights(module: Net) -> Iterator[Net]:
    """Inside the block weights are constants: their variances and squares are computed once, not at every call.

    For many predictions with the same weights, above all of few points each: for a batch of one, preparing the weights
    costs more than using them. Inside the block weights must not be changed (`fit` and `load_state_dict` refuse to)
    and have no gradients.

    Example:
        >>> import bedl, torch
        >>> net = bedl.GaussianLinear(3, 2)
        >>> with bedl.cached_weights(net):
        ...     predictions = [net(torch.ones(1, 3)) for _ in range(4)]
        >>> bool((predictions[0].variance == net(torch.ones(1, 3)).variance).all())
        True
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"cached_weights takes a network or a method, an nn.Module, not {type(module).__name__}")
    layers = _gaussian_layers(module)
    entered = []
    try:
        with _LOCK, torch.no_grad():
            for layer in layers:
                if layer.cache_depth == 0:
                    layer.prepare()
                layer.cache_depth += 1
                entered.append(layer)
        yield module
    finally:
        with _LOCK:
            for layer in entered:
                layer.cache_depth -= 1
                if layer.cache_depth == 0:
                    layer.prepared = None


def check_not_cached(module: nn.Module, who: str) -> None:
    """An error if weights, which `who` is about to change, are constants now."""
    if any(layer.prepared is not None for layer in _gaussian_layers(module)):
        raise BEDLError(
            f"{who}: inside `with bedl.cached_weights(...)` weights are constants; call it outside the block"
        )


@contextmanager
def sampled(module: Net, per: str = "point") -> Iterator[Net]:
    """Inside the block every Gaussian layer of `module` draws its weights, anew at each call and for each data point.

    The module then maps tensors to tensors, one draw from the model per call: the brute-force answer that the
    moments approximate in one pass. Within one call of the module a weight is drawn once per point, however often it is
    used, by whichever layers.

    Data points are the entries of the input's first axis. Which rows of a layer's input are theirs is found out by
    trials, on a copy of the module with a few of the points: rows that positions are folded into (`x.reshape(-1, d)`)
    share the draw of their point. Where it is not known, where code uses a weight without calling its layer
    (`F.linear(x, layer.weight)`), and where points depend on each other, all points of a call share one draw of these
    weights, with a warning that names them. What each point gives is then distributed as it should be; only the points
    are not independent.

    Args:
        module: a network or a method, or a layer.
        per: ``"point"``, or ``"call"``: all points share one draw of all weights, without trials.

    Example:
        >>> import bedl, torch
        >>> net = bedl.GaussianLinear(3, 2)
        >>> with bedl.sampled(net):
        ...     draws = torch.stack([net(torch.ones(1, 3)) for _ in range(4)])
        >>> draws.shape
        torch.Size([4, 1, 2])
        >>> with bedl.sampled(net, per="call"):
        ...     function = net(torch.ones(2, 3))
        >>> bool((function[0] == function[1]).all())
        True
    """
    if per not in ("point", "call"):
        raise ValueError(f"sampled: per is 'point' or 'call', not {per!r}")
    with drawing(module, once=True, per=per, warn=True):
        yield module


@contextmanager
def drawn_function(module: Net) -> Iterator[Net]:
    """Inside the block every Gaussian layer of `module` has one draw of its weights, for all data points and calls.

    The module is then an ordinary function, one of those that a posterior over global weights speaks of; `sampled`
    draws for each call and point anew, as local weights have it. Random inputs are not drawn: of `Moments`, the
    function gives `Moments`.

    Example:
        >>> import bedl, torch
        >>> net = bedl.GaussianLinear(3, 2)
        >>> with bedl.nn.drawn_function(net):
        ...     twice = net(torch.ones(2, 3))
        >>> bool((twice[0] == twice[1]).all())
        True
    """
    layers = _gaussian_layers(module)
    with _restored(layers):
        _begin_pass(layers, Shares(1, [Sharing()] * len(layers)), [0], once=True)
        yield module


@contextmanager
def drawing(module: nn.Module, once: bool, per: str = "point", warn: bool = False) -> Iterator[None]:
    """Inside the block layers draw their weights (see `sampled`), `once` in a pass or at each use."""
    layers = _gaussian_layers(module)
    points = PointsOfLayers(module) if per == "point" and layers else None
    inside = [0]  # how many layers are at work
    depth = 0  # how many modules are: a pass is a call of the outermost, which is the module or a part of it
    shares = Shares(1, [])

    def enter(part: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        nonlocal depth, shares
        depth += 1
        if depth > 1:
            return None
        shares = points.of_call(part, args, kwargs) if points else Shares(1, [Sharing()] * len(layers))
        inside[0] = 0
        _begin_pass(layers, shares, inside, once)
        if not any(map(_is_moments, pytree.tree_leaves((args, kwargs), is_leaf=_is_moments))):
            return None
        return pytree.tree_map(point_value, (args, kwargs), is_leaf=_is_moments)  # random inputs, too, are drawn once

    def leave(*_: Any) -> None:
        nonlocal depth
        depth -= 1
        if depth == 0:
            for layer in layers:
                layer.drawn = None

    def say(*_: Any) -> None:
        if warn and depth == 1 and points is not None:  # not of a pass that failed
            points.warn(shares)

    with _restored(layers):
        handles: list[Any] = []
        try:
            for part in module.modules():
                handles.append(part.register_forward_pre_hook(enter, prepend=True, with_kwargs=True))
                handles.append(part.register_forward_hook(say))
                handles.append(part.register_forward_hook(leave, always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def _restored(layers: list[GaussianLayer]) -> Iterator[None]:
    """Inside the block layers draw their weights; after it they do what they did."""
    before = [(layer.is_sampling, layer.drawn) for layer in layers]
    try:
        for layer in layers:
            layer.is_sampling, layer.drawn = True, None
        yield
    finally:
        for layer, (is_sampling, drawn) in zip(layers, before, strict=True):
            layer.is_sampling, layer.drawn = is_sampling, drawn


def _begin_pass(layers: list[GaussianLayer], shares: Shares, inside: list[int], once: bool) -> None:
    draws: dict[int, Draws] = {}  # layers that share a weight share its draw
    for layer, sharing in zip(layers, shares.of_layers, strict=True):
        layer.drawn = draws.setdefault(layer.weight_key(), Draws(sharing, shares.points, inside, once))
