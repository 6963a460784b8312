"""`fit`: one training loop for one device, several, and several machines.

    for each epoch:                                   the order follows from (seed, epoch)
        for each global batch:                        `batch_size` points over all processes
            this process's share, in micro-batches    → GradientStep: the exact gradient of the whole batch
            clip, check, optimiser step, checkpoint

The result does not depend on how a global batch is spread over processes and micro-batches, up to rounding.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from bedl.methods import Method
from bedl.nn import refuse_frozen
from bedl.training import random_state
from bedl.training.checkpoint import Checkpoints
from bedl.training.compiling import Compile
from bedl.training.correcting import Correct
from bedl.training.data import Data, Points, as_points, as_validation, stream_seed, warn_of_targets
from bedl.training.early_stopping import EarlyStopping
from bedl.training.history import Callback, History, Progress, Row, check_callbacks
from bedl.training.run import MakeOptimizer, Run, Settings
from bedl.training.schedule import WARMUP, Schedule
from bedl.training.unpacking import Unpack

__all__ = ["FitResult", "adam", "fit"]


def adam(lr: float = 1e-3, **options: Any) -> MakeOptimizer:
    """Adam with this learning rate, for `fit(optimizer=…)`.

    Args:
        lr: learning rate.
        options: of `torch.optim.Adam`. On CPUs its fused form, several times as fast, unless they say otherwise.

    Example:
        >>> import bedl
        >>> bedl.training.adam(0.01)(bedl.GaussianLinear(3, 2).parameters()).defaults["lr"]
        0.01
    """

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        parameters = list(parameters)
        free = not {"fused", "foreach", "differentiable"} & set(options)
        if free and all(p.device.type == "cpu" for p in parameters):
            return torch.optim.Adam(parameters, lr=lr, fused=True, **options)
        return torch.optim.Adam(parameters, lr=lr, **options)

    return make


@dataclasses.dataclass(frozen=True)
class FitResult:
    """What a run came to.

    Attributes:
        rows: one per epoch of this call: epoch, step, mean loss, val_nll if there was a validation set.
        steps: optimiser steps in all, those before a resumption included.
        stopped_early: whether early stopping or a callback ended it.
        checkpoint: the newest checkpoint.
    """

    rows: list[Row]
    steps: int
    stopped_early: bool
    checkpoint: Path | None


def fit(
    method: Any,
    data: Data,
    *,
    epochs: int,
    batch_size: int | None = None,
    # the step
    optimizer: MakeOptimizer | None = None,
    schedule: Schedule = WARMUP,
    gradient_clip: float | None = 1.0,
    accumulate: int = 1,
    compile: Compile = "auto",
    variance_products: str = "auto",
    correct: Correct = "auto",
    # when to stop
    validation: Data | None = None,
    early_stopping: EarlyStopping | bool | None = None,
    # what is kept
    checkpoint: str | os.PathLike[str] | Checkpoints | None = None,
    resume: bool | str | os.PathLike[str] = "auto",
    history: str | os.PathLike[str] | None = None,
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
    loggers: Any = None,
    # where it runs
    accelerator: str = "auto",
    devices: int | str | list[int] = 1,
    strategy: Any = "auto",
    num_nodes: int = 1,
    precision: Any = None,
    num_workers: int = 0,
    collate: Callable[[list], Any] | None = None,
    unpack: Unpack | None = None,
    n_train: float | None = None,
    seed: int = 0,
) -> FitResult:
    """Train a method, in place.

    Args:
        method: the method to train, see `bedl.methods.Method`.
        data: (x, y) or (x, y, weight) of tensors or arrays, or a map-style Dataset of such tuples. A point of weight 2
            counts as if it were there twice, save that the N of the objectives is the number of points. Arrays are
            read batch by batch, memory-mapped ones too; x is converted to the precision of the parameters. Several
            inputs are a tuple, for ``net(*x)``, or a dict, for ``net(**x)``. Or a DataLoader, whose sampler, batches
            and workers are used as they are, or another iterable of batches: see `bedl.training.loaders`.
        epochs: how often every point is seen.
        batch_size: points per optimiser step, over all processes and micro-batches together, by default 32; a
            DataLoader has its own.
        optimizer: makes the optimiser from the parameters; `adam(1e-3)` by default.
        schedule: factor on the learning rate, of (step, total steps); a linear warm-up by default.
        gradient_clip: greatest norm of a step's gradient; None for no clipping.
        accumulate: micro-batches that a process's part of a batch is cut into, to save memory. The gradient is that
            of the whole batch; a loss with a root costs one more forward pass for it (see `bedl.training.step`).
        compile: whether to run the step through `torch.compile`. "auto": where the run is long enough for it to pay
            off, which a line of notice then says; for the size of all batches but an epoch's last.
        variance_products: "float32", or "bfloat16": products that make variances round their operands, see
            `bedl.nn.variance_products`. "auto": bfloat16 in compiled runs on processors with instructions for it.
        correct: whether to fit, after training, what one pass drops, see `bedl.nn.correct_variances`; outputs stay as
            sure as they were learned to be (``keep=True``). "auto": of networks with several convolutions, in which
            positions share the draws of weights, after 100 steps or more and if it takes less than about a minute.
        validation: points whose (weighted) mean −log p(y|x) is computed after each epoch, as ``val_nll``.
        early_stopping: when to end before `epochs`, by ``val_nll``; True: as `EarlyStopping()` says.
        checkpoint: a directory for this run's checkpoints, or `Checkpoints` to say how often.
        resume: "auto": go on from the newest checkpoint if there is one. True: there has to be one. False: there must
            be none. A path: from that one.
        history: a file for the rows, as JSON lines; ``history.jsonl`` beside the checkpoints by default.
        callbacks: see `Callback`.
        progress: show loss, throughput and time left.
        loggers: Fabric's loggers, such as TensorBoardLogger.
        accelerator, devices, strategy, num_nodes, precision: as in Lightning Fabric.
        num_workers, collate: for a Dataset, as in torch's DataLoader.
        unpack: makes (x, y) or (x, y, weight) of a batch of a Dataset or DataLoader that is put together otherwise; a
            dict with ``labels`` is understood, see `bedl.training.unpacking`.
        n_train: the N of the objectives, the number of points by default; a loader over an IterableDataset needs it.
        seed: of the order of the points and all that is drawn while training; global generators are left as they were.

    Raises:
        NonFiniteLossError: with the step, the place and a remedy; the method keeps the parameters before that step.
        CheckpointError: if a checkpoint cannot be used; nothing has been changed.

    Example:
        >>> import torch
        >>> from bedl import GaussianLinear
        >>> from bedl.heads import Normal
        >>> from bedl.methods import BEDL
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> method = BEDL(GaussianLinear(1, 2), Normal(1), regularizer=None)
        >>> result = fit(method, (x, 2 * x), epochs=3, accelerator="cpu")
        >>> result.steps, result.rows[-1]["loss"] < result.rows[0]["loss"]
        (6, True)
    """
    _check_method(method)
    places = Checkpoints(checkpoint) if isinstance(checkpoint, (str, os.PathLike)) else checkpoint
    watchers = [*check_callbacks(callbacks), *_history(history, places), *([Progress()] if progress else [])]
    if isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"fit makes the optimiser itself, so that a run can be resumed: pass a function of the parameters, such as "
            f"bedl.training.adam(1e-3) or lambda p: torch.optim.{type(optimizer).__name__}(p, …)"
        )
    if isinstance(early_stopping, bool):
        early_stopping = EarlyStopping() if early_stopping else None
    if early_stopping is not None and validation is None:
        raise ValueError("fit: early_stopping looks at a validation set; pass validation=(x, y)")
    points = as_points(data, num_workers, collate, n_train, unpack)
    if points.batch_size is not None and batch_size not in (None, points.batch_size):
        raise TypeError(f"fit: the loader makes batches of {points.batch_size}; leave out batch_size={batch_size}")
    batch_size = points.batch_size or (32 if batch_size is None else batch_size)
    settings = Settings(
        epochs=epochs, optimizer=optimizer or adam(), batch_size=batch_size,
        schedule=schedule,
        gradient_clip=gradient_clip, accumulate=accumulate, early_stopping=early_stopping, checkpoints=places,
        resume=resume, callbacks=tuple(watchers), compile=compile,
        variance_products=variance_products, correct=correct, seed=seed,
    )  # fmt: skip
    warn_of_targets(method, points)
    held_out = None if validation is None else as_validation(validation, num_workers, collate, unpack)
    fabric = _fabric(
        accelerator=accelerator, devices=devices, strategy=strategy, num_nodes=num_nodes, precision=precision,
        loggers=loggers,
    )  # fmt: skip
    # what goes through `launch` is searched for modules and tensors, which frozen dataclasses do not survive
    train: Any = functools.partial(_train, settings=settings, caller=os.getpid())
    outcome, weights = fabric.launch(train, method, points, held_out)
    if weights:
        method.load_state_dict(safetensors.torch.load(weights))
    return FitResult(*outcome)


def _fabric(**options: Any) -> Any:
    """Lightning's Fabric, which takes seconds to import, and which networks of tables do without."""
    try:
        from lightning_fabric import Fabric
    except ModuleNotFoundError as error:
        raise ImportError("fit needs lightning_fabric: pip install 'bedl[train]'") from error
    return Fabric(**options)


