"""Methods, one file each: a network, a head and an objective put together. `base` says what they have in common.

`registry` offers them by name, for estimators, the command line and benches.
"""

from bedl.methods import evidence, presets, registry, stack  # to import them is to register their names
from bedl.methods.base import Method
from bedl.methods.bedl import BEDL
from bedl.methods.ensemble import Ensemble
from bedl.methods.registry import Problem, register
from bedl.methods.stack_base import Stack
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
    "Stack",
    "evidence",
    "presets",
    "stack",
]
