"""Tables in many files: the same numbers as in one, gone on with after a stop, on a cluster of which a worker dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas
import pytest

from bedl._utils.errors import ModelFileError
from bedl._utils.io import AtomicFile, OutputExistsError
from bedl.data import DataError, DataFileNotFoundError
from bedl.estimators.tabular import load
from bedl.estimators.tabular import many_files as room
from bedl.estimators.tabular.many_files import PredictedParts, predict_parts
from tests.bench.clusters import cluster
from tests.cli.verbs import run

GOLDEN = Path(__file__).parents[1] / "golden"
MODEL, TABLE = GOLDEN / "houses.onnx", GOLDEN / "houses.csv"


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A folder with a table in four files of Parquet, as text, so that they read as the whole does."""
    rows = pandas.read_csv(TABLE, dtype=str)
    for number in range(4):
        rows.iloc[number::4].to_csv(tmp_path / f"part-{number}.csv", index=False)
    return tmp_path


def predictions(folder: Path) -> pandas.DataFrame:
    return pandas.concat([pandas.read_csv(path) for path in sorted(folder.glob("part-*.csv"))], ignore_index=True)


def whole(parts: Path) -> pandas.DataFrame:
    model = load(MODEL)
    found = [model.predict(path, extra="ignore") for path in sorted(parts.glob("part-*.csv"))]
    return pandas.concat(found, ignore_index=True)  # type: ignore[type-var]


def test_each_file_gets_its_predictions(parts: Path) -> None:
    found = predict_parts(MODEL, str(parts / "part-*.csv"), parts / "out", extra="ignore")
    assert len(found.written) == 4
    assert sum(part.rows for part in found.written) == len(pandas.read_csv(TABLE))
    pandas.testing.assert_frame_equal(predictions(parts / "out"), whole(parts), check_dtype=False, rtol=1e-6)


def test_what_is_done_is_not_done_again(parts: Path) -> None:
    pattern = str(parts / "part-*.csv")
    predict_parts(MODEL, pattern, parts / "out", extra="ignore")
    (parts / "out" / "part-2.csv").unlink()
    kept = (parts / "out" / "part-1.csv").stat().st_mtime_ns
    found = predict_parts(MODEL, pattern, parts / "out", extra="ignore")
    assert ([part.path.name for part in found.written], found.skipped) == (["part-2.csv"], 3)
    assert (parts / "out" / "part-1.csv").stat().st_mtime_ns == kept


def replace(part: Path, rows: int = 3) -> None:
    """Other rows in the place of those of a file."""
    pandas.read_csv(TABLE, dtype=str).head(rows).to_csv(part, index=False)


def again(parts: Path) -> tuple[list[str], int, list[str]]:
    """What is written by a run, skipped, and said to have changed; the predictions are then those of the files."""
    found: PredictedParts = predict_parts(MODEL, str(parts / "part-*.csv"), parts / "out", extra="ignore")
    pandas.testing.assert_frame_equal(predictions(parts / "out"), whole(parts), check_dtype=False, rtol=1e-6)
    return sorted(part.path.name for part in found.written), found.skipped, [part.name for part in found.changed]


def test_a_file_that_has_changed_is_predicted_anew(parts: Path) -> None:
    assert again(parts) == ([f"part-{number}.csv" for number in range(4)], 0, [])
    replace(parts / "part-0.csv")
    assert again(parts) == (["part-0.csv"], 3, ["part-0.csv"])
    size = (parts / "part-1.csv").stat().st_size
    content = (parts / "part-1.csv").read_text().splitlines(keepends=True)
    (parts / "part-1.csv").write_text("".join([content[0], *reversed(content[1:])]))
    assert (parts / "part-1.csv").stat().st_size == size  # other rows in as many bytes
    assert again(parts) == (["part-1.csv"], 3, ["part-1.csv"])
    assert again(parts) == ([], 4, [])


