"""Rows on disk: whole, once each, whatever is killed and whoever else writes."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bedl._utils.io import RowFile, RowFileError

KEY = ("method", "split")


def row(split: int, **more: object) -> dict:
    return {"method": "bedl", "split": split, "rmse": 0.5 * split, **more}


def test_what_was_added_is_there_for_the_next_reader(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    first = RowFile(path, KEY)
    assert first.add(row(0))
    assert first.add(row(1))
    assert RowFile(path, KEY).rows() == [row(0), row(1)]
    assert len(path.read_text().splitlines()) == 2


def test_a_row_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    one, other = RowFile(path, KEY), RowFile(path, KEY)
    assert one.add(row(0, who="one"))
    assert not other.add(row(0, who="other"))  # which has not read what the first one wrote
    assert other.get(row(0))["who"] == "one"
    assert len(path.read_text().splitlines()) == 1


def test_a_failure_gives_way_only_if_asked(tmp_path: Path) -> None:
    rows = RowFile(tmp_path / "rows.jsonl", KEY)
    rows.add(row(0, failed="ValueError: no"))
    assert rows.has(row(0))
    assert not rows.has(row(0), failed=False)
    assert not rows.add(row(0, failed=None))
    assert rows.add(row(0, failed=None), again=True)
    assert not rows.add(row(0, failed=None, rmse=9.0), again=True)  # what went well stands
    assert RowFile(rows.path, KEY).rows() == [row(0, failed=None)]


@pytest.mark.parametrize("torn", ['{"method": "be', '{"method": "bedl", "split": 1', "\x00\x00"])
def test_half_a_line_is_not_there_and_goes_with_the_next_row(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row(0)) + "\n" + torn)
    rows = RowFile(path, KEY)
    assert rows.rows() == [row(0)]
    assert rows.add(row(1))
    assert [json.loads(line) for line in path.read_text().splitlines()] == [row(0), row(1)]


def test_a_last_row_without_line_break_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row(0)))
    rows = RowFile(path, KEY)
    assert not rows.add(row(0, rmse=9.0))
    assert rows.add(row(1))
    assert RowFile(path, KEY).rows() == [row(0), row(1)]


def test_a_long_torn_line_is_removed_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row(0)) + "\n" + '{"x": "' + "y" * 200_000)
    rows = RowFile(path, KEY)
    rows.add(row(1))
    assert RowFile(path, KEY).rows() == [row(0), row(1)]


@pytest.mark.parametrize("line", ["not json", "[1, 2]", '{"method": "bedl"}', '{"method": [], "split": 1}'])
def test_what_is_no_row_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(RowFileError, match=r"rows\.jsonl holds a line that is no row with method, split"):
        RowFile(path, KEY)


def test_numbers_of_numpy_and_those_that_are_none(tmp_path: Path) -> None:
    rows = RowFile(tmp_path / "rows.jsonl", KEY)
    rows.add(row(np.int64(0), score=np.float32(0.25), bad=math.nan, deep={"worse": [math.inf, (1, np.zeros(2))]}))
    found = RowFile(rows.path, KEY).rows()[0]
    assert found["split"] == 0
    assert found["score"] == 0.25
    assert found["bad"] is None
    assert found["deep"] == {"worse": [None, [1, [0.0, 0.0]]]}


WRITER = """
import sys
from bedl._utils.io import RowFile
rows = RowFile(sys.argv[1], ("method", "split"))
for split in range(int(sys.argv[2])):
    rows.add({"method": "bedl", "split": split, "who": sys.argv[3], "text": "x" * 5000})
"""


def write(path: Path, count: int, who: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(count), who])


def test_two_processes_on_one_file_write_each_row_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    writers = [write(path, 150, who) for who in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(row["split"] for row in found) == list(range(150))


def test_a_kill_costs_at_most_the_row_under_way(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    writer = write(path, 100_000, "a")
    while not path.exists() or path.stat().st_size < 200_000:
        assert writer.poll() is None
        time.sleep(0.01)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    rows = RowFile(path, KEY)
    done = len(rows.rows())
    assert done >= 30
    assert [row["split"] for row in rows.rows()] == list(range(done))
    assert rows.add(row(done))
    assert len(path.read_text().splitlines()) == done + 1
