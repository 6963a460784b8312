"""Scaling as parts of the network, so that it goes wherever the network goes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from bedl.moments import Moments
from bedl.nn.scaling import Standardize
from bedl.predictive import Predictive

__all__ = ["InUnits", "standardize"]


class InUnits(nn.Module):
    """A method that was trained on standardised targets, predicting in the targets' own units.

    Args:
        method: what was trained.
        loc, scale: of the targets. shape: (D,)
    """

    loc: Tensor
    scale: Tensor

    def __init__(self, method: nn.Module, loc: Tensor, scale: Tensor):
        super().__init__()
        self.method = method
        self.register_buffer("loc", loc)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor | Moments) -> Predictive:
        """x: shape (n, *input)"""
        return self.method(x).rescale(self.loc, self.scale)


def standardize(loc: np.ndarray, scale: np.ndarray, input_shape: tuple[int, ...]) -> Standardize:
    """The module for column (or channel) moments. loc, scale: shape (input_shape[0],)"""
    shape = (len(loc),) + (1,) * (len(input_shape) - 1)
    # in double precision until the whole method is cast: means may be large beside the spread
    return Standardize(*(torch.tensor(part, dtype=torch.float64).reshape(shape) for part in (loc, scale)))
