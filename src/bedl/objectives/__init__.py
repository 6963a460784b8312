"""What training minimises, as small values that add up: `MarginalLikelihood() + PAC(strength=0.5)`."""

from bedl.objectives import ood_samples
from bedl.objectives.base import Batch, ForwardPass, MarginalLikelihood, Objective, Sum
from bedl.objectives.evidence import Known, Unknown, Unsure
from bedl.objectives.pac import PAC, VacuousBound
from bedl.objectives.priors import EmpiricalPrior, ExpectedLikelihood, HyperPrior, WeightPrior

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
    "ood_samples",
]
