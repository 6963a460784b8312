"""One factor of all weights' variances, by which the outputs of a corrected network vary as those that were learned.

A network learns its weights' variances by what one pass makes of them; the likelihood knows them by nothing else. What
one pass drops, positions that share a draw above all, may make that a tenth of the true standard deviation. After a
correction alone the likelihood would meet variances a hundred times as large as those it was learned with. With the
weights' variances scaled the outputs vary as before, and so do the draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bedl.errors import BEDLError
from bedl.moments import Moments
from bedl.nn.calling import Output, outputs_of
from bedl.nn.layers import GaussianLayer

__all__ = ["gaussian_layers", "scale_weights", "take_back_scale"]

_PASSES = 4  # the logarithm of the outputs' variances is nearly linear in that of the factor


def gaussian_layers(net: nn.Module) -> list[GaussianLayer]:
    return [layer for layer in net.modules() if isinstance(layer, GaussianLayer)]


def scale_weights(net: nn.Module, x: Any, learned: Any, output: Output = None) -> None:
    """Scale the variances of a corrected network's weights, in place, until its outputs vary as `learned` does.

    Args:
        net: a network whose layers have factors.
        x: inputs, as the network takes them.
        learned: Moments that it gave for them before it had factors. shape: that of its outputs
        output: which of its outputs these are, if there are several.
    """
    if not isinstance(learned, Moments):
        raise BEDLError(f"correct_variances: keep=True needs outputs with variances, not {type(learned).__name__}")
    tiny = torch.finfo(learned.variance.dtype).tiny
    known = learned.variance > tiny
    if not known.any():
        return
    layers, target = gaussian_layers(net), learned.variance[known].log().mean()
    for _ in range(_PASSES):
        present = outputs_of(net, x, output).variance[known]
        step = target - present.clamp_min(tiny).log().mean()
        _shift(dict.fromkeys(layers, step))
        for layer in layers:
            layer.variance_shift = step.clone() if layer.variance_shift is None else layer.variance_shift + step
            if layer.common_variance is not None:
                layer.common_variance = layer.common_variance * step.exp().to(layer.common_variance)


def take_back_scale(net: nn.Module) -> None:
    """Give weights their own variances again, up to rounding."""
    layers = gaussian_layers(net)
    _shift({layer: -layer.variance_shift for layer in layers if layer.variance_shift is not None})
    for layer in layers:
        layer.variance_shift = None


def _shift(shifts: Mapping[GaussianLayer, Tensor]) -> None:
    """Add to layers' log-variances; once to those that several have in common."""
    done: set[int] = set()
    for layer, shift in shifts.items():
        for name, logvar in layer.named_parameters(recurse=False):
            if name.endswith("_logvar") and id(logvar) not in done:
                logvar.add_(shift.to(logvar))
                done.add(id(logvar))
