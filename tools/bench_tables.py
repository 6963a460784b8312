"""`python tools/bench_tables.py > docs/tables.md`: all rows of results/ as tables, beside the published figures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from bedl.bench import PRESETS, ResultTable, Table, sheets, shown
from bedl.bench.presets import SAME
from bedl.bench.runner import row_file
from bedl.bench.tables import get, names

RESULTS = Path(__file__).parents[1] / "results"
INTRODUCTION = """# Tables

Generated from the rows in `results/` by `make docs`; discussed in [results](results.md). *paper*, *authors* and *best*
are the presets of `bedl bench`: the settings of the paper's text, those of its authors' public code, and the default
settings of every method. A figure of fewer splits than the table has is followed by their number in parentheses.
Published figures are from the paper, or from the source named in the line.
"""


CELLS = """## The paper's cells

Every figure of the paper's tables of which there is a method here: as published, under the two readings of its
settings, of the same method with its default settings, and of the default method, `auto`.

| | | published | paper | authors | best | auto |
| --- | --- | --- | --- | --- | --- | --- |"""


def page() -> str:
    """The page, as Markdown."""
    parts = [INTRODUCTION, CELLS, *(line for name in ("uci", "ood", "gp") for line in _cells(get(name), _sheets(name)))]
    parts.append("")
    for name in names():
        table, made = get(name), _sheets(name)
        if made:
            parts += [f"## {table.title}\n\n`bedl bench {name}`. {table.about}\n"]
            parts += [_sheet(table, sheet) for sheet in made]
    return "\n".join(parts)


def _sheets(name: str) -> list[ResultTable]:
    return sheets(get(name), row_file(RESULTS / f"{name}.jsonl").rows())


def _cells(table: Table, made: list[ResultTable]) -> Iterator[str]:
    """A line for each figure that the paper has of a method of ours."""
    for sheet in made:
        lines = {(SAME.get(line.label, line.label), line.source): line for line in sheet.lines}
        for method in dict.fromkeys(SAME.values()):
            published = lines.get((method, "published"))
            for number, (head, column) in enumerate(zip(sheet.head, sheet.columns, strict=True)):
                if published is not None and published.entries[number] is not None:
                    sources = [(method, "published"), *((method, preset) for preset in PRESETS), ("auto", "best")]
                    found = [lines[key].entries[number] if key in lines else None for key in sources]
                    figures = [shown(entry, column) for entry in found]
                    yield "| " + " | ".join([f"{table.name}: {sheet.title}, {head}", published.label, *figures]) + " |"


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
