"""Published methods to compare with, a file for each family; all files here are imported, and so registered.

The classes take a network of yours; by name, `registry` has them build one.
"""

import importlib
import pkgutil

from bedl.methods.baselines.dropout import FastDropout, MCDropout, VarOut
from bedl.methods.baselines.dvi import DVI
from bedl.methods.baselines.evidential import EDL, EvidentialRegression, PriorNetwork, RelaxedEDL
from bedl.methods.baselines.exact_gp import ExactGP
from bedl.methods.baselines.hmc import HMC
from bedl.methods.baselines.last_layer import SNGP, Laplace
from bedl.methods.baselines.neural_process import NeuralProcess
from bedl.methods.baselines.pbp import PBP
from bedl.methods.baselines.sparse_gp import SparseGP
from bedl.methods.plain import Deterministic

__all__ = [
    # a network of yours with point weights
    "Deterministic",
    "EDL",
    "EvidentialRegression",
    "FastDropout",
    "Laplace",
    "MCDropout",
    "PriorNetwork",
    "RelaxedEDL",
    "SNGP",
    # with Gaussian weights
    "DVI",
    "VarOut",
    # with networks or kernels of their own
    "ExactGP",
    "HMC",
    "NeuralProcess",
    "PBP",
    "SparseGP",
]


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
