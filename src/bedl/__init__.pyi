"""The names of bedl and where each comes from; bedl._utils.imports reads them, too."""

# from a table to predictions that say how sure they are
from bedl.estimators.classifier import BEDLClassifier as BEDLClassifier
from bedl.estimators.regressor import BEDLRegressor as BEDLRegressor

# which method for a table
from bedl.estimators.tabular import compare as compare

# the value that goes through a network, and what answers for its operations
from bedl.moments import Moments as Moments
from bedl.moments.dispatch import register_rule as register_rule
from bedl.moments.dispatch import use_rules as use_rules

# layers with Gaussian weights
from bedl.nn import GaussianBilinear as GaussianBilinear
from bedl.nn import GaussianConv1d as GaussianConv1d
from bedl.nn import GaussianConv2d as GaussianConv2d
from bedl.nn import GaussianConv3d as GaussianConv3d
from bedl.nn import GaussianConvTranspose2d as GaussianConvTranspose2d
from bedl.nn import GaussianEmbedding as GaussianEmbedding
from bedl.nn import GaussianLinear as GaussianLinear
from bedl.nn import cached_weights as cached_weights
from bedl.nn import sampled as sampled

# from an existing network and back
from bedl.nn import bayesianize as bayesianize
from bedl.nn.check import check as check
from bedl.nn import correct_variances as correct_variances
from bedl.nn import deterministic as deterministic

# the method: a network, a head, what is minimised; training
from bedl.methods import BEDL as BEDL
from bedl.heads import Beta as Beta
from bedl.heads import Dirichlet as Dirichlet
from bedl.methods import Ensemble as Ensemble
from bedl.heads import Gamma as Gamma
from bedl.objectives import HyperPrior as HyperPrior
from bedl.heads import Normal as Normal
from bedl.objectives import PAC as PAC
from bedl.training import fit as fit
from bedl.training import fit_replicas as fit_replicas

# out of Python
from bedl.deploy import export as export

# errors
from bedl._utils.errors import BEDLError as BEDLError
from bedl._utils.errors import UnsupportedOperationError as UnsupportedOperationError

# packages, such as `bedl.nn`
from bedl.methods import baselines as baselines
from bedl import data as data
from bedl import deploy as deploy
from bedl import estimators as estimators
from bedl import heads as heads
from bedl import methods as methods
from bedl.evaluation import metrics as metrics
from bedl import nn as nn
from bedl import objectives as objectives
from bedl.heads import predictive as predictive
from bedl.evaluation import report as report
from bedl.moments import rules as rules
from bedl.estimators import tabular as tabular
from bedl.evaluation import tasks as tasks
from bedl import training as training

__version__: str
