"""Scaling of inputs as a part of the network, so that it goes wherever the network goes."""

from __future__ import annotations

import numpy as np
import torch

from bedl.nn.scaling import Standardize

__all__ = ["standardize"]


def standardize(loc: np.ndarray, scale: np.ndarray, input_shape: tuple[int, ...]) -> Standardize:
    """The module for column (or channel) moments. loc, scale: shape (input_shape[0],)"""
    shape = (len(loc),) + (1,) * (len(input_shape) - 1)
    # in double precision until the whole method is cast: means may be large beside the spread
    return Standardize(*(torch.tensor(part, dtype=torch.float64).reshape(shape) for part in (loc, scale)))
