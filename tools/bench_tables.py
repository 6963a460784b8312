"""`python tools/bench_tables.py > docs/tables.md`: all rows of results/ as tables, beside the published figures."""

from __future__ import annotations

import sys
from pathlib import Path

from bedl.bench import ResultTable, Table, sheets, shown
from bedl.bench.runner import row_file
from bedl.bench.tables import get, names

RESULTS = Path(__file__).parents[1] / "results"
INTRODUCTION = """# Tables

Generated from the rows in `results/` by `make docs`; discussed in [results](results.md). *paper*, *authors* and *best*
are the presets of `bedl bench`: the settings of the paper's text, those of its authors' public code, and the default
settings of every method. A figure of fewer splits than the table has is followed by their number in parentheses.
Published figures are from the paper, or from the source named in the line.
"""


def page() -> str:
    """The page, as Markdown."""
    parts = [INTRODUCTION]
    for name in names():
        table, rows = get(name), row_file(RESULTS / f"{name}.jsonl").rows()
        made = sheets(table, rows)
        if made:
            parts += [f"## {table.title}\n\n`bedl bench {name}`. {table.about}\n"]
            parts += [_sheet(table, sheet) for sheet in made]
    return "\n".join(parts)


def _sheet(table: Table, sheet: ResultTable) -> str:
    head = ["", "", *sheet.head]
    lines = [
        [
            line.label,
            line.source,
            *(shown(entry, column) for entry, column in zip(line.entries, sheet.columns, strict=True)),
        ]
        for line in sheet.lines
        if any(entry is not None for entry in line.entries)
    ]
    grid = "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines))
    return f"### {table.name}: {sheet.title}\n\n{grid}\n"


if __name__ == "__main__":
    sys.stdout.write(page())
