"""Methods, one file each: a network, a head and an objective put together. `base` says what they have in common.

`registry` offers them by name, for estimators, the command line and benches; to be imported is to be registered. The
published methods to compare with are in `baselines`, which is imported when one of them is asked for.
"""

import importlib
import pkgutil

from bedl.methods import registry
from bedl.methods.base import Method
from bedl.methods.bedl import BEDL
from bedl.methods.ensemble import Ensemble
from bedl.methods.registry import Problem, register
from bedl.objectives import Batch

__all__ = [
    # what a method is, and what it is given
    "Batch",
    "Method",
    # by name
    "Problem",
    "register",
    "registry",
    # the methods
    "BEDL",
    "Ensemble",
]


for _module in pkgutil.iter_modules(__path__):
    if _module.name != "baselines":
        importlib.import_module(f"{__name__}.{_module.name}")
