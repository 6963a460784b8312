"""Training, watched: a bar, and checkpoints also in the middle of long epochs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bedl.training import state
from bedl.training.history import Callback, Row

if TYPE_CHECKING:
    from bedl.training.run import Run

__all__ = ["TrainingBar", "TimedCheckpoints"]


class TimedCheckpoints(Callback):
    """A checkpoint every so many seconds: what Ctrl-C or a power cut may cost at most."""

    def __init__(self, seconds: float = 60.0):
        self.seconds = seconds
        self.last = time.monotonic()

    def on_step(self, run: Run, row: Row) -> None:
        places, size = run.settings.checkpoints, run.settings.batch_size
        last_of_epoch = run.batch * size >= run.points.n  # the loop itself writes one there
        if places is not None and not last_of_epoch and time.monotonic() - self.last >= self.seconds:
            run.checkpoint = state.save(run, Path(places.directory), places.keep)
            self.last = time.monotonic()

    def on_epoch(self, run: Run, row: Row) -> None:
        self.last = time.monotonic()


class TrainingBar(Callback):
    """One bar for each member, on stderr, if that is a terminal."""

    def __init__(self, members: int):
        self.members, self.number, self.epochs = members, 0, 0
        self.bar: Any = None

    def on_start(self, run: Run) -> None:
        self.number += 1
        self.epochs = run.epoch
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        what = "training" if self.members == 1 else f"training {self.number} of {self.members}"
        where = "epoch {task.fields[epoch]}, loss {task.fields[loss]:.3f}"
        columns = (TextColumn(what), BarColumn(), TextColumn(where), TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task("", total=run.total_steps, completed=run.step, epoch=run.epoch, loss=float("nan"))
        self.bar.start()

    def on_step(self, run: Run, row: Row) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=run.step, epoch=row["epoch"] + 1, loss=row["loss"])

    def on_epoch(self, run: Run, row: Row) -> None:
        self.epochs = row["epoch"] + 1

    def on_end(self, run: Run) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