def test_files_of_the_same_names_elsewhere_are_others(parts: Path) -> None:
    again(parts)
    (parts / "day-2").mkdir()
    replace(parts / "day-2" / "part-0.csv")
    found = predict_parts(MODEL, str(parts / "day-2" / "part-*.csv"), parts / "out", extra="ignore")
    assert (len(found.written), found.skipped, len(found.changed)) == (1, 0, 1)
    assert len(pandas.read_csv(parts / "out" / "part-0.csv")) == 3


class Killed(BaseException):
    """As a kill, nothing that anybody would catch."""


def test_wherever_a_run_is_killed_nothing_stale_is_taken_for_done(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*args: object) -> None:
        raise Killed

    again(parts)
    stale = (parts / "out" / "part-0.csv").read_bytes()
    replace(parts / "part-0.csv")
    for where in ("_predict_part", "proof"):  # before the file is predicted; before it is known that it was
        with monkeypatch.context() as patch:
            patch.setattr(room, where, killed)
            with pytest.raises(Killed):
                again(parts)
        assert not (parts / "out" / "part-0.csv").exists() or (parts / "out" / "part-0.csv").read_bytes() != stale
    assert again(parts)[0] == ["part-0.csv"]
    (parts / "out" / "part-0.csv").write_bytes(stale)  # by a worker of a run before that was lost and comes back
    assert again(parts)[0] == ["part-0.csv"]


