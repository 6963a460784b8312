"""Cells → rows: each once, gone on with after stops, failures and kills, by one process or by several."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from bedl._utils import parallel
from bedl._utils.io import Row, RowFileError
from bedl._utils.parallel import ClusterError
from bedl.bench import BenchError, Cell, Choice, Progress, row_file, run
from tests.bench.toys import Deadly, Grouped, Toy, Twofold, marks

BOTH = Choice(presets=("paper", "best"))


def keys(path: Path) -> Counter:
    """How often each cell stands in a file."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return Counter((row["dataset"], row["method"], row["preset"], row["split"]) for row in rows)


def wanted(table: Toy, choice: Choice = BOTH) -> list[tuple]:
    return [(cell.dataset, cell.method, cell.preset, cell.split) for cell in table.cells(choice)]


def test_every_cell_is_a_row_with_all_that_it_takes_to_judge_it(tmp_path: Path) -> None:
    table, path = Toy(tmp_path), tmp_path / "toy.jsonl"
    assert run(table, table.cells(BOTH), row_file(path)) == 32
    row: Row = json.loads(path.read_text().splitlines()[3])
    assert {k: row[k] for k in ("table", "dataset", "method", "preset", "split", "seed")} == {
        "table": "toy", "dataset": "a", "method": "bedl", "preset": "paper", "split": 3, "seed": 0,
    }  # fmt: skip
    assert row["metrics"] == {"log_likelihood": -3, "error": 0.1, "odd": None}
    assert row["settings"] == {"deviations": ["made up"]}
    assert row["failed"] is None
    assert row["seconds"] >= 0
    assert row["versions"].keys() >= {"python", "bedl", "torch", "numpy"}
    assert "commit" in row


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    table, path = Toy(tmp_path), tmp_path / "toy.jsonl"
    run(table, table.cells(Choice(datasets=["a"])), row_file(path))
    assert run(table, table.cells(), row_file(path)) == 8
    assert max(Counter(marks(tmp_path)).values()) == 1
    assert run(table, table.cells(), row_file(path)) == 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_presets_that_are_the_same_run_are_run_once(tmp_path: Path, jobs: int) -> None:
    table, path = Twofold(tmp_path), tmp_path / "toy.jsonl"
    assert run(table, table.cells(BOTH), row_file(path), jobs=jobs) == 32
    assert keys(path) == Counter(wanted(table))
    assert Counter(name.rsplit("-", 2)[0] for name in marks(tmp_path)) == {
        "a-bedl": 4, "a-edl": 4, "a-auto": 4, "b-bedl": 4, "b-edl": 4, "b-auto": 4,
    }  # fmt: skip
    rows = {(row["method"], row["preset"], row["split"], row["dataset"]): row for row in row_file(path).rows()}
    one, other = rows["bedl", "paper", 3, "b"], rows["bedl", "best", 3, "b"]
    assert one["metrics"] == other["metrics"] == {"log_likelihood": -4, "error": 0.1, "odd": None}
    assert {one["settings"].get("same_run"), other["settings"].get("same_run")} in ({None, "paper"}, {None, "best"})


def test_a_run_that_is_in_the_rows_serves_the_other_preset(tmp_path: Path) -> None:
    table, path = Twofold(tmp_path), tmp_path / "toy.jsonl"
    run(table, table.cells(Choice(presets=["best"], methods=["bedl"])), row_file(path))
    assert run(table, table.cells(Choice(presets=["paper"], methods=["bedl"])), row_file(path)) == 8
    assert len(marks(tmp_path)) == 8
    assert {row["preset"] for row in row_file(path).rows() if "same_run" in row["settings"]} == {"paper"}


def test_a_shared_run_that_failed_is_tried_again_once(tmp_path: Path) -> None:
    table, path = Twofold(tmp_path), tmp_path / "toy.jsonl"
    (tmp_path / "fails").touch()
    choice = Choice(presets=("paper", "best"), methods=["bedl"], datasets=["a"])
    assert run(table, table.cells(choice), row_file(path)) == 8
    failed = [row for row in row_file(path).rows() if row["failed"]]
    assert [(row["split"], row["failed"]) for row in failed] == [(2, "ValueError: split 2 is cursed")] * 2
    (tmp_path / "fails").unlink()
    assert run(table, table.cells(choice), row_file(path), retry=True) == 2
    assert not any(row["failed"] for row in row_file(path).rows())
    assert len(marks(tmp_path)) == 5


