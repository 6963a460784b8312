"""Training: one loop from a laptop to several machines, checkpoints that can be trusted, many networks as one."""

from bedl.training.callbacks import (
    Callback,
    Constant,
    Cosine,
    EarlyStopping,
    History,
    Progress,
    Schedule,
    Warmup,
    read_history,
)
from bedl.training.checkpoint import CheckpointError, Checkpoints, load_weights, save_weights
from bedl.training.data import TrainingData
from bedl.training.diagnostics import NonFiniteLossError
from bedl.training.fitting import FitResult, ReplicasResult, fit, fit_replicas
from bedl.training.loop import GradientOptions, Run, adam

__all__ = [
    # train one method, or many of the same build at once
    "fit",
    "fit_replicas",
    "FitResult",
    "ReplicasResult",
    # what they learn from
    "TrainingData",
    # how steps are taken
    "GradientOptions",
    "adam",
    "Constant",
    "Cosine",
    "Schedule",
    "Warmup",
    # when to stop, what to keep, who looks on
    "Callback",
    "Checkpoints",
    "EarlyStopping",
    "History",
    "Progress",
    "Run",
    "load_weights",
    "read_history",
    "save_weights",
    # errors
    "CheckpointError",
    "NonFiniteLossError",
]