def test_a_file_that_changes_while_it_is_read_is_read_again(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict_part = room._predict_part

    def meanwhile(model: str, part: str, target: str, options: dict) -> tuple:
        found = predict_part(model, part, target, options)
        if part.endswith("part-2.csv"):
            replace(Path(part))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(room, "_predict_part", meanwhile)
        predict_parts(MODEL, str(parts / "part-*.csv"), parts / "out", extra="ignore")
    assert again(parts) == (["part-2.csv"], 3, ["part-2.csv"])


def test_what_killed_workers_left_is_removed_by_the_next_run(parts: Path) -> None:
    again(parts)
    out, ended = parts / "out", subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    living = AtomicFile(out / "part-0.csv").temporary
    mine, _, rest = living.name.partition(f"-{os.getpid()}-")
    machine = mine.rpartition(".")[2]
    left = out / f"{mine}-{ended.pid}-{rest}"
    distant = out / living.name.replace(machine, "0" * 8)
    forgotten = out / distant.name.replace("part-0.", "part-1.")
    foreign = [out / left.name.replace("part-0.", "other."), out / ".part-0.csv", out / ".part-0.part.csv"]
    for path in (left, distant, forgotten, *foreign):
        path.touch()
    os.utime(forgotten, (time.time() - 7200,) * 2)
    assert again(parts) == ([], 4, [])
    assert not left.exists()
    assert not forgotten.exists()
    assert all(path.exists() for path in (living, distant, *foreign))


def test_a_kill_at_the_very_beginning_spoils_no_folder(parts: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (parts / "out").mkdir()
    stamp = AtomicFile(parts / "out" / "predictions.json").temporary
    stamp.rename(stamp.with_name(stamp.name.replace(f"-{os.getpid()}-", f"-{ended.pid}-")))
    assert len(again(parts)[0]) == 4


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_error_names_the_file(parts: Path, jobs: int) -> None:
    wrong = parts / "part-2.csv"
    pandas.read_csv(wrong, dtype=str).reset_index(names="__index_level_0__").to_csv(wrong, index=False)
    with pytest.raises(DataError, match=r"part-2\.csv: training saw no column\(s\) '__index_level_0__'"):
        predict_parts(MODEL, str(parts / "part-*.csv"), parts / "out", jobs=jobs)
    wrong.write_text("")
    with pytest.raises(DataError) as found:
        predict_parts(MODEL, str(parts / "part-*.csv"), parts / "out", jobs=jobs)
    assert str(found.value).count("part-2.csv") == 1  # which some messages do by themselves


def test_predictions_of_another_kind_are_not_mixed(parts: Path) -> None:
    pattern = str(parts / "part-*.csv")
    predict_parts(MODEL, pattern, parts / "out", extra="ignore")
    with pytest.raises(OutputExistsError, match="another coverage"):
        predict_parts(MODEL, pattern, parts / "out", extra="ignore", coverage=0.5)
    before = predictions(parts / "out")
    predict_parts(MODEL, pattern, parts / "out", extra="ignore", coverage=0.5, overwrite=True)
    after = predictions(parts / "out")
    assert ((after.upper - after.lower) < (before.upper - before.lower)).all()


def test_what_cannot_work_is_said(parts: Path) -> None:
    with pytest.raises(DataFileNotFoundError, match="there are no files"):
        predict_parts(MODEL, str(parts / "nothing-*.csv"), parts / "out")
    with pytest.raises(OutputExistsError, match="would replace another file"):
        predict_parts(MODEL, str(parts / "part-*.csv"), parts)
    (parts / "other").mkdir()
    (parts / "other" / "letter.txt").touch()
    with pytest.raises(OutputExistsError, match="holds other files"):
        predict_parts(MODEL, str(parts / "part-*.csv"), parts / "other")
    with pytest.raises(ModelFileError, match=r"bedl export .* --onnx"):
        predict_parts(GOLDEN / "houses-model", str(parts / "part-*.csv"), parts / "out", scheduler="tcp://127.0.0.1:1")


def test_the_command_line_knows_patterns(parts: Path) -> None:
    pattern = parts / "part-*.csv"
    assert "--out" in run("predict", MODEL, pattern, ok=False).output
    said = run("predict", MODEL, pattern, "--extra", "ignore", "--out", parts / "out", ok=True)
    assert "of 4 files are in" in said.output
    assert len(predictions(parts / "out")) == len(pandas.read_csv(TABLE))
    replace(parts / "part-0.csv")
    said = run("predict", MODEL, pattern, "--extra", "ignore", "--out", parts / "out", ok=True)
    assert "3 predictions of 1 files are in" in said.output
    assert "3 files were done before." in said.output
    assert "Changed since, and predicted anew: 'part-0.csv'." in said.output


@pytest.mark.slow  # it starts a scheduler and two workers
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_workers_without_torch_of_which_one_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    rows = pandas.read_csv(TABLE, dtype=str)
    many = pandas.concat([rows] * (6000 // len(rows)), ignore_index=True)
    for number in range(24):
        many.to_csv(tmp_path / f"part-{number:02d}.csv", index=False)
    out = tmp_path / "out"
    with cluster(tmp_path / "dask", missing=("torch", "sklearn")) as found:
        victim, done = found.workers[0], []

        def kill_half_way() -> None:
            while not (out.exists() and len(done) >= 6):
                done[:] = out.glob("part-*.csv") if out.exists() else []
                time.sleep(0.01)
            victim.send_signal(signal.SIGKILL)

        killer = threading.Thread(target=kill_half_way, daemon=True)
        killer.start()
        written = predict_parts(MODEL, str(tmp_path / "part-*.csv"), out, scheduler=found.address, extra="ignore")
        killer.join(30)
        assert victim.poll() == -signal.SIGKILL
        assert len(done) < 24
        AtomicFile(out / "part-01.csv").temporary.rename(out / f".part-01.{'0' * 8}-1-a.part.csv")
        os.utime(out / f".part-01.{'0' * 8}-1-a.part.csv", (0, 0))  # of a worker elsewhere, long ago
        replace(tmp_path / "part-00.csv")
        renewed = predict_parts(MODEL, str(tmp_path / "part-*.csv"), out, scheduler=found.address, extra="ignore")
    assert ([part.path.name for part in renewed.written], renewed.skipped) == (["part-00.csv"], 23)
    assert not list(out.glob(".*"))
    assert len(pandas.read_csv(out / "part-00.csv")) == 3
    assert sorted(part.path.name for part in written.written) == [f"part-{number:02d}.csv" for number in range(24)]
    expected = load(MODEL).predict(tmp_path / "part-01.csv", extra="ignore")
    for path in sorted(out.glob("part-*.csv"))[1:]:
        pandas.testing.assert_frame_equal(pandas.read_csv(path), expected, check_dtype=False, rtol=1e-6)
