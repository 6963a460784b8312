"""Cells → rows: through joblib, on this machine or a cluster; at any point it can be stopped, and gone on with."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from statistics import median
from typing import Any

from bedl.bench.cells import KEY, Cell
from bedl.bench.table import BenchError, Root, Table
from bedl.bench.working import attempt, source_version
from bedl.rows import Row, RowFile

__all__ = ["Progress", "row_file", "run"]

MOST_DEATHS = 3  # of workers, in a row, without a row


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
    return RowFile(path, KEY)


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

    Workers compute; this process alone writes. So a worker that is killed costs its cell's time, and no row is written
    twice: joblib's workers are started again, a Dask scheduler gives the cell to another one. Other backends of joblib
    serve as well, chosen by `joblib.parallel_config` around this call.

    Args:
        table: whose cells they are.
        cells: what is wanted.
        rows: where rows go, see `row_file`. Other processes may write to it at the same time.
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
    finished: set[Cell] = set()
    written, clock, deaths = 0, _Clock(rows.rows(), jobs), 0
    while left := [cell for cell in wanted if cell not in finished]:
        try:
            for row in _results(table, left, rows, jobs, scheduler, root, retry):
                finished.add(Cell(**{name: row[name] for name in KEY}))
                if rows.add(row, again=retry):
                    written, deaths = written + 1, 0
                    rest = [cell for cell in wanted if cell not in finished]
                    watch(Progress(row, len(finished), len(wanted), clock.left(row, rest)))
            break  # what is left now was done by other processes
        except Exception as error:
            deaths += 1
            if type(error).__name__ not in ("TerminatedWorkerError", "KilledWorker") or deaths > MOST_DEATHS:
                raise _explained(error) from error
    return written


def _explained(error: Exception) -> Exception:
    if type(error).__name__ in ("TerminatedWorkerError", "KilledWorker"):
        return BenchError(
            f"worker processes were killed {MOST_DEATHS + 1} times before any of them finished a cell. Is there too "
            "little memory? Try fewer jobs (--jobs)"
        )
    return error


def _results(
    table: Table, cells: Sequence[Cell], rows: RowFile, jobs: int, scheduler: str | None, root: Root, retry: bool
) -> Iterator[Row]:
    """Rows as they are finished, in any order."""
    from joblib import Parallel, delayed
    from joblib.parallel import get_active_backend

    def groups() -> Iterator[Any]:
        for group in table.together(cells):
            rows.refresh()  # another process may have done some by now
            own = [cell for cell in group if retry or not rows.has(cell.fields)]
            if own:
                yield delayed(attempt)(table, own, root, commit)

    commit = source_version()
    with _backend(scheduler):
        streams = getattr(get_active_backend()[0], "supports_return_generator", False)
        if jobs == 1 and scheduler is None:
            streams = True
        tasks = groups()
        while True:  # a backend that gives results at the end only is given a part at a time
            some = tasks if streams else list(itertools.islice(tasks, 4 * jobs))
            if not some:
                return
            parallel = Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered" if streams else "list")
            for found in parallel(some):
                yield from found
            if streams:
                return


def _backend(scheduler: str | None) -> AbstractContextManager[object]:
    """The cluster as joblib's backend, or the one that is active."""
    if scheduler is None:
        return nullcontext()
    try:
        import distributed
    except ModuleNotFoundError:
        raise BenchError("a scheduler needs Dask: pip install 'bedl[dask]'") from None
    from joblib import parallel_config

    try:
        client = distributed.Client(scheduler, timeout=10, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise BenchError(
            f"there is no Dask scheduler at {scheduler} ({error}). Start one with 'dask scheduler', and workers with "
            "'dask worker ADDRESS'"
        ) from None
    stack = ExitStack()
    stack.enter_context(client)
    stack.enter_context(parallel_config(backend="dask", client=client))
    return stack


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