def test_a_failure_is_a_row_with_its_reason_and_is_tried_again_on_request(tmp_path: Path) -> None:
    table, path = Toy(tmp_path), tmp_path / "toy.jsonl"
    (tmp_path / "fails").touch()
    run(table, table.cells(), row_file(path))
    failed = [row for row in row_file(path).rows() if row["failed"]]
    assert [row["failed"] for row in failed] == ["ValueError: split 2 is cursed"] * 4
    assert {row["split"] for row in failed} == {2}
    (tmp_path / "fails").unlink()
    assert run(table, table.cells(), row_file(path)) == 0
    assert run(table, table.cells(), row_file(path), retry=True) == 4
    assert not any(row["failed"] for row in row_file(path).rows())
    assert Counter(marks(tmp_path))["a-bedl-paper-2"] == 2
    assert Counter(marks(tmp_path))["a-bedl-paper-1"] == 1


def test_a_retry_that_fails_again_ends(tmp_path: Path) -> None:
    table, path = Toy(tmp_path), tmp_path / "toy.jsonl"
    (tmp_path / "fails").touch()
    run(table, table.cells(), row_file(path))
    assert run(table, table.cells(), row_file(path), retry=True) == 4


def test_progress_says_how_long_the_rest_takes(tmp_path: Path) -> None:
    table, seen = Toy(seconds=0.02), []
    run(table, table.cells(), row_file(tmp_path / "toy.jsonl"), watch=seen.append)
    assert [progress.done for progress in seen] == list(range(1, 17))
    first: Progress = seen[0]
    assert first.total == 16
    # fifteen cells like this one
    assert first.seconds_left == pytest.approx(15 * first.row["seconds"])
    assert seen[-1].seconds_left == 0


def test_a_group_is_one_run_and_falls_apart_if_it_fails(tmp_path: Path) -> None:
    table, path = Grouped(tmp_path), tmp_path / "toy.jsonl"
    (tmp_path / "group-fails").touch()
    run(table, table.cells(), row_file(path))
    assert not any(row["failed"] for row in row_file(path).rows())
    assert keys(path) == Counter(wanted(table, Choice()))


def test_processes_share_the_work(tmp_path: Path) -> None:
    table, path = Toy(tmp_path), tmp_path / "toy.jsonl"
    run(table, table.cells(BOTH), row_file(path), jobs=2)
    assert keys(path) == Counter(wanted(table))
    assert max(Counter(marks(tmp_path)).values()) == 1


def test_a_killed_process_costs_no_cell(tmp_path: Path) -> None:
    table, path = Deadly(tmp_path), tmp_path / "toy.jsonl"
    run(table, table.cells(BOTH), row_file(path), jobs=2)
    assert (tmp_path / "killed").exists()
    assert keys(path) == Counter(wanted(table))
    assert not any(row["failed"] for row in row_file(path).rows())


def test_other_backends_of_joblib_serve(tmp_path: Path) -> None:
    from joblib import parallel_config

    table, path = Toy(tmp_path), tmp_path / "toy.jsonl"
    for backend in ("threading", "multiprocessing"):  # of which the second gives no results before the end
        with parallel_config(backend=backend):
            run(table, table.cells(Choice(datasets=["a" if backend == "threading" else "b"])), row_file(path), jobs=2)
    assert keys(path) == Counter(wanted(table, Choice()))


def test_without_a_scheduler_at_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(parallel, "PATIENCE", 1)
    table = Toy()
    with pytest.raises(ClusterError, match=r"there is no Dask scheduler at tcp://127\.0\.0\.1:1"):
        run(table, table.cells(), row_file(tmp_path / "toy.jsonl"), scheduler="tcp://127.0.0.1:1")


def test_cells_are_those_that_are_wanted() -> None:
    table = Toy()
    assert len(list(table.cells(BOTH))) == 32
    only = Choice(("best",), ["b"], ["auto", "mc-dropout"], [1, 3], seeds=(0, 5))
    found = list(table.cells(only))
    assert found[0] == Cell("toy", "b", "auto", "best", 1, 0)
    assert len(found) == 8
    assert {cell.method for cell in found} == {"auto", "mc-dropout"}
    with pytest.raises(BenchError, match="has no method 'bdel'; did you mean 'bedl'"):
        list(table.cells(Choice(methods=["bdel"])))
    with pytest.raises(BenchError, match="has no data set 'c'; there are a, b"):
        list(table.cells(Choice(datasets=["c"])))


def test_rows_that_cannot_be_written_are_refused_before_any_work(tmp_path: Path) -> None:
    table, place = Toy(tmp_path), tmp_path / "taken"
    place.touch()
    with pytest.raises(OSError, match="taken"):
        run(table, table.cells(), row_file(place / "toy.jsonl"))
    with pytest.raises(RowFileError, match="no file that rows can be read from"):
        row_file("/dev/zero")
    assert not marks(tmp_path)
