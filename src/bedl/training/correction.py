"""After training: what the covariances that one pass drops come to, for networks in which they matter.

Positions of an image share one draw of a convolution's weights. What is computed from several of them, an average above
all, then has a standard deviation that one pass reports as half of it or less (docs/approximation.md). A trained
network with convolutions is therefore corrected by draws, once, if that takes no more than about a minute.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from torch import nn

from bedl._utils.errors import BEDLError
from bedl.methods import Method
from bedl.nn import GaussianLayer, correct_variances, remove_correction
from bedl.nn.calling import map_parts
from bedl.nn.layers import GaussianConv1d, GaussianConv2d, GaussianConv3d
from bedl.training.data import Points, cast

Correct = bool | str  # True, False or "auto"

logger = logging.getLogger("bedl")
INPUTS, DRAWS = 300, 10  # covariances differ from input to input more than few draws are noisy
MIN_STEPS = 100  # after which a network is hardly trained
MAX_INPUT_NUMEL = 2**28 / 64  # values of inputs: layers have so many times as many, and those of all inputs are held
MAX_WEIGHT_DRAWS = 3e9  # weights: each input draws its own, and a core some 1e8 of them in a second


def reset_correction(method: Method, choice: Correct) -> None:
    """Take back the correction of weights that are about to change."""
    if choice not in (True, False, "auto"):
        raise ValueError(f'correct must be True, False or "auto", not {choice!r}')
    net = getattr(method, "net", None)
    if choice and isinstance(net, nn.Module):
        remove_correction(net)


def correct_after_fit(method: Method, points: Points, choice: Correct, steps: int, device: torch.device) -> None:
    """Correct the variances of a trained network, in place, if that was asked for or is called for.

    Inputs that were not learned from are better: a network is surer of those that were, in ways that one pass misses.
    """
    net: Any = getattr(method, "net", None)
    if not choice or not isinstance(net, nn.Module):
        return
    predicts_in_one_pass = hasattr(method, "outputs")
    if choice == "auto" and (steps < MIN_STEPS or not predicts_in_one_pass or not shares_draws(net)):
        return
    layers = [layer for layer in net.modules() if isinstance(layer, GaussianLayer)]
    weights = sum(p.numel() for layer in layers for name, p in layer.named_parameters(recurse=False) if "mean" in name)
    sizes: list[int] = []
    map_parts(lambda part: sizes.append(part[0].numel()), next(points.fetch([np.arange(1)]))[0])
    count = int(min(INPUTS, points.n, MAX_WEIGHT_DRAWS / DRAWS / max(weights, 1), MAX_INPUT_NUMEL / max(sizes)))
    if choice == "auto" and count < min(INPUTS // 12, points.n):
        logger.warning(
            "standard deviations of this network may come out too small, as positions share the draws of its weights; "
            "to correct them takes minutes: bedl.nn.correct_variances(method.net, inputs, keep=True)"
        )
        return
    numbers = np.unique(np.linspace(0, points.n - 1, max(1, count)).astype(int))
    x = cast(*next(points.fetch([numbers])), method).x
    try:
        x = map_parts(lambda part: part.to(device), x)
        correct_variances(net, x, draws=DRAWS, keep=True, output=getattr(method, "output", None))
    except (BEDLError, NotImplementedError, RuntimeError, TypeError) as error:
        if choice is True:
            raise
        logger.warning("variances were not corrected: %s", str(error).splitlines()[0])


def shares_draws(net: nn.Module) -> bool:
    """Whether several convolutions follow each other, behind which positions share the draws of weights."""
    kinds = (GaussianConv1d, GaussianConv2d, GaussianConv3d)
    return sum(isinstance(m, kinds) and max(m.kernel_size) > 1 for m in net.modules()) > 1
