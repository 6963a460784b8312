"""Predictions by sampling: several draws of a network, each the same function for all points, as an equal mixture."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.func import vmap

from bedl.errors import BEDLError
from bedl.nn.draws import seeded

if TYPE_CHECKING:
    from bedl.predictive import Predictive

__all__ = ["TOGETHER", "check_samples", "mixture_of_draws"]

TOGETHER = 10  # draws in one pass; a fixed number, so that what is drawn does not depend on how many points there are
_LOCK = threading.Lock()  # draws are held by the layers while they are used


def check_samples(samples: int) -> int:
    """A number of draws, or an error."""
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples must be a whole number of at least 1, not {samples!r}")
    return samples


def mixture_of_draws(predict: Callable[[], Predictive], samples: int, seed: int, device: torch.device) -> Predictive:
    """The equal mixture of what a random function predicts, drawn `samples` times.

    The same seed gives the same draws, whatever the points are and wherever they stand in their batch; generators of
    the process go on as if nothing had been drawn.

    Args:
        predict: gives a prediction of the points; what it draws must not have the points' axis.
        samples: how many draws.
        seed: of the draws.
        device: where the points are.
    """

    if torch.compiler.is_exporting():
        raise BEDLError(
            "a prediction that draws at random cannot be exported; 'fast-dropout' has the noise of 'mc-dropout' in "
            "closed form, 'bedl' that of Gaussian weights"
        )

    def one(_: Any) -> Predictive:
        return predict()

    # vmap's convolutions do not know autocast: they would meet weights of another precision
    with _LOCK, seeded(device, seed), torch.autocast(device.type, enabled=False):
        draws = vmap(one, randomness="different", chunk_size=TOGETHER)(torch.empty(samples, device=device))
    return draws.mixed()
