"""One JSON row per finished cell, so that a bench can be stopped at any point."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from bedl._utils.io import Row, RowFile
from bedl.bench.runner import source_version

__all__ = ["Cell", "read", "run"]

KEY = ("table", "dataset", "method", "part", "split")
Cell = Row


def read(path: Path) -> list[Cell]:
    """All rows of a file; none where there is none. A number that is not finite is null there, and NaN here."""
    return [{**row, "metrics": _numbers(row["metrics"])} for row in RowFile(path, KEY).rows()]


def _numbers(metrics: dict[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in metrics.items()}


def run(cells: Iterable[Cell], work: Callable[[Cell], dict[str, float]], path: Path) -> None:
    """Work through the cells that are not there yet. A cell that fails is a row with its reason.

    Args:
        cells: what is to be done, by the `KEY`.
        work: the metrics of a cell.
        path: where rows go.
    """
    rows, commit = RowFile(path, KEY), source_version()
    for cell in cells:
        if rows.has(cell):
            continue
        start = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                row = {**cell, "metrics": work(cell), "failed": None}
        except Exception as error:
            row = {**cell, "metrics": {}, "failed": f"{type(error).__name__}: {error}"[:300]}
        row |= {"commit": commit, "cpu_seconds": round(time.process_time() - start, 1)}
        rows.add(row)
        print(_line(row), flush=True)


def _line(row: Cell) -> str:
    scores = row["failed"] or "  ".join(f"{name} {value:.3f}" for name, value in row["metrics"].items())
    return f"{row['dataset']:>28} {row['method']:>14} {row['split']:>3}  {scores}  ({row['cpu_seconds']} s)"
