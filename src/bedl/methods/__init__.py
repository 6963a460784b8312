"""Methods, one file each: a network, a head and an objective put together. `base` says what they have in common."""

from bedl.methods.base import Method
from bedl.methods.bedl import BEDL
from bedl.methods.ensemble import Ensemble
from bedl.objectives import Batch

__all__ = [
    # what a method is, and what it is given
    "Batch",
    "Method",
    # the methods
    "BEDL",
    "Ensemble",
]
