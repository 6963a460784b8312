"""Writing: what was written is read back by pandas, and failures leave nothing."""

import json
import os
import stat
import tempfile

import numpy as np
import pandas as pd
import pytest

from bedl._utils.io import OutputExistsError, OutputFileError
from bedl.data import DataError, TableWriter

COLUMNS = {
    "name": ["a", 'b"', "c,d"],
    "mean": np.array([0.1, 1e-300, np.nan]),
    "n": np.arange(3),
    "x": np.float32([1, 2, 3]),
}


def read(path):
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    if path.suffix == ".jsonl":
        return pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()])
    return pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".jsonl"])
def test_batches_are_read_back(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    with TableWriter(path) as writer:
        writer.write(COLUMNS)
        assert not path.exists()  # it appears when it is complete
        writer.write(COLUMNS)
    assert writer.rows == 6
    frame = read(path)
    assert frame["name"].tolist() == COLUMNS["name"] * 2
    np.testing.assert_array_equal(frame["mean"].to_numpy(float), np.tile(COLUMNS["mean"], 2))
    assert frame["n"].tolist() == [0, 1, 2] * 2
    assert os.listdir(tmp_path) == [path.name]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_object_and_text_arrays(tmp_path):
    with TableWriter(tmp_path / "out.csv") as writer:
        writer.write({"a": np.array(["x", None], dtype=object), "b": np.array(["u", "v"])})
    assert (tmp_path / "out.csv").read_text() == '"a","b"\n"x","u"\n,"v"\n'


def write(path, *batches, overwrite=False, before_end=lambda: None):
    with TableWriter(path, overwrite) as writer:
        for batch in batches:
            writer.write(batch)
        before_end()


def test_an_error_leaves_nothing(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("precious")
    with pytest.raises(ZeroDivisionError):
        write(path, COLUMNS, overwrite=True, before_end=lambda: 1 / 0)
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == ["out.csv"]


def test_an_existing_file_is_kept_unless_told(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("precious")
    with pytest.raises(OutputExistsError, match=r"exists.*--overwrite"):
        TableWriter(path)
    assert path.read_text() == "precious"
    with TableWriter(path, overwrite=True) as writer:
        writer.write({"a": [1]})
    assert path.read_text() == '"a"\n1\n'


def test_a_file_that_appears_meanwhile_is_kept(tmp_path):
    path = tmp_path / "out.csv"
    with pytest.raises(FileExistsError):
        write(path, {"a": [1]}, before_end=lambda: path.write_text("precious"))
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == ["out.csv"]


def test_places_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(OutputFileError, match=r"no folder .*mkdir -p"):
        TableWriter(tmp_path / "no" / "out.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(OutputFileError, match="is a folder"):
        TableWriter(tmp_path / "folder.csv")
    with pytest.raises(DataError, match=r"\.csv, \.tsv, \.parquet, \.jsonl"):
        TableWriter(tmp_path / "out.xlsx")

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(OutputFileError, match=r"cannot be written to.*Permission denied.*another folder"):
        TableWriter(tmp_path / "out.csv")
    assert os.listdir(tmp_path) == ["folder.csv"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk(tmp_path):
    path = tmp_path / "out.csv"
    writer = TableWriter(path)
    writer._file.close()
    writer._file = writer._stream.file = open("/dev/full", "wb")  # noqa: SIM115
    with pytest.raises(OutputFileError, match="could not be written"), writer:
        writer.write({"a": np.arange(100_000)})
    assert os.listdir(tmp_path) == []


def test_batches_have_to_fit(tmp_path):
    with pytest.raises(DataError, match="every batch needs the columns 'a', not 'b'"):
        write(tmp_path / "o.csv", {"a": [1]}, {"b": [1]})
    with pytest.raises(DataError, match="rows 2 and on do not fit"):
        write(tmp_path / "o.csv", {"a": [1]}, {"a": ["text"]})
    with pytest.raises(DataError, match="do not fit"):
        write(tmp_path / "o.csv", {"a": [1], "b": [1, 2]})
    with pytest.raises(DataError, match="no rows were written"):
        write(tmp_path / "o.csv")
    assert os.listdir(tmp_path) == []


def test_a_column_may_begin_with_nothing(tmp_path):
    with TableWriter(tmp_path / "o.csv") as writer:
        writer.write({"a": [None]})
        writer.write({"a": ["text"]})
    assert (tmp_path / "o.csv").read_text() == '"a"\n\n"text"\n'


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_texts_are_neither_formulas_nor_commands(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    labels = ['=HYPERLINK("http://a.example")', "@SUM(1)", "+1+1", "-1", "+2.5e3", "-x", "red\x1b[2J", "\x9b2J", None]
    with TableWriter(path) as writer:
        writer.write({"=cmd": labels[:4], "\x1b]0;p\x07": [1, 2, 3, 4]})
        writer.write({"=cmd": labels[4:], "\x1b]0;p\x07": [5, 6, 7, 8, 9]})
    text = path.read_bytes()
    assert not any(byte in text for byte in (b"\x1b", b"\x07", b"\xc2\x9b"))
    found = pd.read_csv(path, sep="\t" if suffix == ".tsv" else ",")
    assert list(found) == ["'=cmd", "\\x1b]0;p\\x07"]
    expected = ["'" + labels[0], "'@SUM(1)", "'+1+1", "-1", "+2.5e3", "'-x", "red\\x1b[2J", "\\x9b2J"]
    assert found["'=cmd"].tolist()[:-1] == expected
    assert found["'=cmd"].isna().tolist()[-1]
