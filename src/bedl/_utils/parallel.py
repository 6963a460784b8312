"""Calls that do not depend on each other, through joblib: on this machine, a Dask cluster, any backend of joblib's."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from bedl._utils.errors import BEDLError

PATIENCE = 10  # seconds to wait for a scheduler


class ClusterError(BEDLError, ConnectionError):
    """There is no cluster where one was said to be, or it cannot be used."""


class WorkersKilledError(BEDLError, RuntimeError):
    """A worker process was killed, and with it what it was at; what was finished has been given out."""


Call = tuple[Callable[..., Any], tuple[Any, ...]]


def as_finished(calls: Iterable[Call], *, jobs: int = 1, scheduler: str | None = None) -> Iterator[Any]:
    """The results of calls, in the order in which they are finished. Calls are taken from the iterable as they are due.

    A worker of this machine that is killed is a `WorkersKilledError`: call again with what is left. A Dask scheduler
    gives what a killed worker was at to another one, a few times, before that is an error, too; without the scheduler
    it is a `ClusterError`.

    Args:
        calls: (function, arguments) each.
        jobs: processes on this machine.
        scheduler: address of a Dask scheduler, such as "tcp://10.0.0.1:8786", whose workers are used instead.

    Example:
        >>> sorted(as_finished([(pow, (2, n)) for n in range(4)]))
        [1, 2, 4, 8]
    """
    from joblib import Parallel, delayed
    from joblib.parallel import get_active_backend

    tasks = (delayed(function)(*arguments) for function, arguments in calls)
    with _backend(scheduler):
        alone = jobs == 1 and scheduler is None
        streams = alone or getattr(get_active_backend()[0], "supports_return_generator", False)
        try:
            while True:  # a backend that gives results at the end only is given a part at a time
                some = tasks if streams else list(itertools.islice(tasks, 4 * jobs))
                if not some:
                    return
                kind = "generator_unordered" if streams else "list"
                yield from Parallel(n_jobs=jobs, batch_size=1, return_as=kind)(some)
                if streams:
                    return
        except Exception as error:
            if type(error).__name__ in ("TerminatedWorkerError", "KilledWorker"):
                raise WorkersKilledError(
                    "worker processes were killed. Is there too little memory? Try fewer at a time"
                ) from error
            if scheduler is not None and type(error).__name__ in ("FutureCancelledError", "CommClosedError"):
                raise ClusterError(
                    f"the Dask scheduler at {scheduler} is gone. What was finished is kept: start it and its workers "
                    "again, and give the same command"
                ) from error
            raise


def _backend(scheduler: str | None) -> AbstractContextManager[object]:
    """The cluster as joblib's backend, or the one that is active."""
    if scheduler is None:
        return nullcontext()
    try:
        import distributed
    except ModuleNotFoundError:
        raise ClusterError("a scheduler needs Dask: pip install 'bedl[dask]'") from None
    from joblib import parallel_config

    try:
        client = distributed.Client(scheduler, timeout=PATIENCE, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"there is no Dask scheduler at {scheduler} ({error}). Start one with 'dask scheduler', and workers with "
            "'dask worker ADDRESS'"
        ) from None
    stack = ExitStack()
    stack.enter_context(_silent("distributed.client"))
    stack.enter_context(client)
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError:
        stack.close()
        raise ClusterError(
            f"the Dask scheduler at {scheduler} has no workers. Start some: dask worker {scheduler}"
        ) from None
    stack.enter_context(parallel_config(backend=_dask_backend(client)))
    return stack


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Without what a logger says: a scheduler that is gone is an error here, and no traceback beside it."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _dask_backend(client: Any) -> Any:
    """joblib's own backend, with an ear for errors: it would wait for ever for a call whose workers all died."""
    from joblib._dask import DaskDistributedBackend

    class Failed:
        def __init__(self, error: BaseException):
            self.error = error

    class Told(DaskDistributedBackend):
        def effective_n_jobs(self, n_jobs: int) -> int:
            # joblib makes the calls of one job in this process, not on the only worker that is there yet
            return max(2, super().effective_n_jobs(n_jobs))

        def submit(self, func: Any, callback: Any = None) -> Any:
            future = super().submit(func, callback)

            def tell(done: Any) -> None:
                if callback is not None and done.exception() is not None:
                    callback(Failed(done.exception()))

            future.add_done_callback(tell)
            return future

        def retrieve_result_callback(self, out: Any) -> Any:
            if isinstance(out, Failed):
                raise out.error
            return super().retrieve_result_callback(out)

    return Told(client=client)
