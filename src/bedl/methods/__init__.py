"""Methods, one file each: a network, a head and an objective put together. `base` says what they have in common.

`registry` offers them by name, for estimators, the command line and benches. Every file of this folder is imported, and
to be imported is to be registered.
"""

import importlib
import pkgutil

from bedl.methods import registry
from bedl.methods.base import Method
from bedl.methods.bedl import BEDL
from bedl.methods.ensemble import Ensemble
from bedl.methods.registry import Problem, register
from bedl.methods.stack_base import Stack
from bedl.objectives import Batch

for _found in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_found.name}")

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
    "Stack",
]
