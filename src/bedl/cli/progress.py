"""A bar for training, and what `bedl fit` says while a table is learned from."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from bedl.cli.bars import Bars
from bedl.cli.console import say, say_notes
from bedl.evaluation import tasks
from bedl.training.callbacks import Callback, Row

if TYPE_CHECKING:
    from bedl.data import TableEncoder

_KINDS = {"number": "numbers", "category": "categories", "date": "dates", "boolean": "true or false"}


class TrainingBar(Callback):
    """A bar for each run of the training loop, on stderr, if that is a terminal."""

    def __init__(self, members: int):
        self.members, self.number, self.epochs = members, 0, 0
        self.bar: Any = None

    def on_start(self, run: Any) -> None:
        self.number += 1
        self.epochs = run.epoch
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        together = hasattr(run, "methods")  # all members as one run
        which = f" {self.number} of {self.members}" if not together else f" {self.members} networks"
        what = "training" + ("" if self.members == 1 else which)
        where = "epoch {task.fields[epoch]}, loss {task.fields[loss]:.3f}"
        columns = (TextColumn(what), BarColumn(), TextColumn(where), TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task("", total=run.total_steps, completed=run.step, epoch=run.epoch, loss=float("nan"))
        self.bar.start()

    def on_step(self, run: Any, row: Row) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=run.step, epoch=row["epoch"] + 1, loss=row["loss"])

    def on_epoch(self, run: Any, row: Row) -> None:
        self.epochs = row["epoch"] + 1

    def on_end(self, run: Any) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


class ConsoleCallback(Bars):
    """Says on stderr what `bedl fit` does."""

    def __init__(self, members: int):
        super().__init__()
        self.training = TrainingBar(members)
        self.callbacks = (self.training,)

    def on_columns(self, encoder: TableEncoder) -> None:
        kinds = Counter(column["kind"] for column in encoder.to_dict()["columns"])
        columns = ", ".join(f"{count} of {_KINDS.get(kind, kind)}" for kind, count in kinds.items())
        what = tasks.get(encoder.task).describe(encoder.names)
        say(f"Target {encoder.target!r}: {what}. Columns: {columns}.")
        say_notes(encoder.notes)

    def on_trained(self, chosen: str) -> None:
        say(f"{chosen[0].upper()}{chosen[1:]}.")

    def on_rows(self, encoder: TableEncoder, counts: dict[str, int]) -> None:
        learned, held = counts["training"], counts["held_out"]
        say(f"Learning from {learned} rows, {encoder.n_features} features; {held} rows held out.")
