"""A table that is done in a moment, and one whose cells misbehave."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from bedl.bench import BOTH, Cell, Column, Published, RunResult, Table


class Toy(Table):
    """Scores that follow from the cell; `folder` counts how often each cell was run, and tells cells what to do.

    Args:
        folder: where cells leave a mark when they are run.
        seconds: how long a cell takes.
    """

    name = "toy"
    title = "A toy"
    about = "Of no use."
    datasets = ("a", "b")
    methods = {"paper": ("bedl", "edl"), "best": ("auto", "bedl")}  # noqa: RUF012
    more = ("mc-dropout",)
    columns = (Column("log_likelihood", "log-likelihood", "higher"), Column("error", "error", "lower", share=True))

    def __init__(self, folder: Path | None = None, seconds: float = 0.0):
        self.folder, self.seconds = folder, seconds

    def splits(self, dataset: str) -> int:
        return 4

    def work(self, cell: Cell, root: object = None) -> RunResult:
        mark(self.folder, cell)
        time.sleep(self.seconds)
        if self.folder is not None and Path(self.folder, "fails").exists() and cell.split == 2:
            raise ValueError("split 2 is cursed")
        scores = {"log_likelihood": -cell.split - (cell.dataset == "b"), "error": 0.1, "odd": float("nan")}
        return RunResult(scores, {"deviations": ("made up",)})

    def published(self) -> Sequence[Published]:
        values = {"a": (-2.0, 0.5)}
        return [
            Published("BEDL", "log_likelihood", values, "bedl", "the paper"),
            Published("Oracle", "log_likelihood", {"a": (-1.0, None)}, None, "a dream"),
        ]


class Grouped(Toy):
    """Cells of a data set and method are one run, which fails as a whole if the folder says so."""

    def together(self, cells: Sequence[Cell]) -> Iterable[Sequence[Cell]]:
        kinds: dict[tuple[str, str], list[Cell]] = {}
        for cell in cells:
            kinds.setdefault((cell.dataset, cell.method), []).append(cell)
        return kinds.values()

    def work_together(self, cells: Sequence[Cell], root: object = None) -> list[RunResult]:
        if len(cells) > 1 and self.folder is not None and Path(self.folder, "group-fails").exists():
            raise RuntimeError("not together")
        return super().work_together(cells, root)


class Twofold(Toy):
    """The method "bedl" is the same run under both presets."""

    def equivalent_runs(self, cell: Cell) -> Sequence[Cell]:
        return [dataclasses.replace(cell, preset=name) for name in BOTH] if cell.method == "bedl" else ()


class Deadly(Toy):
    """The first worker that comes to split 1 of a is killed in the middle of it."""

    def work(self, cell: Cell, root: object = None) -> RunResult:
        assert self.folder is not None
        if cell.split == 1 and cell.dataset == "a":
            try:
                Path(self.folder, "killed").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().work(cell, root)


def mark(folder: Path | None, cell: Cell) -> None:
    """Append a line that says that a cell was run, and by which process."""
    if folder is not None:
        name = f"{cell.dataset}-{cell.method}-{cell.preset}-{cell.split}"
        with Path(folder, "marks").open("a") as file:
            file.write(f"{name} {os.getpid()}\n")


def marks(folder: Path) -> list[str]:
    """The cells that were run, in order, with repetitions."""
    path = Path(folder, "marks")
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []
