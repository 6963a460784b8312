"""`python -m benchmarks.quality TABLE`: rows into results/TABLE.jsonl, and their means. Goes on where it stopped."""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

from bedl.bench.benchmark import mean_and_error
from benchmarks.quality import active, impossible, intervals, ranks, rows, users

TABLES: dict[str, Any] = {
    "targets": users, "classes": users, "active": active, "impossible": impossible,
    **dict.fromkeys(("tails", "groups", "time"), intervals),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--methods", default="auto")
    parser.add_argument("--part", choices=("validation", "test"), default="validation")
    parser.add_argument("--splits", type=int, nargs="+", default=list(range(20)))
    parser.add_argument("--only", nargs="*", default=[], help="data sets; all by default")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    path = options.out or Path("results", f"{options.table}.jsonl")
    table = TABLES[options.table]
    cells = table.cells(options.table, options.methods.split(","), options.part, options.splits, options.only)
    rows.run(cells, table.work, path)
    found = rows.read(path)
    summary(found, options.table, options.part)
    if table is users:
        for method, values in ranks.ranked(found, options.table, options.part).items():
            print(f"{method:>22}  " + "  ".join(f"{name} {value:.3f}" for name, value in values.items()))


def summary(found: list[rows.Cell], table: str, part: str) -> None:
    """Means and standard errors over the splits."""
    groups: dict[tuple[str, str], list[rows.Cell]] = defaultdict(list)
    for row in found:
        if row["table"] == table and row["part"] == part and not row["failed"]:
            groups[row["dataset"], row["method"]].append(row)
    for (dataset, method), members in sorted(groups.items()):
        names = members[0]["metrics"]
        texts = []
        for name in names:
            mean, error = mean_and_error(row["metrics"][name] for row in members)
            texts.append(f"{name} {mean:.3f}" + ("" if error is None else f" ± {error:.3f}"))
        print(f"{dataset:>28} {method:>14} n={len(members)}  " + "  ".join(texts))


if __name__ == "__main__":
    main()
