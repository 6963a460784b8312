"""`fit` and `fit_replicas`: one training loop for one network or many, one device, several, and several machines."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from bedl.methods import Method
from bedl.nn import check_not_cached
from bedl.training import checkpoint as random_state
from bedl.training.callbacks import (
    WARMUP,
    Callback,
    MakeScheduler,
    Row,
    Schedule,
    check_callbacks,
    early_stopping_of,
    with_history,
)
from bedl.training.checkpoint import Checkpoints, as_checkpoints
from bedl.training.compile import Compile, limit_threads
from bedl.training.data import Data, Points, TrainingData, as_points, as_validation, stream_seed, warn_of_targets
from bedl.training.engines.fabric import FabricRun
from bedl.training.engines.replica_data import ReplicaBatches
from bedl.training.engines.stacked import ReplicaRun, StackedNetworks
from bedl.training.loop import (
    Correct,
    GradientOptions,
    MakeOptimizer,
    Settings,
    adam,
    correct_after_fit,
    reset_correction,
)


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
    data: Data | TrainingData,
    *,
    epochs: int,
    batch_size: int | None = None,
    lr: float | None = None,
    optimizer: MakeOptimizer | None = None,
    schedule: Schedule | MakeScheduler = WARMUP,
    gradient: GradientOptions = GradientOptions(),  # noqa: B008  (immutable)
    validation: Data | TrainingData | None = None,
    callbacks: Iterable[Callback] = (),
    checkpoint: str | os.PathLike[str] | Checkpoints | None = None,
    fabric: Any = None,
    compile: Compile = "auto",
    correct: Correct = "auto",
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
            `TrainingData` says how to read what is put together otherwise.
        epochs: how often every point is seen.
        batch_size: points per optimiser step, over all processes and micro-batches together, by default 32; a
            DataLoader has its own.
        lr: learning rate of Adam, 1e-3 by default.
        optimizer: in its place, what makes an optimiser of the parameters.
        schedule: factor on the learning rate, of (step, total steps); a linear warm-up by default. Or what makes a
            scheduler of PyTorch, stepped after each step: ``lambda o: torch.optim.lr_scheduler.StepLR(o, 500)``.
        gradient: how a step's gradient is computed and clipped, see `GradientOptions`.
        validation: points whose (weighted) mean −log p(y|x) is computed after each epoch, as ``val_nll``.
        callbacks: see `Callback`: `EarlyStopping`, which ends the run by ``val_nll``, `History` for a file of the
            rows, `Progress` for a line or bar, or your own.
        checkpoint: a directory for this run's checkpoints and its ``history.jsonl``, from which the same call goes on
            if it is there; or `Checkpoints` to say how often, and where to go on from.
        fabric: a ``lightning.fabric.Fabric``, or its options, such as ``{"accelerator": "gpu", "devices": 2}``.
        compile: whether to run the step through `torch.compile`. "auto": where the run is long enough for it to pay
            off, which a line of notice then says; for the size of all batches but an epoch's last.
        correct: whether to fit, after training, what one pass drops, see `bedl.nn.correct_variances`; outputs stay as
            sure as they were learned to be (``keep=True``). "auto": if standard deviations of one pass leave 0.9 to
            1.1 times those of drawn weights (20 draws for 40 inputs), after 100 steps or more, and if it takes less
            than about a minute.
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
        >>> result = fit(method, (x, 2 * x), epochs=3, lr=0.01, fabric={"accelerator": "cpu"})
        >>> result.steps, result.rows[-1]["loss"] < result.rows[0]["loss"]
        (6, True)
    """
    _check_method(method)
    if isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"fit makes the optimiser itself, so that a run can be resumed: pass lr=, or a function of the parameters, "
            f"such as optimizer=lambda p: torch.optim.{type(optimizer).__name__}(p, …)"
        )
    if optimizer is not None and lr is not None:
        raise TypeError("fit: lr is that of Adam; an optimizer of your own has its own learning rate")
    places = as_checkpoints(checkpoint)
    callbacks, stopping = check_callbacks(callbacks), early_stopping_of(callbacks, validation)
    points = as_points(data)
    if points.batch_size is not None and batch_size not in (None, points.batch_size):
        raise TypeError(f"fit: the loader makes batches of {points.batch_size}; leave out batch_size={batch_size}")
    settings = Settings(
        epochs=epochs, optimizer=optimizer or adam(1e-3 if lr is None else lr),
        batch_size=points.batch_size or (32 if batch_size is None else batch_size), schedule=schedule,
        gradient=gradient, early_stopping=stopping, checkpoints=places,
        callbacks=with_history(callbacks, places), compile=compile, correct=correct, seeds=(seed,),
    )  # fmt: skip
    warn_of_targets(method, points)
    held_out = None if validation is None else as_validation(validation, data)
    # what goes through `launch` is searched for modules and tensors, which frozen dataclasses do not survive
    train: Any = functools.partial(_train, settings=settings, caller=os.getpid())
    outcome, weights = _as_fabric(fabric).launch(train, method, points, held_out)
    if weights:
        method.load_state_dict(safetensors.torch.load(weights))
    return FitResult(*outcome)


