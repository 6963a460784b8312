"""All rows that are there → one HTML page: tables beside the published figures, curves, failures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bedl.bench.cells import PRESETS
from bedl.bench.running import row_file
from bedl.bench.summary import Line, Sheet, best_of, sheets, shown
from bedl.bench.table import BenchError, Table
from bedl.bench.tables import get, names
from bedl.files import refuse_unwritable, write_atomically
from bedl.report.document import document
from bedl.report.text import count, data, table, text
from bedl.rows import Row

__all__ = ["render", "write_page"]


def write_page(results: str | os.PathLike[str], path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """One page of all tables of which there are rows, whole or not at all.

    Args:
        results: the folder of the rows, ``<table>.jsonl``.
        path: where the page goes.
        overwrite: whether a file there may be replaced.
    """
    target = Path(path)
    refuse_unwritable(target, overwrite)
    found = {name: row_file(Path(results, f"{name}.jsonl")).rows() for name in names()}
    if not any(found.values()):
        raise BenchError(f"there are no rows in {results}: run a table first, such as 'bedl bench uci'")
    write_atomically(target, render(found).encode("utf-8"), overwrite)
    return target


def render(found: dict[str, list[Row]]) -> str:
    """The page, as HTML.

    Args:
        found: rows by the name of their table.
    """
    there = {name: rows for name, rows in found.items() if rows}
    rows = [row for rows in there.values() for row in rows]
    failed = sum(bool(row["failed"]) for row in rows)
    facts = {"tables": ", ".join(there), "cells": count(len(rows)), "failed": count(failed)}
    about = "".join(f"<div><dt>{text(k)}</dt><dd>{data(v, 200)}</dd></div>" for k, v in facts.items())
    sections = "".join(_sections(get(name), own) for name, own in there.items())
    main = f'<div class="cards" id="content" tabindex="-1">{sections}</div>'
    return document("Benches: ours beside the published figures", about, main)


def _sections(bench: Table, rows: Sequence[Row]) -> str:
    good = [row for row in rows if not row["failed"]]
    parts = [_sheet(bench, sheet) for sheet in sheets(bench, good)]
    return "".join([*parts, *bench.sections(good), _how(bench, rows)])


def _sheet(bench: Table, sheet: Sheet) -> str:
    """A sheet as a table; the best of ours in each column is bold."""
    title, best = f"{text(bench.title)}: {text(sheet.title)}", best_of(sheet)
    rows = []
    for line in sheet.lines:
        label = f"{data(line.label, 60)} <small>{data(line.source, 20)}</small>"
        rows.append([label, *(_entry(line, sheet, i, line in best[i]) for i in range(len(sheet.head)))])
    grid = table(f"{title}, {count(len(rows))} lines", ["method", *(data(name, 60) for name in sheet.head)], rows)
    notes = dict.fromkeys(
        f"<li>{data(line.label, 60)}: {data(line.note, 200)}</li>" for line in sheet.lines if line.note
    )
    below = f"<details><summary>Published where</summary><ul>{''.join(notes)}</ul></details>" if notes else ""
    how = f'<p class="how">{text(bench.about, 600)}</p>'
    return f'<section class="card wide"><h2>{title}</h2>{how}{grid}{below}</section>'


def _entry(line: Line, sheet: Sheet, number: int, best: bool) -> str:
    figure = text(shown(line.entries[number], sheet.columns[number]))
    if line.source not in PRESETS:
        return f"<small>{figure}</small>"
    return f"<strong>{figure}</strong>" if best else figure


def _how(bench: Table, rows: Sequence[Row]) -> str:
    """With which settings, where they are not the preset's, and what failed."""
    kinds: dict[tuple[str, str, str], None] = {}
    for row in rows:
        for sentence in row["settings"].get("deviations", ()):
            kinds[row["method"], row["preset"], sentence] = None
    deviations = "".join(f"<li>{data(m, 60)} <small>{data(p, 20)}</small>: {data(s, 300)}</li>" for m, p, s in kinds)
    failures = "".join(
        f"<li>{data(row['dataset'], 40)} {data(row['method'], 40)} {data(row['preset'], 20)}, split "
        f"{data(row['split'], 10)}: {data(row['failed'], 300)}</li>"
        for row in rows
        if row["failed"]
    )
    parts = [
        f"<details><summary>{title}</summary><ul>{items}</ul></details>"
        for title, items in (("Deviations from the preset", deviations), ("What failed", failures))
        if items
    ]
    if not parts:
        return ""
    return f'<section class="card wide"><h2>{text(bench.title)}: how it was run</h2>{"".join(parts)}</section>'
