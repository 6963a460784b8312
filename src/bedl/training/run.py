"""One run of the training loop: its place in the data, its step, its checkpoints."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bedl.methods import Batch, Method
from bedl.training import random_state, state
from bedl.training.checkpoint import Checkpoints, Pace, resume_from
from bedl.training.compiling import Compile, should_compile, variance_precision
from bedl.training.correcting import Correct, correct_after, forget_correction
from bedl.training.data import Fetched, Place, Points, cast
from bedl.training.dead import warn_if_dead, warn_of_missing_gradients
from bedl.training.early_stopping import EarlyStopping
from bedl.training.history import Callback, Row
from bedl.training.nonfinite import NonFiniteLossError, find_origin
from bedl.training.random_state import capture_torch, restore_torch
from bedl.training.schedule import WARMUP, Schedule
from bedl.training.scoring import counted, scored
from bedl.training.step import GradientStep, Micro, Statistics

__all__ = ["Run", "Settings"]

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
        forget_correction(method, settings.correct)
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
        self.pace = Pace(settings.checkpoints)

    def _compiles(self) -> bool:
        s, fabric = self.settings, self.fabric
        before = random_state.capture(fabric.device)
        try:
            size = -(-s.batch_size // (s.accumulate * fabric.world_size))
            return should_compile(s.compile, self.method, self.points, size, self.total_steps, fabric.device.type)
        finally:
            random_state.restore(before, fabric.device)

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
        correct_after(self.method, inputs, self.settings.correct, self.step, self.fabric.device)
        if self.method.concludes:
            with torch.no_grad():
                self.method.eval()
                judges = () if self.validation is None else self._whole(self.validation)
                self.method.conclude(self._whole(self.points), judges)
        if self.seen is not None and self.fabric.world_size == 1:  # over processes, parameters may be spread
            warn_if_dead(self.method, self.seen)

    def _whole(self, points: Points, chunk: int = 1024) -> Iterator[Batch]:
        """A set in parts, on the device."""
        for fetched in points.everything(0, 1, chunk):
            x, y, weight = self.fabric.to_device(cast(*fetched, self.method))
            yield Batch(x, y, self.points.n_train, weight)

    def _resume(self) -> None:
        path = resume_from(self.settings.checkpoints, self.settings.resume)
        if path is not None:
            state.load(self, path)
            self.checkpoint = path

    def _epoch(self) -> None:
        self.method.train()
        for micros, n_points, last in self._steps():
            self._step(micros, n_points)
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
    def _steps(self) -> Iterator[tuple[list[Micro], float, bool]]:
        """What is left of this epoch: micro-batches, how much all points of the step count, whether it is the last."""
        s, fabric = self.settings, self.fabric
        rank, world = fabric.global_rank, fabric.world_size
        for share in self.points.shares(Place(s.batch_size, s.seed, self.epoch, self.batch, rank, world, s.accumulate)):
            micros = [self._prepared(points, count) for points, count in share.micros]
            weighted = counted(self.method, micros[0][0].y, micros[0][0].weight)[1] is not None
            yield micros, self._total(sum(c for _, c in micros)) if weighted else share.n_points, share.last

    def _prepared(self, points: Fetched, count: float) -> Micro:
        """A micro-batch on its device, and how much it counts: the sum of its weights, or how many points it has."""
        x, y, weight = points
        counts = counted(self.method, y, weight)[1]
        if counts is not None:
            count = float(counts.double().sum()) if count else 0.0
        x, y, weight = self.fabric.to_device(cast(x, y, weight, self.method))
        batch = Batch(x, y, self.points.n_train, weight, epoch=self._pace_of(y.device))
        return self.method.prepare(batch), count

    def _pace_of(self, device: torch.device) -> Tensor | None:
        """How often points have been seen so far, if the method asks for it. shape: ()"""
        if not self.method.paced:
            return None
        return torch.tensor(self.epoch + self.batch * self.settings.epochs / self.total_steps, device=device)

    def _total(self, count: float) -> float:
        """The sum over processes."""
        if self.fabric.world_size == 1:
            return count
        total = torch.tensor(count, dtype=torch.float64, device=self.fabric.device)
        return float(self.fabric.all_reduce(total, reduce_op="sum"))

    def _step(self, micros: list[Micro], n_points: float) -> None:
        if n_points == 0:  # all weights are 0
            self.step, self.batch = self.step + 1, self.batch + 1
            return
        factor = self.settings.schedule(self.step, self.total_steps)
        for group, base in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = base * factor
        before = capture_torch(self.fabric.device)
        self.optimizer.zero_grad()
        loss = self.gradient(micros, n_points)
        if self.seen is None and self.fabric.world_size == 1:  # over processes, parameters may be spread
            warn_of_missing_gradients(self.method)
        norm = self._clip()
        total = float(loss)
        scaled = getattr(self.fabric.strategy.precision, "scaler", None) is not None  # float16 skips overflows itself
        if not torch.isfinite(loss + (0.0 if scaled else norm.to(loss.device))):
            restore_torch(before, self.fabric.device)
            origin = find_origin(self.method, [batch for batch, _ in micros], self.fabric.autocast)
            self.optimizer.zero_grad()
            raise NonFiniteLossError(self.step, total, origin, self.checkpoint)
        self.optimizer.step()
        if self.seen is None or len(micros[0][0].y) >= len(self.seen.y):
            self.seen = micros[0][0]
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
        due = self.pace.due(self.step, end_of_epoch)
        if self.fabric.world_size > 1:  # clocks differ
            due = self.fabric.broadcast(due)
        if due:
            self.checkpoint = state.save(self, Path(places.directory), places.keep)

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