def _as_fabric(fabric: Any) -> Any:
    """A Fabric of Lightning's, which takes seconds to import, and which networks of tables do without."""
    if fabric is not None and not isinstance(fabric, Mapping):
        if not hasattr(fabric, "launch"):
            raise TypeError(
                f"fit: fabric takes a lightning.fabric.Fabric, or its options as a dict, not {fabric!r}, such as "
                "fabric={'accelerator': 'gpu'}"
            )
        return fabric
    try:
        from lightning_fabric import Fabric
    except ModuleNotFoundError as error:
        raise ImportError("fit needs lightning_fabric: pip install 'bedl[train]'") from error
    return Fabric(**{"devices": 1, **(fabric or {})})


def _train(
    fabric: Any, method: Method, points: Points, validation: Points | None, settings: Settings, caller: int
) -> tuple[tuple[Any, ...], bytes]:
    """What every process does. Returns the outcome and, in a process started for it, the weights, for the caller."""
    with _own_randomness(fabric.device, stream_seed(settings.seeds[0], fabric.global_rank)), _finalized(fabric.loggers):
        run = FabricRun(fabric, method, points, validation, settings)
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
def _own_randomness(device: torch.device, seed: int) -> Iterator[None]:
    """Seeds for this run alone; afterwards all generators are as they were."""
    before = random_state.capture(device)
    random_state.seed(seed)
    try:
        yield
    finally:
        random_state.restore(before, device)


def _check_method(method: Any) -> None:
    if not isinstance(method, Method):
        raise TypeError(
            f"fit trains a method, such as BEDL(net, head); {type(method).__name__} is none. A class of your own "
            "derives from bedl.methods.Method"
        )
    if method.fit_mode != "gradient":
        remedies = {
            "members": "has members that learn independently: use bedl.training.fit_replicas(method, …)",
            "direct": "takes no gradient steps: call its own fit(x, y)",
        }
        nothing = "defines no way to learn: give it batch_loss(batch), statistics(batch) and combine(…), or fit(x, y)"
        raise TypeError(f"{type(method).__name__} {remedies.get(str(method.fit_mode), nothing)}")
    check_not_cached(method, "fit")


# Many networks as one: splits, seeds, ensemble members, values of a hyper-parameter. A small network keeps no processor
# busy, R of them at once do.


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
    schedule: Schedule | MakeScheduler = WARMUP,
    gradient_clip: float | None = 1.0,
    validation: Any = None,
    callbacks: Iterable[Callback] = (),
    checkpoint: str | os.PathLike[str] | Checkpoints | None = None,
    correct: Correct = "auto",
    seeds: Sequence[int] | None = None,
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
        schedule: factor on the learning rate, of (step, the replica's total steps); or as in `fit`.
        gradient_clip: greatest norm of a replica's gradient; None for no clipping.
        validation: points whose mean −log p(y|x) is computed after each epoch: one set for all, or a list.
        callbacks: see `Callback`; they are shown the replicas as one run, with mean losses. With `EarlyStopping` a
            replica stops before `epochs` by its own score; the others go on.
        checkpoint: as in `fit`; one file holds all replicas.
        correct: whether to fit, after training, what one pass drops; as in `fit`, for each replica on its own inputs.
        seeds: each replica's order of points and perturbations; 0, 1, 2, … by default.
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
        check_not_cached(method, "fit_replicas")
        reset_correction(method, correct)
        method.train()
    if epochs < 1:
        raise ValueError(f"fit_replicas: epochs must be at least 1, not {epochs}")
    callbacks, places = check_callbacks(callbacks), as_checkpoints(checkpoint)
    settings = Settings(
        epochs=epochs, batch_size=batch_size, schedule=schedule, gradient=GradientOptions(clip=gradient_clip),
        early_stopping=early_stopping_of(callbacks, validation), checkpoints=places,
        callbacks=with_history(callbacks, places), rates=tuple(rates), seeds=tuple(seeds),
    )  # fmt: skip
    warn_of_targets(methods[0], as_points(data[0] if isinstance(data, list) else data))
    stacked = StackedNetworks(methods, device, compile)
    batches = ReplicaBatches(data, seeds, epochs, batch_size, stacked.device, methods[0])
    rows = batch_size if stacked.batched is not None else math.inf  # a row of a table meets each parameter once
    with _own_randomness(stacked.device, stream_seed(*seeds)), limit_threads(stacked.parameters.numel() * rows):
        run = ReplicaRun(stacked, batches, validation, settings)
        run.adam.betas, run.adam.eps = betas, eps
        run()
    inputs = data if validation is None else validation
    for i, method in enumerate(methods):
        points = as_points(inputs[i] if isinstance(inputs, list) else inputs)
        correct_after_fit(method, points, correct, batches.totals[i], stacked.device)
    last = torch.tensor([rows[-1]["loss"] if rows else float("nan") for rows in run.losses.epochs])
    return ReplicasResult(last, [row for rows in run.losses.epochs for row in rows], run.step)


def _replicas(methods: Any) -> list[Method]:
    if isinstance(methods, Method) and methods.fit_mode == "members":
        methods = methods.members
    elif isinstance(methods, Method) or not isinstance(methods, Sequence):
        raise TypeError(f"fit_replicas takes a list of methods or an ensemble, not one {type(methods).__name__}")
    for method in methods:
        if not isinstance(method, Method) or method.fit_mode != "gradient":
            raise TypeError(f"fit_replicas trains methods that learn by steps; {type(method).__name__} is none")
    return list(methods)
