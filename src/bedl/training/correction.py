"""After training: standard deviations of one pass are compared with those of drawn weights, and corrected.

One pass carries no covariances. Where units share much of their past (positions that share one draw of a convolution's
weights, tokens, nodes, the branches of a sum), it reports half of the standard deviation or less
(docs/approximation.md). Draws for a few inputs show whether it does, at a price that is small beside that of training.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from torch import nn

from bedl._utils.errors import BEDLError
from bedl.methods import Method
from bedl.nn import GaussianLayer, correct_variances, remove_correction, std_ratio
from bedl.nn.calling import map_parts
from bedl.training.data import Points, cast

__all__ = ["Correct", "correct_after_fit", "reset_correction"]


Correct = bool | str  # True, False or "auto"

logger = logging.getLogger("bedl")
INPUTS, DRAWS = 300, 10  # covariances differ from input to input more than few draws are noisy
TRIED_INPUTS, TRIED_DRAWS = 40, 20  # by which a ratio of standard deviations is known to some 3 percent
NEAR = (0.9, 1.1)  # ratios that are let be
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
    """Correct the variances of a trained network, in place, if that was asked for or draws show that it is needed.

    Inputs that were not learned from are better: a network is surer of those that were, in ways that one pass misses.
    """
    net: Any = getattr(method, "net", None)
    if not choice or not isinstance(net, nn.Module):
        return
    layers = [layer for layer in net.modules() if isinstance(layer, GaussianLayer)]
    predicts_in_one_pass = hasattr(method, "outputs")
    if choice == "auto" and (steps < MIN_STEPS or not predicts_in_one_pass or not layers):
        return
    weights = sum(p.numel() for layer in layers for name, p in layer.named_parameters(recurse=False) if "mean" in name)
    sizes: list[int] = []
    map_parts(lambda part: sizes.append(part[0].numel()), next(points.fetch([np.arange(1)]))[0])
    count = int(min(INPUTS, points.n, MAX_WEIGHT_DRAWS / DRAWS / max(weights, 1), MAX_INPUT_NUMEL / max(sizes)))
    output = getattr(method, "output", None)

    def inputs(count: int) -> Any:
        numbers = np.unique(np.linspace(0, points.n - 1, max(1, count)).astype(int))
        x = cast(*next(points.fetch([numbers])), method).x
        return map_parts(lambda part: part.to(device), x)

    try:
        if choice == "auto":
            ratio = std_ratio(net, inputs(min(count, TRIED_INPUTS)), draws=TRIED_DRAWS, output=output)
            if not (ratio < NEAR[0] or ratio > NEAR[1]):
                return
            if count < min(INPUTS // 12, points.n):
                logger.warning(
                    "standard deviations of this network are %.2f times those of drawn weights; to correct them takes "
                    "minutes: bedl.nn.correct_variances(method.net, inputs, keep=True)",
                    ratio,
                )
                return
        correct_variances(net, inputs(count), draws=DRAWS, keep=True, output=output)
    except (BEDLError, NotImplementedError, RuntimeError, TypeError) as error:
        if choice is True:
            raise
        logger.warning("variances were not corrected: %s", str(error).splitlines()[0])
