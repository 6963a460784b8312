"""What is shown: results on stdout, everything else on stderr, bars only where somebody looks on."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bedl._utils.errors import BEDLError, on_command_line
from bedl._utils.io import remedy

if TYPE_CHECKING:
    from bedl.bench import Progress, ResultTable, Table
    from bedl.estimators.tabular import Comparison

__all__ = [
    "bar",
    "explained",
    "fit_command",
    "names",
    "numbers",
    "print_comparison",
    "print_json",
    "print_scores",
    "print_sheets",
    "say",
    "say_error",
    "say_failures",
    "say_notes",
    "sizes",
    "stem",
    "watching",
    "widths",
]


def say(text: str) -> None:
    """A line on stderr; what could steer a terminal is shown instead of done."""
    typer.echo(_harmless(text), err=True)


def say_error(text: str) -> None:
    """What went wrong."""
    typer.echo(typer.style("Error: ", fg=typer.colors.RED, bold=True) + _harmless(text), err=True)


def say_notes(notes: Sequence[str], most: int = 12) -> None:
    """Sentences, as a list that stays readable."""
    for note in notes[:most]:
        say(f"  - {on_command_line(note)}")
    if len(notes) > most:
        say(f"  - and {len(notes) - most} more, in model.json")


def print_json(document: Any) -> None:
    """One document on stdout, strict JSON: a number that is not finite becomes null."""
    typer.echo(json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False, default=str))


def print_scores(scores: Mapping[str, float | None], title: str) -> None:
    """The scores as a table on stdout, in the order they are computed."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from bedl.evaluation.report.layout import number, percent
    from bedl.evaluation.tasks import meanings

    table = Table(title=Text(_harmless(title)), title_justify="left", box=None, pad_edge=False)
    table.add_column("score", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("meaning", style="dim")
    known = meanings()
    for name, found in scores.items():
        meaning, value = known[name], math.nan if found is None else found
        table.add_row(meaning.label, percent(value) if meaning.share else number(value), meaning.note)
    Console(highlight=False).print(table)


@contextmanager
def bar(text: str, total: int | None, unit: str = "rows") -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, if that is a terminal; advance it with the number of rows that are done."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn(unit),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(_harmless(text), total=total)
        yield lambda count: progress.advance(task, count)


def _harmless(text: str) -> str:
    """Text whose control characters, which may come from a file, are written out."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# Comparisons and benchmarks as tables on stdout, and progress row by row.


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


def print_sheets(table: Table, made: Sequence[ResultTable]) -> None:
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
    """The summary as a table on stdout; what is not in it, and why, and which is the best, on stderr."""
    from rich.console import Console
    from rich.table import Table as Grid

    from bedl.evaluation.report.parts import comparison_table

    head, rows = comparison_table(found.to_dict())
    table = Grid(title=f"{found.target} of {found.data}, {found.task}", title_justify="left", box=None, pad_edge=False)
    table.add_column(head[0], no_wrap=True)
    for label in head[1:]:
        table.add_column(label, justify="right")
    for name, cells in rows:
        table.add_row(name, *(f"{shown} ± {error}" if error else shown for shown, error in cells))
    Console(highlight=False, width=None if sys.stdout.isatty() else 200).print(table)
    for name, why in found.refused.items():
        say(f"  - {name}: {why}")
    for row in found.summary():
        if "error" in row:
            say(f"  - {row['method']} failed: {row['error']}")
    if found.best is not None:
        ties = f", tied with {', '.join(found.tied)} (within a standard error of the difference)" if found.tied else ""
        say(f"Lowest negative log-likelihood: {found.best}{ties}.")


# What the words of options mean.


def names(text: str | None) -> list[str] | None:
    """Words with commas between them."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def numbers(text: str | None, option: str) -> list[int] | None:
    """Numbers and ranges: "0-2,7" is 0, 1, 2, 7."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise typer.BadParameter(f"{text!r} is no list of numbers such as 0-4 or 0,2,7", param_hint=option)
        found += range(int(first), int(last or first) + 1)
    return found


def widths(text: str) -> tuple[int, ...] | None:
    """Of hidden layers; None for "auto"."""
    if text == "auto":
        return None
    found = tuple(int(part) for part in text.split(",")) if re.fullmatch(r"\d+(,\d+)*", text) else ()
    if not found or min(found) < 1:
        raise typer.BadParameter(f"widths of hidden layers such as 50 or 100,50, not {text!r}")
    return found


def sizes(text: str) -> tuple[int, ...]:
    """The shape of an input."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise typer.BadParameter(f"a shape such as 1,3,32,32, not {text!r}", param_hint="--input")
    return tuple(map(int, text.split(",")))


# Errors as sentences for somebody who does not read Python.


def explained(error: Exception) -> str:
    """An exception as a sentence for somebody who does not read Python."""
    if isinstance(error, BEDLError):
        return on_command_line(str(error))
    if isinstance(error, MemoryError):
        return "there is not enough memory for this. Close other programs, or take fewer columns (--ignore)"
    if isinstance(error, OSError) and error.strerror:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        return f"{what}. {remedy(error)}"
    if isinstance(error, ImportError):
        missing = isinstance(error, ModuleNotFoundError) and error.name
        return f"{error.name} is not installed: pip install 'bedl[all]'" if missing else str(error)
    return f"{type(error).__name__}: {error}\n--debug shows where this comes from"


# Commands as a person would type them.


def stem(data: str) -> str:
    """The name of a table without folders and endings: `a/houses.csv.gz` → `houses`, `uci:yacht` → `uci-yacht`."""
    name = re.sub(r"\.(csv|tsv|parquet|pq|xlsx)(\.gz|:.*)?$", "", Path(data).name, flags=re.IGNORECASE)
    return "table" if data == "-" else name.replace(":", "-")


def fit_command(data: str, place: Path, options: dict[str, Any]) -> str:
    """The command line `bedl fit …` that asks for these options."""
    defaults = {
        "task": "auto",
        "method": "auto",
        "holdout": 0.1,
        "ensemble": 1,
        "seed": 0,
        "decimal": "auto",
        "date_order": "auto",
    }
    words = ["bedl", "fit", data, "--out", str(place)]
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False or value == defaults.get(name):
            continue
        if name == "hidden":
            words += [option, ",".join(map(str, value))]
        elif isinstance(value, (list, tuple)):
            words += [word for item in value for word in (option, item)]
        else:
            words += [option] if value is True else [option, str(value)]
    return shlex.join(words)
