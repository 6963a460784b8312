"""What a run leaves behind: rows on disk, and lines or a bar on the screen."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bedl.files import write_atomically

if TYPE_CHECKING:
    from bedl.training.loop import Run

__all__ = ["Callback", "History", "Progress", "Row", "check_callbacks", "read_history"]

Row = dict[str, Any]


class Callback:
    """Looks on while a method is trained; override what you need. Called on the first process only.

    `run` shows where training is (`run.step`, `run.epoch`, `run.method`, …); setting ``run.stop = True`` ends it after
    the present step.
    """

    def on_start(self, run: Run) -> None:
        """Before the first step, after a checkpoint was loaded."""

    def on_step(self, run: Run, row: Row) -> None:
        """After each optimiser step."""

    def on_epoch(self, run: Run, row: Row) -> None:
        """After each epoch and its validation."""

    def on_end(self, run: Run) -> None:
        """At the end, after an error too."""


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Callbacks as a tuple; an error that says how to write one for anything else."""
    given = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    for callback in given:
        if not all(hasattr(callback, name) for name in ("on_start", "on_step", "on_epoch", "on_end")):
            raise TypeError(
                f"{callback!r} is no callback: derive a class from bedl.training.Callback, write on_step(self, run, "
                "row) or on_epoch(self, run, row) in it, and pass callbacks=[ThatClass()]"
            )
    return given


def read_history(path: str | os.PathLike[str]) -> list[Row]:
    """The whole rows of a history file; a line that a crash cut short is left out."""
    rows = []
    for line in Path(path).read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


class History(Callback):
    """Appends rows to a file of JSON lines: one per epoch, and one per `every` steps.

    A resumed run drops the rows that lie after its checkpoint, since it will write them again.
    """

    def __init__(self, path: str | os.PathLike[str], every: int = 50):
        self.path, self.every = Path(path), every

    def on_start(self, run: Run) -> None:
        kept = [row for row in read_history(self.path) if row["step"] <= run.step] if self.path.exists() else []
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in kept).encode())

    def on_step(self, run: Run, row: Row) -> None:
        if row["step"] % self.every == 0:
            self._append(row)

    def on_epoch(self, run: Run, row: Row) -> None:
        self._append(row)

    def _append(self, row: Row) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")


class Progress(Callback):
    """Loss, points per second and time left: a bar if rich is installed and this is a terminal, else lines of text."""

    def __init__(self, seconds: float = 5.0):
        self.seconds = seconds
        self.bar: Any = None

    def on_start(self, run: Run) -> None:
        self.began = self.last = time.monotonic()
        self.first_step, self.points = run.step, 0
        if sys.stderr.isatty():
            try:
                from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
                from rich.progress import Progress as Bar
            except ImportError:
                return
            columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn(),
                       TextColumn("loss {task.fields[loss]:.4f}  {task.fields[rate]:,.0f} points/s"),
                       TimeRemainingColumn())  # fmt: skip
            self.bar = Bar(*columns, transient=True)
            self.task = self.bar.add_task("", total=run.total_steps, completed=run.step, epoch=0, loss=0.0, rate=0.0)
            self.bar.start()

    def on_step(self, run: Run, row: Row) -> None:
        self.points += row["points"]
        now = time.monotonic()
        rate = self.points / max(now - self.began, 1e-9)
        if self.bar is not None:
            self.bar.update(self.task, completed=run.step, epoch=row["epoch"], loss=row["loss"], rate=rate)
        elif now - self.last >= self.seconds:
            self.last = now
            left = (now - self.began) / (run.step - self.first_step) * (run.total_steps - run.step)
            text = f"epoch {row['epoch']}  step {run.step}/{run.total_steps}  loss {row['loss']:.4f}"
            print(f"{text}  {rate:,.0f} points/s  {left:,.0f} s left", file=sys.stderr, flush=True)

    def on_end(self, run: Run) -> None:
        if self.bar is not None:
            self.bar.stop()
