"""bedl: neural networks that say how sure they are, in one forward pass."""

from bedl import nn as nn
from bedl import rules as rules
from bedl.check import check
from bedl.dispatch import register_rule, use_rules
from bedl.errors import BEDLError, UnsupportedOperationError
from bedl.moments import Moments
from bedl.nn import (
    GaussianBilinear,
    GaussianConv1d,
    GaussianConv2d,
    GaussianConv3d,
    GaussianConvTranspose2d,
    GaussianEmbedding,
    GaussianLinear,
    bayesianize,
    deterministic,
    sampled,
)

__version__ = "0.1.0"

# `nn` and `rules` are reached as attributes; a star import must not hide `torch.nn`.
__all__ = [
    # the value that goes through a network, and what answers for its operations
    "Moments",
    "register_rule",
    "use_rules",
    # layers with Gaussian weights
    "GaussianBilinear",
    "GaussianConv1d",
    "GaussianConv2d",
    "GaussianConv3d",
    "GaussianConvTranspose2d",
    "GaussianEmbedding",
    "GaussianLinear",
    "sampled",
    # from an existing network and back
    "bayesianize",
    "check",
    "deterministic",
    # errors
    "BEDLError",
    "UnsupportedOperationError",
]
