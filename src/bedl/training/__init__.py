"""Training: one loop from a laptop to several machines, checkpoints that can be trusted, many networks as one."""

from bedl.training.checkpoint import CheckpointError, Checkpoints
from bedl.training.early_stopping import EarlyStopping
from bedl.training.history import Callback, read_history
from bedl.training.loop import FitResult, adam, fit
from bedl.training.nonfinite import NonFiniteLossError
from bedl.training.replicas import ReplicasResult, fit_replicas
from bedl.training.run import Run
from bedl.training.schedule import Constant, Cosine, Schedule, Warmup
from bedl.training.state import load_weights, save_weights

__all__ = [
    # train one method, or many of the same build at once
    "fit",
    "fit_replicas",
    "FitResult",
    "ReplicasResult",
    # how steps are taken
    "adam",
    "Constant",
    "Cosine",
    "Schedule",
    "Warmup",
    # when to stop, what to keep, who looks on
    "Callback",
    "Checkpoints",
    "EarlyStopping",
    "Run",
    "load_weights",
    "read_history",
    "save_weights",
    # errors
    "CheckpointError",
    "NonFiniteLossError",
]
