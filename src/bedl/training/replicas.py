"""Many networks as one: R methods of the same build, trained side by side in one vectorised run.

Splits, seeds, ensemble members, values of a hyper-parameter: a small network keeps no processor busy, R of them at once
do. Parameters are stacked into one tensor of shape (R, P), `torch.func.vmap` runs the forward pass of all replicas, and
Adam updates all rows. Each replica ends up where `fit` with its seed would have taken it, up to rounding.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bedl.methods import Method
from bedl.nn import refuse_frozen
from bedl.training import random_state
from bedl.training.checkpoint import Checkpoints
from bedl.training.correcting import Correct, correct_after, forget_correction
from bedl.training.data import as_points, stream_seed, warn_of_targets
from bedl.training.early_stopping import EarlyStopping
from bedl.training.history import Callback, Progress, check_callbacks
from bedl.training.replica_data import ReplicaBatches
from bedl.training.replica_run import ReplicaRun, ReplicaSettings
from bedl.training.schedule import WARMUP, Schedule
from bedl.training.stacked import Stacked
from bedl.training.threads import few_threads

__all__ = ["ReplicasResult", "fit_replicas"]


@dataclasses.dataclass(frozen=True)
class ReplicasResult:
    """What a run of replicas came to.

    Attributes:
        loss: each replica's mean loss over its last epoch. shape: (R,)
        rows: one per replica and epoch: replica, epoch, mean loss, val_nll if there was a validation set.
        steps: optimiser steps, of the replica that took most.
    """

    loss: Tensor
    rows: list[dict[str, Any]]
    steps: int


def fit_replicas(
    methods: Sequence[Method] | Method,
    data: Any,
    *,
    epochs: int,
    batch_size: int = 32,
    lr: float | Sequence[float] = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    schedule: Schedule = WARMUP,
    gradient_clip: float | None = 1.0,
    validation: Any = None,
    early_stopping: EarlyStopping | bool | None = None,
    correct: Correct = "auto",
    seeds: Sequence[int] | None = None,
    checkpoint: str | os.PathLike[str] | Checkpoints | None = None,
    resume: bool | str = "auto",
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
    device: torch.device | str | None = None,
    compile: bool = False,
) -> ReplicasResult:
    """Train methods of the same build independently of each other, in place, with Adam.

    Args:
        methods: the replicas, or an ensemble. Their parameters, buffers and the numbers in their objectives (a PAC
            term's strength, say) may differ; layers and shapes may not.
        data: (x, y) or (x, y, weight) in memory for all, or a list with one for each, which may differ in size.
        epochs: how often each replica sees its points.
        batch_size: points per step and replica.
        lr: learning rate, for all or for each.
        betas, eps: Adam's.
        schedule: factor on the learning rate, of (step, the replica's total steps).
        gradient_clip: greatest norm of a replica's gradient; None for no clipping.
        validation: points whose mean −log p(y|x) is computed after each epoch: one set for all, or a list.
        early_stopping: when a replica stops before `epochs`, by its own score; the others go on.
        correct: whether to fit, after training, what one pass drops; as in `fit`, for each replica on its own inputs.
        seeds: each replica's order of points and perturbations; 0, 1, 2, … by default.
        checkpoint, resume: as in `fit`; one file holds all replicas.
        callbacks: see `Callback`; they are shown the replicas as one run, with mean losses.
        progress: show loss, throughput and time left.
        device: where to train; where the first replica is by default.
        compile: use `torch.compile`: slow to start, faster after.

    Example:
        >>> from bedl import GaussianLinear
        >>> from bedl.heads import Normal
        >>> from bedl.methods import BEDL
        >>> x = torch.linspace(-1, 1, 40)[:, None]
        >>> methods = [BEDL(GaussianLinear(1, 2), Normal(1)) for _ in range(3)]
        >>> fit_replicas(methods, (x, 2 * x), epochs=2, lr=[0.01, 0.1, 1.0]).loss.shape
        torch.Size([3])
    """
    methods = _replicas(methods)
    seeds = list(range(len(methods))) if seeds is None else list(seeds)
    rates = [float(lr)] * len(methods) if isinstance(lr, (int, float)) else [float(rate) for rate in lr]
    if len(seeds) != len(methods) or len(rates) != len(methods):
        raise ValueError(
            f"{len(methods)} replicas need as many seeds and learning rates, not {len(seeds)} and {len(rates)}"
        )
    if len({id(method) for method in methods}) < len(methods):
        raise ValueError("fit_replicas: the same method stands in the list twice; copy it with copy.deepcopy")
    for method in methods:
        refuse_frozen(method, "fit_replicas")
        forget_correction(method, correct)
        method.train()
    if epochs < 1:
        raise ValueError(f"fit_replicas: epochs must be at least 1, not {epochs}")
    if isinstance(early_stopping, bool):
        early_stopping = EarlyStopping() if early_stopping else None
    if early_stopping is not None and validation is None:
        raise ValueError("fit_replicas: early_stopping looks at a validation set; pass validation=(x, y)")
    places = Checkpoints(checkpoint) if isinstance(checkpoint, (str, os.PathLike)) else checkpoint
    settings = ReplicaSettings(
        rates, seeds, schedule, gradient_clip, early_stopping, places, resume,
        callbacks=(*check_callbacks(callbacks), *([Progress()] if progress else [])),
    )  # fmt: skip
    warn_of_targets(methods[0], as_points(data[0] if isinstance(data, list) else data))
    stacked = Stacked(methods, device, compile)
    batches = ReplicaBatches(data, seeds, epochs, batch_size, stacked.device, methods[0])
    rows = batch_size if stacked.batched is not None else math.inf  # a row of a table meets each parameter once
    with _own_randomness(stacked.device, seeds), few_threads(stacked.parameters.numel() * rows):
        run = ReplicaRun(stacked, batches, validation, settings)
        run.adam.betas, run.adam.eps = betas, eps
        run()
    inputs = data if validation is None else validation
    for i, method in enumerate(methods):
        points = as_points(inputs[i] if isinstance(inputs, list) else inputs)
        correct_after(method, points, correct, batches.totals[i], stacked.device)
    last = torch.tensor([rows[-1]["loss"] if rows else float("nan") for rows in run.losses.epochs])
    return ReplicasResult(last, [row for rows in run.losses.epochs for row in rows], run.step)


@contextmanager
def _own_randomness(device: torch.device, seeds: Sequence[int]) -> Iterator[None]:
    """A seed for this run alone; afterwards torch's generators are as they were."""
    before = random_state.capture_torch(device)
    torch.manual_seed(stream_seed(*seeds))
    try:
        yield
    finally:
        random_state.restore_torch(before, device)


def _replicas(methods: Any) -> list[Method]:
    if isinstance(methods, Method) and methods.learns == "in its members":
        methods = methods.members
    elif isinstance(methods, Method) or not isinstance(methods, Sequence):
        raise TypeError(f"fit_replicas takes a list of methods or an ensemble, not one {type(methods).__name__}")
    for method in methods:
        if not isinstance(method, Method) or method.learns != "by steps":
            raise TypeError(f"fit_replicas trains methods that learn by steps; {type(method).__name__} is none")
    return list(methods)
