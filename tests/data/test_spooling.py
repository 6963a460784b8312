"""Tables from standard input, in other encodings, in Excel files, and what is said where they cannot be read."""

from __future__ import annotations

import datetime
import gzip
import io
import os
import tempfile
from pathlib import Path

import pytest

from bedl.data import DataError, open_table
from bedl.data.readers import PREFIX

TEXT = "town,size\nZürich,1.5\nKöln,2\n"


def cells(table):
    return {name: [value for batch in table.batches() for value in batch.column(name).to_pylist()]
            for name in table.columns}  # fmt: skip


@pytest.fixture
def piped(monkeypatch):
    def pipe(content: bytes):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        return open_table("-")

    return pipe


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-8"])
@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_other_encodings(tmp_path, encoding, ending):
    content = TEXT.encode(encoding)
    path = tmp_path / f"t{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    table = open_table(path, encoding=encoding)
    assert cells(table) == {"town": ["Zürich", "Köln"], "size": ["1.5", "2"]}
    assert table.name == str(path)


def test_what_is_said_of_encodings(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(TEXT.encode("latin-1"))
    with pytest.raises(DataError, match=r"--encoding: latin-1"):
        cells(open_table(path))
    with pytest.raises(DataError, match=r"not written in ascii: .*--encoding"):
        open_table(path, encoding="ascii")
    with pytest.raises(DataError, match="there is no encoding 'latin-99'"):
        open_table(path, encoding="latin-99")
    path.write_bytes(TEXT.encode("utf-16"))
    with pytest.raises(DataError, match="--encoding utf-16"):
        open_table(path)


def test_an_error_names_the_file_that_its_user_knows(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("a,b\n1,2,3\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"t\.csv") as caught:
        cells(open_table(path, encoding="utf-16"))
    assert PREFIX not in str(caught.value)


PIPED = [TEXT.encode(), gzip.compress(TEXT.encode(), mtime=0), TEXT.replace(",", "\t").encode()]


@pytest.mark.parametrize("content", PIPED, ids=["commas", "compressed", "tabulators"])
def test_standard_input(piped, content):
    table = piped(content)
    assert cells(table) == cells(table) == {"town": ["Zürich", "Köln"], "size": ["1.5", "2"]}
    assert table.name == "standard input"
    assert table.digest == piped(content).digest != piped(TEXT.encode() + b"Bern,3\n").digest


def test_parquet_from_standard_input(piped):
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1, 2]}), sink)
    assert cells(piped(sink.getvalue())) == {"a": [1, 2]}


def test_nothing_on_standard_input(piped):
    with pytest.raises(DataError, match=r"standard input is empty\. Write"):
        piped(b"")


def test_temporary_files_go_with_their_table_and_those_of_the_dead_with_the_next(piped, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"{PREFIX}999999999-dead").mkdir()
    table = piped(TEXT.encode())
    assert len(os.listdir(tmp_path)) == 1
    assert str(os.getpid()) in os.listdir(tmp_path)[0]
    del table
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_columns_are_parted_by_what_the_header_has(tmp_path, mark):
    path = tmp_path / "t.csv"
    path.write_text(TEXT.replace(",", mark))
    assert list(cells(open_table(path))) == ["town", "size"]


def test_an_empty_line_of_a_single_column_is_a_missing_value(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a\n1\n\n3\n")
    assert cells(open_table(path)) == {"a": ["1", None, "3"]}


@pytest.mark.skipif(os.name != "posix", reason="there are named pipes on POSIX")
def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "t.csv")
    with pytest.raises(OSError, match=r"is a pipe .* \(- < "):
        open_table(tmp_path / "t.csv")


# -- Excel ----------------------------------------------------------------------------------------------
def book(path: Path, **sheets):
    openpyxl = pytest.importorskip("openpyxl")
    made = openpyxl.Workbook()
    made.remove(made.active)
    for name, rows in sheets.items():
        sheet = made.create_sheet(name)
        for row in rows:
            sheet.append(row)
    made.save(path)
    return str(path)


ROWS = [["town", "size", "when", "open"], ["Köln", 1.5, datetime.datetime(2020, 1, 2), True],
        [None, 3, datetime.datetime(2020, 1, 3, 6), "#N/A"]]  # fmt: skip


def test_an_excel_sheet(tmp_path):
    table = open_table(book(tmp_path / "t.xlsx", one=ROWS))
    assert cells(table) == {
        "town": ["Köln", None], "size": ["1.5", "3"], "when": ["2020-01-02", "2020-01-03T06:00:00"],
        "open": ["true", None],
    }  # fmt: skip


def test_one_sheet_of_several(tmp_path):
    path = book(tmp_path / "t.xlsx", one=ROWS, two=[["a"], [1]], empty=[])
    with pytest.raises(DataError, match=r"several sheets, 'one', 'two'\. Name one"):
        open_table(path)
    assert cells(open_table(f"{path}:two")) == {"a": ["1"]}
    with pytest.raises(DataError, match="no sheet 'three'"):
        open_table(f"{path}:three")


def test_excel_files_that_are_none(tmp_path):
    path = tmp_path / "t.xlsx"
    path.write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(DataError, match="a damaged one"):
        open_table(path)
    with pytest.raises(DataError, match="to the right of the last column name"):
        open_table(book(path, one=[["a"], [1, 2]]))
    with pytest.raises(DataError, match="holds no cells"):
        open_table(book(path, one=[]))
