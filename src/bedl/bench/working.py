"""What a worker does with a cell: run it, and make a row of what it came to or why it failed."""

from __future__ import annotations

import os
import platform
import subprocess
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bedl.bench.cells import Cell
from bedl.bench.table import Root, Table
from bedl.rows import Row

__all__ = ["attempt", "source_version"]

VERSIONS = ("bedl", "torch", "numpy", "scikit-learn", "gpytorch")


def attempt(table: Table, cells: Sequence[Cell], root: Root = None, commit: str | None = None) -> list[Row]:
    """The rows of a group of cells. Where the group fails as a whole, each cell is tried by itself."""
    start, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcomes = table.work_together(cells, root)
            found: list[Row] = [
                {"settings": dict(o.settings), "metrics": dict(o.metrics), "curves": dict(o.curves), "failed": None}
                for o in outcomes
            ]
        except Exception as error:
            if len(cells) > 1:
                return [row for cell in cells for row in attempt(table, [cell], root, commit)]
            found = [{"settings": {}, "metrics": {}, "curves": {}, "failed": f"{type(error).__name__}: {error}"[:500]}]
    seconds, cpu_seconds = (
        round((now - then) / len(cells), 3) for now, then in ((time.perf_counter(), start), (time.process_time(), cpu))
    )
    said = list(dict.fromkeys(f"{w.category.__name__}: {w.message}"[:200] for w in caught))[:5]
    times = {"seconds": seconds, "cpu_seconds": cpu_seconds}
    about = {"warnings": said, **times, "versions": _versions(), "commit": commit}
    return [{**cell.fields, **row, **about} for cell, row in zip(cells, found, strict=True)]


def _versions() -> dict[str, str]:
    """What the cell ran with."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in VERSIONS:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def source_version() -> str | None:
    """The version of the source; None where it is no checkout."""
    told = os.environ.get("BEDL_COMMIT")
    if told:
        return told
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() or None
