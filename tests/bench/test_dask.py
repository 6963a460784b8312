"""Cells on a Dask cluster of which a worker is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from bedl._utils.parallel import ClusterError, WorkersKilledError, as_finished
from bedl.bench import Choice, row_file, run
from tests.bench.clusters import cluster
from tests.bench.test_running import keys, wanted
from tests.bench.toys import Toy

pytest.importorskip("distributed")
BOTH = Choice(presets=("paper", "best"))


@pytest.mark.slow  # it starts a scheduler and two workers
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_killed_worker_costs_no_cell(tmp_path: Path) -> None:
    table, path = Toy(tmp_path, seconds=0.3), tmp_path / "toy.jsonl"
    with cluster(tmp_path / "dask") as found:
        victim = found.workers[0]

        def kill_half_way() -> None:
            marks = tmp_path / "marks"
            while not marks.exists() or sum(str(victim.pid) in line for line in marks.read_text().splitlines()) < 3:
                time.sleep(0.02)
            victim.send_signal(signal.SIGKILL)

        killer = threading.Thread(target=kill_half_way, daemon=True)
        killer.start()
        run(table, table.cells(BOTH), row_file(path), scheduler=found.address)
        killer.join(30)
        assert victim.poll() == -signal.SIGKILL
    assert keys(path) == Counter(wanted(table))
    assert not any(row["failed"] for row in row_file(path).rows())


@pytest.mark.slow  # it starts a scheduler and two workers
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_call_that_kills_its_workers_is_an_error_and_no_wait_for_ever(tmp_path: Path) -> None:
    found: list[object] = []

    def wait() -> None:
        with cluster(tmp_path / "dask", forgiving=0) as made:
            try:
                found.extend(as_finished([(os.abort, ()), (abs, (-1,))], scheduler=made.address))
            except WorkersKilledError as error:
                found.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(60)
    assert not waiting.is_alive()
    assert isinstance(found[-1], WorkersKilledError)


@pytest.mark.slow  # it starts a scheduler and a worker
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_worker_is_a_cluster_too(tmp_path: Path) -> None:
    with cluster(tmp_path / "dask", workers=1) as found:
        (number,) = as_finished([(os.getpid, ())], scheduler=found.address)
        assert number == found.workers[0].pid


@pytest.mark.slow  # it starts a scheduler and two workers
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_scheduler_that_is_gone_is_an_error_that_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with cluster(tmp_path / "dask") as found:
        results = as_finished([(time.sleep, (0.3,))] * 40, scheduler=found.address)
        next(results)
        found.scheduler.kill()
        with pytest.raises(ClusterError, match="is gone"):
            list(results)
    assert not [record for record in caplog.records if record.name == "distributed.client"]
