"""What a worker does with a cell: run it, and make a row of what it came to or why it failed."""

from __future__ import annotations

import dataclasses
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

from bedl._utils.io import Row, RowFile
from bedl._utils.parallel import Call, WorkersKilledError, as_finished
from bedl.bench.benchmark import KEY, BenchError, Cell, Root, Table

VERSIONS = ("bedl", "torch", "numpy", "scikit-learn", "gpytorch")


def run_one(table: Table, cells: Sequence[Cell], root: Root = None, commit: str | None = None) -> list[Row]:
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
                return [row for cell in cells for row in run_one(table, [cell], root, commit)]
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


# Cells → rows: through joblib, on this machine or a cluster; at any point it can be stopped, and gone on with.


MAX_DEATHS = 3  # of workers, in a row, without a row


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        row: the row that was finished last.
        done, total: cells of this run.
        seconds_left: about how long the rest takes.
    """

    row: Row
    done: int
    total: int
    seconds_left: float


def row_file(path: str | os.PathLike[str]) -> RowFile:
    """The rows of cells in a file; the last row of a cell counts."""
    return RowFile(path, KEY, fault=_fault)


def _fault(row: Row) -> str | None:
    """What keeps a row from being shown."""
    metrics = row.get("metrics")
    if not isinstance(metrics, dict) or not all(value is None or _is_number(value) for value in metrics.values()):
        return "its metrics are no numbers by name"
    if "failed" not in row or not _is_number(row.get("seconds")):
        return "it does not say how long it took, or whether it failed"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def run(
    table: Table,
    cells: Iterable[Cell],
    rows: RowFile,
    *,
    jobs: int = 1,
    scheduler: str | None = None,
    root: Root = None,
    retry: bool = False,
    watch: Callable[[Progress], object] = lambda progress: None,
) -> int:
    """Work through the cells that are not there yet, a row each as it is finished. A cell that fails is a row, too.

    Presets of the same run (`Table.equivalent_runs`) share it, with rows that are there already, too.

    Workers compute; this process alone writes. So a worker that is killed costs its cell's time, and no row is written
    twice: joblib's workers are started again, a Dask scheduler gives the cell to another one. Other backends of joblib
    serve as well, chosen by `joblib.parallel_config` around this call.

    Args:
        table: whose cells they are.
        cells: what is wanted.
        rows: where rows go, see `row_file`. Other processes may write to it at the same time: what they have finished
            is not begun, and what two have begun is written once.
        jobs: processes on this machine.
        scheduler: address of a Dask scheduler, such as "tcp://10.0.0.1:8786", whose workers are used instead.
        root: where data sets are, there where cells run; $BEDL_DATA by default.
        retry: run cells again that failed before.
        watch: is told of every row.

    Returns:
        how many rows were written
    """
    rows.refresh()
    wanted = [cell for cell in cells if not rows.has(cell.fields, failed=not retry)]
    if wanted:
        rows.make_ready()
    finished: set[Cell] = set()
    written, clock, deaths = 0, _Clock(rows.rows(), jobs), 0
    while left := [cell for cell in wanted if cell not in finished]:
        try:
            for row in _results(table, left, rows, jobs, scheduler, root, retry):
                finished.add(Cell(**{name: row[name] for name in KEY}))
                written, deaths = written + rows.add(row, again=retry), 0
                rest = [cell for cell in wanted if cell not in finished]
                watch(Progress(row, len(finished), len(wanted), clock.left(row, rest)))
            break  # what is left now was done by other processes
        except WorkersKilledError as error:
            deaths += 1
            if deaths > MAX_DEATHS:
                names = ", ".join(str(cell) for cell in wanted if cell not in finished)
                raise BenchError(
                    f"worker processes were killed {deaths} times without finishing any of {names[:200]}. Is there too "
                    "little memory? Try fewer jobs (--jobs), or leave these out"
                ) from error
    return written


def _results(
    table: Table, cells: Sequence[Cell], rows: RowFile, jobs: int, scheduler: str | None, root: Root, retry: bool
) -> Iterator[Row]:
    """Rows as they are finished, in any order; each is in `rows` when the next is asked for."""
    commit = source_version()
    others = {cell: [equivalent for equivalent in table.equivalent_runs(cell) if equivalent != cell] for cell in cells}

    def relabelled(wanted: Iterable[Cell], failed: bool = False) -> Iterator[Row]:
        for cell in wanted:
            found = (rows.get(equivalent.fields) for equivalent in others[cell])
            row = next((row for row in found if row is not None and (failed or not row["failed"])), None)
            if row is not None:
                yield table.relabelled(cell, row)

    def calls() -> Iterator[Call]:
        for group in table.together(_first_of_each_run(cells, others)):
            rows.refresh()  # another process may have done some by now
            done = {cell for cell in group if not retry and rows.has(cell.fields)}
            done.update(cell for cell in group if next(relabelled([cell]), None) is not None)
            own = [cell for cell in group if cell not in done]
            if own:
                yield run_one, (table, own, root, commit)

    yield from relabelled(cells)
    for found in as_finished(calls(), jobs=jobs, scheduler=scheduler):
        yield from found
        done = {Cell(**{name: row[name] for name in KEY}) for row in found}
        yield from relabelled([cell for cell in cells if done.intersection(others[cell])], failed=True)
    yield from relabelled(cells)  # from rows that other processes wrote meanwhile


def _first_of_each_run(cells: Sequence[Cell], others: Mapping[Cell, Sequence[Cell]]) -> list[Cell]:
    """Without those whose run another one's is."""
    first: dict[Cell, None] = {}
    for cell in cells:
        if not any(equivalent in first for equivalent in others[cell]):
            first[cell] = None
    return list(first)


class _Clock:
    """How long the rest takes, by cells of the same kind that are done: data sets differ by orders of magnitude."""

    def __init__(self, rows: Sequence[Row], jobs: int):
        self.jobs = max(jobs, 1)
        self.seconds: dict[tuple[str, ...], list[float]] = {}
        for row in rows:
            self._note(row)

    def _note(self, row: Row) -> None:
        if not row.get("failed"):
            for kind in _kinds(row["dataset"], row["method"], row["preset"]):
                self.seconds.setdefault(kind, []).append(float(row["seconds"]))

    def left(self, row: Row, cells: Sequence[Cell]) -> float:
        self._note(row)
        return sum(self._of(cell) for cell in cells) / self.jobs

    def _of(self, cell: Cell) -> float:
        kinds = _kinds(cell.dataset, cell.method, cell.preset)
        return next((median(self.seconds[kind]) for kind in kinds if kind in self.seconds), 0.0)


def _kinds(dataset: str, method: str, preset: str) -> list[tuple[str, ...]]:
    return [(dataset, method, preset), (dataset, method), (dataset,), ()]
