"""bedl: neural networks that say how sure they are, in one forward pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bedl import nn as nn
from bedl import rules as rules
from bedl.check import check
from bedl.dispatch import register_rule, use_rules
from bedl.errors import BEDLError, UnsupportedOperationError
from bedl.heads import Dirichlet, Normal
from bedl.methods import BEDL, Ensemble
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
from bedl.objectives import PAC, HyperPrior

if TYPE_CHECKING:
    from bedl.training import fit, fit_replicas

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
    # the method: a network, a head, what is minimised; training
    "BEDL",
    "Dirichlet",
    "Ensemble",
    "HyperPrior",
    "Normal",
    "PAC",
    "fit",
    "fit_replicas",
    # errors
    "BEDLError",
    "UnsupportedOperationError",
]


def __getattr__(name: str) -> Any:
    # Training needs Lightning Fabric, which takes a while to import and need not be installed.
    if name not in ("fit", "fit_replicas"):
        raise AttributeError(f"module 'bedl' has no attribute {name!r}")
    try:
        return getattr(import_module("bedl.training"), name)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("lightning"):
            raise
        raise ImportError(f"bedl.{name} needs Lightning Fabric: pip install 'bedl[train]'") from error
