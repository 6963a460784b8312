"""Comparisons and benches as tables on stdout, and their rows as they come."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bedl.terminal.screen import bar, say

if TYPE_CHECKING:
    from bedl.bench import Progress, Sheet, Table
    from bedl.tabular import Comparison

__all__ = ["print_comparison", "print_sheets", "say_failures", "watching"]


@contextmanager
def watching(total: int) -> Iterator[Any]:
    """A bar on a terminal, else a line for each row."""
    if sys.stderr.isatty():
        with bar("cells", total, "cells") as advance:
            yield lambda progress: advance(1)
        return
    yield _say_row


def _say_row(progress: Progress) -> None:
    row = progress.row
    score = next(iter(row["metrics"].items()), None)
    what = row["failed"] or ("" if score is None or score[1] is None else f"{score[0]} {score[1]:.3f}")
    left = time.strftime("%H:%M:%S", time.gmtime(progress.seconds_left))
    say(
        f"{progress.done}/{progress.total} {row['dataset']} {row['method']} {row['preset']} split {row['split']}: "
        f"{what} ({row['seconds']:.1f} s; about {left} left)"
    )


def print_sheets(table: Table, made: Sequence[Sheet]) -> None:
    """The sheets on stdout."""
    from rich.console import Console
    from rich.table import Table as Grid

    from bedl.bench import PRESETS, shown

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    if not made:
        say("There are no rows yet.")
    fit = max(1, (console.width - 34) // 18)  # columns beside each other
    for sheet in made:
        for start in range(0, len(sheet.head), fit):
            part = slice(start, start + fit)
            grid = Grid(title=f"{table.title}: {sheet.title}", title_justify="left", box=None, pad_edge=False)
            grid.add_column("method", no_wrap=True)
            grid.add_column("", no_wrap=True, style="dim")
            for name in sheet.head[part]:
                grid.add_column(name, justify="right")
            for line in sheet.lines:
                pairs = zip(line.entries[part], sheet.columns[part], strict=True)
                texts = (shown(entry, column).replace(" ", "\u00a0") for entry, column in pairs)
                grid.add_row(line.label, line.source, *texts, style=None if line.source in PRESETS else "dim")
            console.print(grid)
            console.print()


def say_failures(rows: Sequence[dict[str, Any]]) -> None:
    """What was lost and why, of the first few."""
    for row in rows[:5]:
        say(f"  - {row['dataset']} {row['method']} {row['preset']} split {row['split']} failed: {row['failed']}")
    if len(rows) > 5:
        say(f"  - and {len(rows) - 5} more")
    if rows:
        say(f"{len(rows)} cells failed; --retry runs them again.")


def print_comparison(found: Comparison) -> None:
    """The summary as a table on stdout; what is not in it, and why, on stderr."""
    from rich.console import Console
    from rich.table import Table as Grid

    from bedl.tabular.comparison import TIMES
    from bedl.tasks import meanings

    known, names = meanings(), found.scores
    table = Grid(title=f"{found.target} of {found.data}, {found.task}", title_justify="left", box=None, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for label in [*(known[name].label for name in names), "fit, s", "1,000 rows, s"]:
        table.add_column(label, justify="right")
    for row in found.summary():
        table.add_row(row["method"], *(_cell(row, name, known[name].share) for name in names),
                      *(_cell({name: row.get(name)}, name, False) for name in TIMES))  # fmt: skip
    if found.constant:
        table.add_row("one answer for all", *(_cell(found.constant, name, known[name].share) for name in names), "", "")
    Console(highlight=False).print(table)
    for name, why in found.refused.items():
        say(f"  - {name}: {why}")
    for row in found.summary():
        if "error" in row:
            say(f"  - {row['method']} failed: {row['error']}")
    if found.best is not None:
        ties = f", tied with {', '.join(found.tied)} (within a standard error of the difference)" if found.tied else ""
        say(f"Lowest negative log-likelihood: {found.best}{ties}.")
        say(f"To train it: bedl fit {found.data} --method {found.best}")


def _cell(row: dict[str, Any], name: str, share: bool) -> str:
    from bedl.report.text import number, percent

    value = row.get(name)
    if value is None or not math.isfinite(value):
        return "–"
    shown = percent(value) if share else number(value, 3)
    error = row.get(f"{name}_se")
    return shown if not error else f"{shown} ± {percent(error) if share else number(error, 1)}"
