"""A real Dask scheduler and workers, each a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Cluster", "cluster"]

ROOT = Path(__file__).parents[2]


class Cluster:
    """Processes: a scheduler at `address`, and `workers`, in which some modules are missing."""

    def __init__(self, folder: Path, missing: Sequence[str] = ()):
        self.folder, self.file = folder, folder / "scheduler.json"
        self.code = f"import sys; sys.modules.update(dict.fromkeys({list(missing)})); "
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self.env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        listening = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", self.file)
        self.scheduler = self._start("scheduler", *listening)
        _until(self.file.exists)
        self.address: str = json.loads(self.file.read_text())["address"]
        self.workers: list[subprocess.Popen] = []

    def add_worker(self) -> subprocess.Popen:
        """One more worker, without a guard that would start it again."""
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", self.folder)
        self.workers.append(self._start("worker", self.address, *options))
        return self.workers[-1]

    def _start(self, *words: object) -> subprocess.Popen:
        log = (self.folder / "log").open("ab")
        command = [sys.executable, "-c", f"{self.code}from dask.__main__ import main; main()", *map(str, words)]
        return subprocess.Popen(command, env=self.env, stdout=log, stderr=log, cwd=self.folder)

    def stop(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


@contextmanager
def cluster(folder: Path, workers: int = 2, missing: Sequence[str] = ()) -> Iterator[Cluster]:
    """A scheduler and so many workers, which end with the block."""
    folder.mkdir(exist_ok=True)
    made = Cluster(folder, missing)
    try:
        for _ in range(workers):
            made.add_worker()
        yield made
    finally:
        made.stop()


def _until(condition: Callable[[], bool], seconds: float = 60) -> None:
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        time.sleep(0.05)
    raise TimeoutError(f"{condition} did not come true")
