"""Bars for rows, files and downloads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from bedl.cli.console import bar
from bedl.estimators.tabular import TableCallback

if TYPE_CHECKING:
    from rich.progress import TaskID


class Bars(TableCallback):
    """Shows on stderr how far a table or many are, if that is a terminal.

    Args:
        unit: of what is counted.
    """

    def __init__(self, unit: str = "rows"):
        self.unit = unit

    def bar(self, text: str, total: int | None) -> AbstractContextManager[Callable[[int], object]]:
        return bar(text, total, self.unit)


@contextmanager
def download_bar() -> Iterator[Callable[[str, int, int | None], object] | None]:
    """A bar for each file, if somebody looks on."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = progress.add_task(file, total=total)
            progress.update(tasks[file], completed=done, total=total)

        yield show
