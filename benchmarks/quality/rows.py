"""One JSON row per finished cell: appended whole, never repeated, so that a bench can be stopped at any point."""

from __future__ import annotations

import json
import os
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Cell", "mean_and_error", "read", "run"]

KEYS = ("table", "dataset", "method", "part", "split")
Cell = dict[str, Any]


def read(path: Path) -> list[Cell]:
    """All rows of a file; none where there is none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(cells: Iterable[Cell], work: Callable[[Cell], dict[str, float]], path: Path) -> None:
    """Work through the cells that are not there yet. A cell that fails is a row with its reason.

    Args:
        cells: what is to be done, by the `KEYS`.
        work: the metrics of a cell.
        path: where rows go.
    """
    done, commit = {_key(row) for row in read(path)}, _commit()
    path.parent.mkdir(parents=True, exist_ok=True)
    for cell in cells:
        if _key(cell) in done:
            continue
        start = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                row = {**cell, "metrics": work(cell), "failed": None}
        except Exception as error:
            row = {**cell, "metrics": {}, "failed": f"{type(error).__name__}: {error}"[:300]}
        row["commit"] = commit
        row["cpu_seconds"] = round(time.process_time() - start, 1)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(_line(row), flush=True)


def mean_and_error(values: Iterable[float]) -> tuple[float, float]:
    """Mean and standard error."""
    array = np.asarray(list(values), dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else float("nan")


def _commit() -> str:
    """The version of the code that is measured."""
    found = (
        os.environ.get("BEDL_COMMIT")
        or subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    )
    return found.strip()


def _key(row: Cell) -> tuple[Any, ...]:
    return tuple(row[key] for key in KEYS)


def _line(row: Cell) -> str:
    scores = row["failed"] or "  ".join(f"{name} {value:.3f}" for name, value in row["metrics"].items())
    return f"{row['dataset']:>28} {row['method']:>14} {row['split']:>3}  {scores}  ({row['cpu_seconds']} s)"
