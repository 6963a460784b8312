"""What is shown: results on stdout, everything else on stderr, bars only where somebody looks on."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from bedl.errors import on_command_line

__all__ = ["bar", "print_json", "print_scores", "say", "say_error", "say_notes"]


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

    from bedl.report.text import number, percent
    from bedl.tasks import meanings

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
