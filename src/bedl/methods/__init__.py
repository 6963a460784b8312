"""Methods, one file each: a network, a head and an objective put together. `protocol` says what they have in common."""

from bedl.methods.bedl import BEDL
from bedl.methods.ensemble import Ensemble
from bedl.methods.protocol import Averaged, Collection, Method, SelfFitting
from bedl.objectives import Batch

__all__ = [
    # what a method is, and what it is given
    "Averaged",
    "Batch",
    "Collection",
    "Method",
    "SelfFitting",
    # the methods
    "BEDL",
    "Ensemble",
]
