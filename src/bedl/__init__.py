"""bedl: neural networks that say how sure they are, in one forward pass.

Names are imported when they are first used: reading a table or running an exported model needs no PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bedl import nn as nn
    from bedl import rules as rules
    from bedl.checks import check
    from bedl.deploy import export
    from bedl.dispatch import register_rule, use_rules
    from bedl.errors import BEDLError, UnsupportedOperationError
    from bedl.estimators import BEDLClassifier, BEDLRegressor
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
        correct_variances,
        deterministic,
        frozen,
        sampled,
    )
    from bedl.objectives import PAC, HyperPrior
    from bedl.training import fit, fit_replicas

__version__ = "0.1.0"

# Rooms, such as `bedl.nn`, are reached as attributes; a star import must not hide `torch.nn`.
__all__ = [
    # from a table to predictions that say how sure they are
    "BEDLClassifier",
    "BEDLRegressor",
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
    "frozen",
    "sampled",
    # from an existing network and back
    "bayesianize",
    "check",
    "correct_variances",
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
    # out of Python
    "export",
    # errors
    "BEDLError",
    "UnsupportedOperationError",
]

_HOMES = {
    "bedl.checks": "check",
    "bedl.deploy": "export",
    "bedl.dispatch": "register_rule use_rules",
    "bedl.estimators": "BEDLClassifier BEDLRegressor",
    "bedl.errors": "BEDLError UnsupportedOperationError",
    "bedl.heads": "Dirichlet Normal",
    "bedl.methods": "BEDL Ensemble",
    "bedl.moments": "Moments",
    "bedl.nn": "GaussianBilinear GaussianConv1d GaussianConv2d GaussianConv3d GaussianConvTranspose2d "
    "GaussianEmbedding GaussianLinear bayesianize correct_variances deterministic frozen sampled",
    "bedl.objectives": "HyperPrior PAC",
    "bedl.training": "fit fit_replicas",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_EXTRA_OF = {
    "lightning_fabric": "train", "sklearn": "sklearn", "pandas": "sklearn",
    "onnx": "export", "onnxruntime": "export", "onnxscript": "export",
}  # fmt: skip
_ROOMS = set(
    "data deploy estimators heads methods metrics nn objectives predictive report rules tabular tasks training".split()
)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF and name not in _ROOMS:
        raise AttributeError(f"module 'bedl' has no attribute {name!r}")
    try:
        value = import_module(f"bedl.{name}") if name in _ROOMS else getattr(import_module(_HOME_OF[name]), name)
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF.get(str(error.name).split(".")[0])
        if extra is None:
            raise
        raise ImportError(f"bedl.{name} needs {error.name}: pip install 'bedl[{extra}]'") from error
    globals()[name] = value  # the next look-up finds it at once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
