"""One run of replicas: its place in the data, its step, its checkpoints."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bedl.methods import Batch, Method
from bedl.nn.calling import map_parts
from bedl.training import checkpoint, random_state
from bedl.training.checkpoint import CheckpointError, Checkpoints, Pace, resume_from
from bedl.training.early_stopping import EarlyStopping
from bedl.training.history import Callback, Row
from bedl.training.nonfinite import NonFiniteLossError, find_origin
from bedl.training.replica_data import Joined, ReplicaBatches, Rows
from bedl.training.replica_feed import Feed, Preparation
from bedl.training.replica_going import Going
from bedl.training.replica_stopping import ReplicaWatch
from bedl.training.schedule import Schedule
from bedl.training.stacked import Stacked
from bedl.training.state import build_of, compare_settings
from bedl.training.vector_adam import VectorAdam, clipping, norms

__all__ = ["ReplicaRun", "ReplicaSettings"]


@dataclasses.dataclass(frozen=True)
class ReplicaSettings:
    """The choices of a run; `fit_replicas` explains them."""

    rates: Sequence[float]
    seeds: Sequence[int]
    schedule: Schedule
    gradient_clip: float | None
    early_stopping: EarlyStopping | None
    checkpoints: Checkpoints | None
    resume: bool | str
    callbacks: tuple[Callback, ...]


class ReplicaRun:
    """Replicas under way; to callbacks it shows the same as a `Run` of one method.

    Attributes:
        methods: what is trained, with the parameters of now; `method` where it is one.
        epoch: that of the replica with most steps, counted from 0.
        step, total_steps: optimiser steps taken, and planned.
        stop: set it to end the run after the present step.
    """

    def __init__(self, stacked: Stacked, batches: ReplicaBatches, validation: Any, settings: ReplicaSettings):
        self.stacked, self.batches, self.settings = stacked, batches, settings
        self.watch = None if validation is None else ReplicaWatch(stacked, validation, settings.early_stopping)
        self.adam = VectorAdam(stacked.parameters)
        self.going = Going(stacked, self.adam)
        self.draw = Preparation(stacked.methods, settings.seeds)
        self.feed = Feed(batches, self.draw)
        self.losses = Losses(batches)
        self.step, self.total_steps = 0, len(batches)
        self.stop = False
        self.checkpoint: Path | None = None
        self.pace = Pace(settings.checkpoints)

    @property
    def methods(self) -> list[Method]:
        self.going.write_back()
        self.stacked.write_back()
        return self.stacked.methods

    @property
    def method(self) -> Method:
        """The only one there is."""
        (method,) = self.methods
        return method

    @property
    def epoch(self) -> int:
        return self.step // max(self.batches.per_epoch)

    # -- from beginning to end -------------------------------------------------------------------
    def __call__(self) -> None:
        """Train from where the run stands to its end, and put the result into the methods."""
        path = resume_from(self.settings.checkpoints, self.settings.resume)
        if path is not None:
            self._load(path)
        self._tell("on_start")
        try:
            while self.step < self.total_steps and not self.stop and not all(self._stopped):
                self._step()
        finally:
            self._tell("on_end")
        self.going.write_back()
        if self.watch is not None:
            self.watch.restore()
        self.stacked.write_back()
        for number, method in enumerate(self.stacked.methods):
            if method.concludes:
                with torch.no_grad():
                    method.to(self.stacked.device).eval()
                    judges = () if self.watch is None else self._whole(number, self.watch.points)
                    method.conclude(self._whole(number, self.batches.joined), judges)

    def _whole(self, replica: int, joined: Joined, chunk: int = 1024) -> Iterator[Batch]:
        """A replica's own points in parts."""
        own = joined.places[replica]
        for start in range(0, len(own), chunk):
            part = joined.rows([own[start : start + chunk]])
            weight = None if part.weight is None else part.weight[0]
            yield Batch(part.x[0], part.y[0], self.batches.joined.n_train[replica], weight)

    @property
    def _stopped(self) -> list[bool]:
        return [False] * len(self.stacked.methods) if self.watch is None else self.watch.stopped

    def _step(self) -> None:
        rows, batch = self.feed[self.step]
        if self.stacked.methods[0].paced:
            seen = [self.step / count for count in self.batches.per_epoch]
            batch = batch._replace(epoch=torch.tensor(seen, device=self.stacked.device))
        totals = self.batches.totals
        going = [self.step < total and not done for total, done in zip(totals, self._stopped, strict=True)]
        self.going.keep(going)
        batch = self.going.of(batch)
        loss, gradient = self.going.stacked.gradients(batch)
        values, lengths = loss.tolist(), norms(gradient).tolist()
        if not math.isfinite(sum(values) + sum(lengths)):
            raise self._not_finite(batch, loss, gradient)
        limit = self.settings.gradient_clip
        factor = {total: self.settings.schedule(self.step, total) for total in set(totals) if self.step < total}
        rates = [self.settings.rates[r] * factor[totals[r]] if going[r] else 0.0 for r in self.going.numbers]
        self.going.adam.step(gradient, rates, None if limit is None else clipping(lengths, limit))
        epoch = self.epoch
        self.step += 1
        if self.settings.callbacks:
            mean = sum(values) / len(values)
            self._tell(
                "on_step",
                {
                    "kind": "step",
                    "epoch": epoch,
                    "step": self.step,
                    "loss": mean,
                    "lr": max(rates),
                    "points": sum(rows.counts),
                },
            )
        ended = self.losses.add(dict(zip(self.going.numbers, values, strict=True)), rows, going)
        if any(ended):
            if self.watch is not None:
                self.losses.score(ended, self.watch.update(ended, self.going))
            self._tell("on_epoch", {**self.losses.summary(), "epoch": epoch, "step": self.step})
        self._maybe_save(end_of_epoch=self.epoch > epoch)

    def _tell(self, event: str, *details: Row) -> None:
        for callback in self.settings.callbacks:
            getattr(callback, event)(self, *details)

    def _not_finite(self, batch: Batch, loss: Tensor, gradient: Tensor) -> NonFiniteLossError:
        """The error for the first replica whose loss or gradient is not finite; all keep the parameters they had."""
        place = int((~(loss.isfinite() & gradient.isfinite().all(1))).nonzero()[0])
        parts: list[Any] = [map_parts(lambda part: part[place], part) for part in batch]
        own = Batch._make(parts)._replace(n_train=int(parts[2]))
        replica = self.going.numbers[place]
        origin = find_origin(self.methods[replica], [own])
        where = dataclasses.replace(origin, where=f"replica {replica}: {origin.where}")
        return NonFiniteLossError(self.step, float(loss[place]), where, self.checkpoint)

    # -- checkpoints ------------------------------------------------------------------------------
    def _maybe_save(self, end_of_epoch: bool) -> None:
        places = self.settings.checkpoints
        if places is not None and self.pace.due(self.step, end_of_epoch):
            self.checkpoint = checkpoint.path_of(Path(places.directory), self.step)
            checkpoint.write(self.checkpoint, self._state())
            checkpoint.prune(Path(places.directory), places.keep)

    def _fingerprint(self) -> dict[str, Any]:
        """What has to be the same for a resumed run to be the same run."""
        batches = self.batches
        sizes, epochs, points = list(batches.n_train), batches.epochs, batches.batch_size
        return {"seeds": list(self.settings.seeds), "n_train": sizes, "epochs": epochs, "batch_size": points}

    def _build(self) -> str:
        """The methods' build, and the order of parameters in a row."""
        return f"{build_of(self.stacked.methods[0])}\n{' '.join(self.stacked.names)}"

    def _state(self) -> dict[str, Any]:
        self.going.write_back()
        return {
            "replicas": self.stacked.parameters,
            "adam": {"mean": self.adam.mean, "square": self.adam.square, "count": self.adam.count},
            "step": self.step,
            "losses": {"sums": self.losses.sums, "masses": self.losses.masses, "epochs": self.losses.epochs},
            "watch": None if self.watch is None else self.watch.state_dict(),
            "draws": [generator.get_state() for generator in self.draw.generators],
            "random": random_state.capture_torch(self.stacked.device),
            "settings": self._fingerprint(),
            "build": self._build(),
        }

    def _load(self, path: Path) -> None:
        """Take up the run at a checkpoint. Everything is compared first; an error leaves the run as it was."""
        content = checkpoint.read(path)
        if "replicas" not in content:
            raise CheckpointError(f"{path} is of a single method, not of several that are trained as one")
        compare_settings(content["settings"], self._fingerprint(), path)
        if content["build"] != self._build() or content["replicas"].shape != self.stacked.parameters.shape:
            raise CheckpointError(
                f"{path} was written with other networks, heads or objectives; use the same ones, or start anew with "
                "another checkpoint directory"
            )
        if (content["watch"] is None) != (self.watch is None):
            raise CheckpointError(f"{path} was written with another choice of validation")
        self.stacked.parameters.copy_(content["replicas"])
        self.adam.mean.copy_(content["adam"]["mean"])
        self.adam.square.copy_(content["adam"]["square"])
        self.adam.count, self.step = content["adam"]["count"], content["step"]
        for name, value in content["losses"].items():
            setattr(self.losses, name, value)
        self.losses.steps = self.step
        if self.watch is not None:
            self.watch.load_state_dict(content["watch"])
        for generator, value in zip(self.draw.generators, content["draws"], strict=True):
            generator.set_state(value)
        random_state.restore_torch(content["random"], self.stacked.device)
        self.checkpoint = path


