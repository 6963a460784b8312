"""The paper's tables by one command: cells → rows on disk → figures beside the published ones → a page.

    table = bedl.bench.get("uci")
    rows = bedl.bench.row_file("results/uci.jsonl")
    bedl.bench.run(table, table.cells(Choice(datasets=["boston"])), rows, jobs=4)
    bedl.bench.sheets(table, rows.rows())

A run can be stopped at any point, and goes on where it was. A table is one file in `bedl.bench.tables`.
"""

from bedl.bench.benchmark import (
    BOTH,
    PRESETS,
    BenchError,
    Cell,
    Choice,
    Column,
    Published,
    ResultTable,
    RunResult,
    Table,
    sheets,
    shown,
)
from bedl.bench.runner import Progress, row_file, run
from bedl.bench.tables import get, names

__all__ = [
    # which tables there are, and what a table is
    "get",
    "names",
    "Column",
    "Published",
    "Table",
    # what is run
    "BOTH",
    "PRESETS",
    "Cell",
    "Choice",
    "RunResult",
    "Progress",
    "row_file",
    "run",
    # what it comes to
    "ResultTable",
    "sheets",
    "shown",
    # errors
    "BenchError",
]
