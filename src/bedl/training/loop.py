"""One run of the training loop: its place in the data, its step, its checkpoints."""

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
from torch import Tensor, nn
from torch.optim import Optimizer

from bedl.methods import Batch, Method
from bedl.nn import check_not_cached
from bedl.training import checkpoint
from bedl.training import checkpoint as random_state
from bedl.training.callbacks import (
    WARMUP,
    Callback,
    EarlyStopping,
    History,
    Progress,
    Row,
    Schedule,
    check_callbacks,
    counted,
    scored,
)
from bedl.training.checkpoint import Checkpoints, CheckpointTimer, capture_torch, restore_torch, resume_from
from bedl.training.compile import Compile, should_compile, variance_precision
from bedl.training.correction import Correct, correct_after_fit, reset_correction
from bedl.training.data import (
    Data,
    Fetched,
    Place,
    Points,
    Unpack,
    as_points,
    as_validation,
    cast,
    stream_seed,
    warn_of_targets,
)
from bedl.training.diagnostics import (
    NonFiniteLossError,
    check_constant_predictions,
    find_origin,
    warn_of_missing_gradients,
)
from bedl.training.engines.fabric import GradientStep, MicroBatch, Statistics

__all__ = ["FitResult", "Run", "Settings", "adam", "fit"]


MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The choices of a run; `fit` explains them."""

    epochs: int
    optimizer: MakeOptimizer
    batch_size: int = 32
    schedule: Schedule = WARMUP
    gradient_clip: float | None = 1.0
    accumulate: int = 1
    early_stopping: EarlyStopping | None = None
    checkpoints: Checkpoints | None = None
    resume: bool | str | os.PathLike[str] = "auto"
    callbacks: tuple[Callback, ...] = ()
    compile: Compile = "auto"
    variance_products: str = "auto"
    correct: Correct = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"fit: {name} must be at least 1, not {getattr(self, name)}")
        if self.gradient_clip is not None and not self.gradient_clip > 0:
            raise ValueError(f"fit: gradient_clip must be positive, or None for no clipping, not {self.gradient_clip}")

    def fingerprint(self, n_train: float) -> dict[str, Any]:
        """What has to be the same for a resumed run to be the same run."""
        return {"n_train": n_train, "batch_size": self.batch_size, "seed": self.seed}


class Run:
    """A run under way.

    Attributes:
        method: what is trained.
        epoch, batch: the next global batch, counted from 0.
        step, total_steps: optimiser steps taken, and planned.
        stop: set it to end the run after the present step.
    """

    def __init__(self, fabric: Any, method: Method, points: Points, validation: Points | None, settings: Settings):
        self.fabric, self.method, self.points, self.validation, self.settings = (
            fabric,
            method,
            points,
            validation,
            settings,
        )
        reset_correction(method, settings.correct)
        method.to(fabric.device)  # before the optimiser looks at where parameters are
        optimizer = settings.optimizer([p for p in method.parameters() if p.requires_grad])
        self.base_rates = [group["lr"] for group in optimizer.param_groups]
        self.total_steps = settings.epochs * points.steps(settings.batch_size)
        compile = self._compiles()
        variances = variance_precision(settings.variance_products, compile, fabric.device.type)
        self.module, self.optimizer = fabric.setup(Statistics(method, compile, variances), optimizer)
        self.gradient = GradientStep(fabric, self.module, method)
        self.watch = settings.early_stopping.start() if settings.early_stopping else None
        self.epoch = self.batch = self.step = 0
        self.loss_sum, self.loss_points = 0.0, 0.0
        self.stop, self.stopped_early = False, False
        self.rows: list[Row] = []
        self.seen: Batch | None = None  # the last batch, but that at the end of an epoch
        self.checkpoint: Path | None = None
        self.timer = CheckpointTimer(settings.checkpoints)

    def _compiles(self) -> bool:
        s, fabric = self.settings, self.fabric
        before = checkpoint.capture(fabric.device)
        try:
            size = -(-s.batch_size // (s.accumulate * fabric.world_size))
            return should_compile(s.compile, self.method, self.points, size, self.total_steps, fabric.device.type)
        finally:
            checkpoint.restore(before, fabric.device)

    # -- from beginning to end -------------------------------------------------------------------
    def __call__(self) -> None:
        """Train from where the run stands to its end."""
        self._resume()
        self._tell("on_start")
        try:
            while self.epoch < self.settings.epochs and not self.stopped_early:
                self._epoch()
        finally:
            self._tell("on_end")
        if self.watch:
            self.watch.restore(self.method)
        inputs = self.points if self.validation is None else self.validation
        correct_after_fit(self.method, inputs, self.settings.correct, self.step, self.fabric.device)
        if self.method.has_fit_end:
            with torch.no_grad():
                self.method.eval()
                validation_batches = () if self.validation is None else self._whole(self.validation)
                self.method.on_fit_end(self._whole(self.points), validation_batches)
        if self.seen is not None and self.fabric.world_size == 1:  # over processes, parameters may be spread
            check_constant_predictions(self.method, self.seen)

    def _whole(self, points: Points, chunk: int = 1024) -> Iterator[Batch]:
        """A set in parts, on the device."""
        for fetched in points.everything(0, 1, chunk):
            x, y, weight = self.fabric.to_device(cast(*fetched, self.method))
            yield Batch(x, y, self.points.n_train, weight)

    def _resume(self) -> None:
        path = resume_from(self.settings.checkpoints, self.settings.resume)
        if path is not None:
            checkpoint.load(self, path)
            self.checkpoint = path

    def _epoch(self) -> None:
        self.method.train()
        for micro_batches, n_points, last in self._steps():
            self._step(micro_batches, n_points)
            if self.stop:
                self.stopped_early = True
            if last:
                self._end_of_epoch()
            self._maybe_save(end_of_epoch=last)
            if self.stopped_early:
                return

    def _end_of_epoch(self) -> None:
        row: Row = {
            "kind": "epoch",
            "epoch": self.epoch,
            "step": self.step,
            "loss": self.loss_sum / (self.loss_points or 1),
        }
        if self.validation is not None:
            row["val_nll"] = self.evaluate(self.validation)
            if self.watch and self.watch.update(row["val_nll"], self.method):
                self.stopped_early = True
        self.rows.append(row)
        self._tell("on_epoch", row)
        self.fabric.log_dict({k: v for k, v in row.items() if isinstance(v, float)}, step=self.step)
        self.epoch, self.batch, self.loss_sum, self.loss_points = self.epoch + 1, 0, 0.0, 0

    def _tell(self, event: str, *details: Any) -> None:
        if self.fabric.is_global_zero:
            for callback in self.settings.callbacks:
                getattr(callback, event)(self, *details)
        if self.fabric.world_size > 1:  # all stop together
            self.stop = self.fabric.broadcast(self.stop)

    # -- one step ---------------------------------------------------------------------------------
    def _steps(self) -> Iterator[tuple[list[MicroBatch], float, bool]]:
        """What is left of this epoch: micro-batches, how much all points of the step count, whether it is the last."""
        s, fabric = self.settings, self.fabric
        rank, world = fabric.global_rank, fabric.world_size
        for share in self.points.shares(Place(s.batch_size, s.seed, self.epoch, self.batch, rank, world, s.accumulate)):
            micro_batches = [self._prepared(points, count) for points, count in share.micro_batches]
            weighted = counted(self.method, micro_batches[0][0].y, micro_batches[0][0].weight)[1] is not None
            yield (
                micro_batches,
                self._total(sum(c for _, c in micro_batches)) if weighted else share.n_points,
                share.last,
            )

    def _prepared(self, points: Fetched, count: float) -> MicroBatch:
        """A micro-batch on its device, and how much it counts: the sum of its weights, or how many points it has."""
        x, y, weight = points
        counts = counted(self.method, y, weight)[1]
        if counts is not None:
            count = float(counts.double().sum()) if count else 0.0
        x, y, weight = self.fabric.to_device(cast(x, y, weight, self.method))
        batch = Batch(x, y, self.points.n_train, weight, epoch=self._epoch_of(y.device))
        return self.method.prepare(batch), count

    def _epoch_of(self, device: torch.device) -> Tensor | None:
        """How often points have been seen so far, if the method asks for it. shape: ()"""
        if not self.method.uses_epoch:
            return None
        return torch.tensor(self.epoch + self.batch * self.settings.epochs / self.total_steps, device=device)

    def _total(self, count: float) -> float:
        """The sum over processes."""
        if self.fabric.world_size == 1:
            return count
        total = torch.tensor(count, dtype=torch.float64, device=self.fabric.device)
        return float(self.fabric.all_reduce(total, reduce_op="sum"))

    def _step(self, micro_batches: list[MicroBatch], n_points: float) -> None:
        if n_points == 0:  # all weights are 0
            self.step, self.batch = self.step + 1, self.batch + 1
            return
        factor = self.settings.schedule(self.step, self.total_steps)
        for group, base in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = base * factor
        before = capture_torch(self.fabric.device)
        self.optimizer.zero_grad()
        loss = self.gradient(micro_batches, n_points)
        if self.seen is None and self.fabric.world_size == 1:  # over processes, parameters may be spread
            warn_of_missing_gradients(self.method)
        norm = self._clip()
        total = float(loss)
        scaled = getattr(self.fabric.strategy.precision, "scaler", None) is not None  # float16 skips overflows itself
        if not torch.isfinite(loss + (0.0 if scaled else norm.to(loss.device))):
            restore_torch(before, self.fabric.device)
            origin = find_origin(self.method, [batch for batch, _ in micro_batches], self.fabric.autocast)
            self.optimizer.zero_grad()
            raise NonFiniteLossError(self.step, total, origin, self.checkpoint)
        self.optimizer.step()
        if self.seen is None or len(micro_batches[0][0].y) >= len(self.seen.y):
            self.seen = micro_batches[0][0]
        self.step, self.batch = self.step + 1, self.batch + 1
        self.loss_sum, self.loss_points = self.loss_sum + total * n_points, self.loss_points + n_points
        rate = self.optimizer.param_groups[0]["lr"]
        row = {"kind": "step", "epoch": self.epoch, "step": self.step, "loss": total, "lr": rate, "points": n_points}
        self._tell("on_step", row)

    def _clip(self) -> Tensor:
        limit = self.settings.gradient_clip
        norm = self.fabric.clip_gradients(
            self.module, self.optimizer, max_norm=float("inf") if limit is None else limit, error_if_nonfinite=False
        )
        return torch.as_tensor(0.0) if norm is None else norm

    def _maybe_save(self, end_of_epoch: bool) -> None:
        places = self.settings.checkpoints
        if places is None:
            return
        due = self.timer.due(self.step, end_of_epoch)
        if self.fabric.world_size > 1:  # their times differ
            due = self.fabric.broadcast(due)
        if due:
            self.checkpoint = checkpoint.save(self, Path(places.directory), places.keep)

    # -- scores -----------------------------------------------------------------------------------
    @torch.no_grad()
    def evaluate(self, points: Points, chunk: int = 1024) -> float:
        """(Weighted) mean −log p(y|x) over a set, shared among the processes."""
        world = self.fabric.world_size
        total = torch.zeros(2, dtype=torch.float64, device=self.fabric.device)
        for fetched in points.everything(self.fabric.global_rank, world, chunk):
            x, y, weight = self.fabric.to_device(cast(*fetched, self.method))
            with self.fabric.autocast():
                log_p, counts = scored(self.method, x, y, weight)
            total += torch.stack([-(counts.double() * log_p.double()).sum(), counts.double().sum()])
        total = self.fabric.all_reduce(total, reduce_op="sum") if world > 1 else total
        return float(total[0] / total[1])


# `fit`: one training loop for one device, several, and several machines.
#
#     for each epoch:                                   the order follows from (seed, epoch)
#         for each global batch:                        `batch_size` points over all processes
#             this process's share, in micro-batches    → GradientStep: the exact gradient of the whole batch
#             clip, check, optimiser step, checkpoint
#
# The result does not depend on how a global batch is spread over processes and micro-batches, up to rounding.


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
            of the whole batch; a loss with a root costs one more forward pass for it (see
            `bedl.training.engines.fabric`).
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
            dict with ``labels`` is understood, see `bedl.training.data`.
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
    if method.fit_mode != "gradient":
        remedies = {
            "members": "has members that learn independently: use bedl.training.fit_replicas(method, …)",
            "direct": "takes no gradient steps: call its own fit(x, y)",
        }
        nothing = "defines no way to learn: give it loss(batch), statistics(batch) and combine(…), or fit(x, y)"
        raise TypeError(f"{type(method).__name__} {remedies.get(str(method.fit_mode), nothing)}")
    check_not_cached(method, "fit")


def _history(path: str | os.PathLike[str] | None, places: Checkpoints | None) -> list[Callback]:
    if path is None and places is None:
        return []
    if places is None and os.path.exists(path) and os.path.getsize(path):  # type: ignore[arg-type]
        raise ValueError(f"fit: {path} holds the history of another run; move it, or choose another file")
    return [History(path if path is not None else Path(places.directory) / "history.jsonl")]  # type: ignore[union-attr]