class Losses:
    """Each replica's mean loss per epoch, as it comes about."""

    def __init__(self, batches: ReplicaBatches):
        self.per_epoch, self.steps = batches.per_epoch, 0
        self.sums, self.masses = ([0.0] * len(self.per_epoch) for _ in range(2))
        self.epochs: list[list[Row]] = [[] for _ in self.per_epoch]

    def add(self, losses: Mapping[int, float], rows: Rows, going: Sequence[bool]) -> list[bool]:
        """Take in a step, with the losses of those that are going. Says which replicas have ended an epoch."""
        masses = list(map(float, rows.counts)) if rows.weight is None else rows.weight.flatten(1).sum(1).tolist()
        self.steps += 1
        ended = [on and self.steps % count == 0 for on, count in zip(going, self.per_epoch, strict=True)]
        for r, (mass, on) in enumerate(zip(masses, going, strict=True)):
            if on:
                self.sums[r], self.masses[r] = self.sums[r] + losses[r] * mass, self.masses[r] + mass
            if ended[r]:
                epoch, mean = len(self.epochs[r]), self.sums[r] / self.masses[r]
                self.epochs[r].append({"kind": "epoch", "replica": r, "epoch": epoch, "loss": mean})
                self.sums[r] = self.masses[r] = 0.0
        return ended

    def score(self, ended: Sequence[bool], scores: Sequence[float]) -> None:
        """Put the scores of the validation sets into the rows of the epochs that have ended."""
        for r in [r for r, end in enumerate(ended) if end]:
            self.epochs[r][-1]["val_nll"] = scores[r]

    def summary(self) -> Row:
        """The means over the replicas of their newest rows."""
        newest = [rows[-1] for rows in self.epochs if rows]
        row: Row = {"kind": "epoch", "loss": sum(r["loss"] for r in newest) / len(newest)}
        if all("val_nll" in r for r in newest):
            row["val_nll"] = sum(r["val_nll"] for r in newest) / len(newest)
        return row
