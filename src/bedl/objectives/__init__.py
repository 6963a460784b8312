"""What training minimises, as small values that add up: `MarginalLikelihood() + PAC(strength=0.5)`."""

from bedl.objectives import perturbations
from bedl.objectives.base import ForwardPass, Objective, Sum
from bedl.objectives.batch import Batch
from bedl.objectives.evidence import Known, Unknown, Unsure
from bedl.objectives.hyperprior import HyperPrior
from bedl.objectives.likelihood import MarginalLikelihood
from bedl.objectives.pac import PAC, VacuousBound
from bedl.objectives.variational import EmpiricalPrior, ExpectedLikelihood
from bedl.objectives.weight_prior import WeightPrior

__all__ = [
    # what they are made of
    "Batch",
    "ForwardPass",
    "Objective",
    "Sum",
    # the terms
    "EmpiricalPrior",
    "ExpectedLikelihood",
    "HyperPrior",
    "Known",
    "MarginalLikelihood",
    "PAC",
    "Unknown",
    "Unsure",
    "VacuousBound",
    "WeightPrior",
    # off-manifold copies
    "perturbations",
]
