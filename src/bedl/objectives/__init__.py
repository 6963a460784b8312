"""What training minimises, as small values that add up: `MarginalLikelihood() + PAC(strength=0.5)`."""

from bedl.objectives import perturbations
from bedl.objectives.base import ForwardPass, Objective, Sum
from bedl.objectives.batch import Batch
from bedl.objectives.hyperprior import HyperPrior
from bedl.objectives.likelihood import MarginalLikelihood
from bedl.objectives.pac import PAC, VacuousBound

__all__ = [
    # what they are made of
    "Batch",
    "ForwardPass",
    "Objective",
    "Sum",
    # the terms
    "HyperPrior",
    "MarginalLikelihood",
    "PAC",
    "VacuousBound",
    # off-manifold copies
    "perturbations",
]