def _train(
    fabric: Any, method: Method, points: Points, validation: Points | None, settings: Settings, caller: int
) -> tuple[tuple[Any, ...], bytes]:
    """What every process does. Returns the outcome and, in a process started for it, the weights, for the caller."""
    with _own_randomness(fabric, settings.seed), _finalized(fabric.loggers):
        run = Run(fabric, method, points, validation, settings)
        run()
    weights = b""
    if os.getpid() != caller:  # as bytes: tensors would die with this process
        weights = safetensors.torch.save({name: t.detach().cpu().clone() for name, t in method.state_dict().items()})
    return (run.rows, run.step, run.stopped_early, run.checkpoint), weights


@contextmanager
def _finalized(loggers: Iterable[Any]) -> Iterator[None]:
    """At the end of the block loggers write what they still keep; nobody else tells them that it is over."""
    status = "failed"
    try:
        yield
        status = "success"
    finally:
        for logger in loggers:
            logger.finalize(status)


@contextmanager
def _own_randomness(fabric: Any, seed: int) -> Iterator[None]:
    """Seeds for this run alone; afterwards all generators are as they were."""
    before = random_state.capture(fabric.device)
    random_state.seed(stream_seed(seed, fabric.global_rank))
    try:
        yield
    finally:
        random_state.restore(before, fabric.device)


def _check_method(method: Any) -> None:
    if not isinstance(method, Method):
        raise TypeError(
            f"fit trains a method, such as BEDL(net, head); {type(method).__name__} is none. A class of your own "
            "derives from bedl.methods.Method"
        )
    if method.learns != "by steps":
        remedies = {
            "in its members": "has members that learn independently: use bedl.training.fit_replicas(method, …)",
            "by itself": "takes no gradient steps: call its own fit(x, y)",
        }
        nothing = "defines no way to learn: give it loss(batch), statistics(batch) and combine(…), or fit(x, y)"
        raise TypeError(f"{type(method).__name__} {remedies.get(str(method.learns), nothing)}")
    refuse_frozen(method, "fit")


def _history(path: str | os.PathLike[str] | None, places: Checkpoints | None) -> list[Callback]:
    if path is None and places is None:
        return []
    if places is None and os.path.exists(path) and os.path.getsize(path):  # type: ignore[arg-type]
        raise ValueError(f"fit: {path} holds the history of another run; move it, or choose another file")
    return [History(path if path is not None else Path(places.directory) / "history.jsonl")]  # type: ignore[union-attr]
