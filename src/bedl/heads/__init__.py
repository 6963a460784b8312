"""Heads: from the moments of a network's outputs to a prediction, its likelihood, and its distance from the prior.

One file each. A head says what known outputs predict; `Head` integrates over unknown ones by sampling, until a closed
form takes its place.
"""

from bedl.heads.base import Evidence, Head, Sampled, head_of, serves
from bedl.heads.beta import Beta, BetaPredictive
from bedl.heads.dirichlet import Dirichlet
from bedl.heads.gamma import CountPredictive, Gamma
from bedl.heads.normal import Normal
from bedl.heads.plain import ExpectedMeanVariance, ExpectedSoftmax, MeanVariance, Softmax

__all__ = [
    # what a head is, and which one a task has
    "Evidence",
    "Head",
    "head_of",
    "serves",
    # the heads
    "Beta",
    "BetaPredictive",
    "CountPredictive",
    "Dirichlet",
    "Gamma",
    "Normal",
    "Sampled",
    # those of ordinary networks, without evidence
    "ExpectedMeanVariance",
    "ExpectedSoftmax",
    "MeanVariance",
    "Softmax",
]
