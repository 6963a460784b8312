"""Cells on a Dask cluster of which a worker is killed."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

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
        killer.join(5)
        assert victim.poll() == -signal.SIGKILL
    assert keys(path) == Counter(wanted(table))
    assert not any(row["failed"] for row in row_file(path).rows())
