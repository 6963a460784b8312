"""`bedl bench`: the cells of a table → rows → figures beside the published ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bedl.cli.options import Debug, Json, Overwrite
from bedl.cli.screen import bar, print_json, say

if TYPE_CHECKING:
    from bedl.bench import Progress, Sheet, Table

__all__ = ["bench"]


def bench(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table, or 'page'; 'list' shows them.")],
    preset: Annotated[
        str, typer.Option("--preset", "-p", help="paper, best, or both: whose settings methods are run with.")
    ] = "both",
    datasets: Annotated[
        str | None, typer.Option("--datasets", metavar="NAMES", help="With commas.", show_default="all of the table")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option("--methods", "-m", metavar="NAMES", help="With commas.", show_default="the table's own"),
    ] = None,
    splits: Annotated[
        str | None, typer.Option("--splits", metavar="NUMBERS", help="Such as 0-4 or 0,2,7.", show_default="all")
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", metavar="NUMBERS", help="Of what is drawn, such as 0-2.")] = "0",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes on this machine.")] = 1,
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", metavar="ADDRESS", help="A Dask scheduler, whose workers run the cells."),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run cells again that failed.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Run nothing, show what is there.")] = False,
    results: Annotated[
        Path, typer.Option("--results", metavar="FOLDER", help="Where rows are: FOLDER/TABLE.jsonl.")
    ] = Path("results"),
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page.")] = Path("bench.html"),
    overwrite: Overwrite = False,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", help="Where data sets are; $BEDL_DATA, else ~/.cache/bedl."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run the paper's tables, and show our figures beside the published ones.

    A finished cell, that is one method on one split of a data set, is a line of JSON in FOLDER/TABLE.jsonl: its
    settings, scores, seconds and versions, or why it failed. The same command goes on where it was stopped. The preset
    paper has the settings of the paper's text and names each deviation; best runs methods as they come. 'bedl bench
    page' makes one HTML page of all rows that are there.

    Examples:

      bedl bench uci --preset paper --datasets boston,energy --methods bedl,bedl+reg --jobs 2

      bedl bench uci --show

      bedl bench gap --scheduler tcp://10.0.0.1:8786

      bedl bench page --out bench.html
    """
    from bedl import bench as room

    if table == "list":
        for name in room.names():
            typer.echo(f"{name:<16}{room.get(name).title}")
        return
    if table == "page":
        _page(results, out, overwrite, as_json)
        return
    found, rows = room.get(table), room.row_file(results / f"{table}.jsonl")
    if not show:
        choice = room.Choice(
            _presets(preset), _names(datasets), _names(methods), _numbers(splits), _numbers(seeds) or (0,)
        )
        cells = list(found.cells(choice))
        if scheduler is None:
            found.check(choice, data)
        with _watching(len([cell for cell in cells if not rows.has(cell.fields, failed=not retry)])) as watch:
            room.run(found, cells, rows, jobs=jobs, scheduler=scheduler, root=data, retry=retry, watch=watch)
    made = room.sheets(found, rows.rows())
    if as_json:
        print_json({"table": table, "rows": str(rows.path), "sheets": [_as_json(sheet) for sheet in made]})
    else:
        _print(found, made)
    _say_failures(rows.rows())


def _page(results: Path, out: Path, overwrite: bool, as_json: bool) -> None:
    from bedl.bench.page import write_page

    written = write_page(results, out, overwrite=overwrite)
    if as_json:
        print_json({"page": str(written.resolve())})
    else:
        say(f"The page is {written.resolve()}")


# -- what is wanted ----------------------------------------------------------------------------------
def _presets(text: str) -> Any:
    from bedl.bench import PRESETS

    if text not in (*PRESETS, "both"):
        raise typer.BadParameter(f"{text!r} is none of paper, best and both", param_hint="--preset")
    return PRESETS if text == "both" else (text,)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str | None) -> list[int] | None:
    """Numbers and ranges: "0-2,7" is 0, 1, 2, 7."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise typer.BadParameter(f"{text!r} is no list of numbers such as 0-4 or 0,2,7", param_hint="--splits")
        found += range(int(first), int(last or first) + 1)
    return found


# -- what is shown -----------------------------------------------------------------------------------
@contextmanager
def _watching(total: int) -> Iterator[Any]:
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


def _print(table: Table, made: Sequence[Sheet]) -> None:
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


def _as_json(sheet: Sheet) -> dict[str, Any]:
    import dataclasses

    return {
        "title": sheet.title,
        "columns": list(sheet.head),
        "lines": [dataclasses.asdict(line) for line in sheet.lines],
    }


def _say_failures(rows: Sequence[dict[str, Any]]) -> None:
    failed = [row for row in rows if row["failed"]]
    for row in failed[:5]:
        say(f"  - {row['dataset']} {row['method']} {row['preset']} split {row['split']} failed: {row['failed']}")
    if failed:
        say(f"{len(failed)} cells failed; --retry runs them again.")
