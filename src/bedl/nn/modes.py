"""Blocks in which the Gaussian layers of a network work differently: weights drawn, or prepared once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from bedl.errors import BEDLError
from bedl.nn.layers import GaussianLayer

__all__ = ["frozen", "refuse_frozen", "sampled"]

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
    moments approximate in one pass.

    Example:
        >>> import bedl, torch
        >>> net = bedl.GaussianLinear(3, 2)
        >>> with bedl.sampled(net):
        ...     draws = torch.stack([net(torch.ones(1, 3)) for _ in range(4)])
        >>> draws.shape
        torch.Size([4, 1, 2])
    """
    layers = _gaussian_layers(module)
    before = [layer.is_sampling for layer in layers]
    try:
        for layer in layers:
            layer.is_sampling = True
        yield module
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.is_sampling = value
