"""Bad files: each is refused with a message that says what to do."""

import gzip
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bedl._utils.errors import BEDLError
from bedl.data import DataError, DataFileError, DataFileNotFoundError, open_table, readers

BAD_TEXT = {
    "empty": (b"", "is empty.*column names"),
    "header only": (b"a,b\n", "no rows.*Add at least one"),
    "header only, no newline": (b"a,b", "no rows"),
    "blank rows": (b"a,b\n\n\r\n\n", "no rows"),
    "blank header": (b"\na,b\n1,2\n", "first line .* empty"),
    "duplicates": (b"a,b,a\n1,2,3\n", "several columns called 'a'.*name of its own"),
    "duplicates by space": (b"a, a\n1,2\n", "several columns called 'a'"),
    "short row": (b"a,b\n1,2\n3\n4,5\n", "row 2 .* has 1 values .* 2 columns.*fill up"),
    "long row": (b"a,b\n1,2\n3,4\n4,5,6\n", "row 3 .* has 3 values .* 2 columns.*quotes"),
    "latin-1": ("a,b\n1,2\n3,Zürich\n".encode("latin1"), "not UTF-8 text, column 'b', row 2.*--encoding"),
    "latin-1 header": ("größe,b\n1,2\n".encode("latin1"), "header .* not UTF-8.*--encoding"),
    "utf-16": ("a,b\n1,2\n".encode("utf-16"), "UTF-16.*--encoding utf-16"),
    "parquet in disguise": (b"PAR1xxxx", "Rename it to .parquet"),
    "spreadsheet": (b"PK\x03\x04xxxx", "Excel file.*\\.xlsx"),
    "old Mac lines": (b"a,b\r1,2\r", "line ends"),
    "unclosed name": (b'a,"b\n1,2\n', "unclosed quote"),
}


@pytest.mark.parametrize("content, message", BAD_TEXT.values(), ids=BAD_TEXT)
def test_bad_text(tmp_path, content, message):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        for _ in open_table(path).batches():
            pass
    assert isinstance(caught.value, BEDLError)
    assert str(path) in str(caught.value)


def test_ragged_row_far_into_the_file(tmp_path):
    path = tmp_path / "late.csv"
    path.write_bytes(b"a,b\n" + b"1,2\n" * 500_000 + b"3\n")
    with pytest.raises(DataError, match="row 500001 "):
        for _ in open_table(path).batches():
            pass


@pytest.mark.parametrize("newline_first", [True, False])
def test_a_gigantic_line_is_refused_and_takes_no_memory(tmp_path, newline_first):
    path = tmp_path / "line.csv"
    with open(path, "wb") as file:
        if newline_first:
            file.write(b"a,b\n1,2\n")
        file.truncate(1 << 30)  # a gigabyte of zeros, without a line end, that takes no room on the disk
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=f"line {3 if newline_first else 1} .* longer than 16 MiB.*line ends"):
            open_table(path)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_lines_that_end_are_measured_too(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MAX_LINE", 2 << 20)
    path = tmp_path / "line.csv"
    path.write_bytes(b"a\n" + b"x" * (3 << 20) + b"\n1\n")
    with pytest.raises(DataError, match=r"line 2 .* longer than 2 MiB"):
        open_table(path)


def test_an_unclosed_quote_does_not_swallow_the_file(tmp_path):
    path = tmp_path / "quote.csv"
    path.write_bytes(b'a,b\n1,"2\n' + b"3,4\n" * 1_000_000)
    with pytest.raises(DataError, match=r"quote never closed|in quotes"):
        for _ in open_table(path).batches():
            pass


def test_no_such_file_or_folder(tmp_path):
    with pytest.raises(DataFileNotFoundError, match=r"no file .*absent.csv"):
        open_table(tmp_path / "absent.csv")
    with pytest.raises(FileNotFoundError, match=r"Built-in names are .*digits"):
        open_table("digitz")
    with pytest.raises(DataFileError, match="is a folder"):
        open_table(tmp_path)
    with pytest.raises(DataFileError, match=r"no file|cannot be opened"):
        open_table("a\0b.csv")


@pytest.mark.parametrize("name", ["a.xlsx", "a.json", "noending", "a.gz", "a.parquet.gz"])
def test_wrong_suffix(tmp_path, name):
    (tmp_path / name).write_text("a\n1\n")
    with pytest.raises(DataError, match=r"\.csv, \.tsv .*\.parquet or \.xlsx|no Excel file"):
        open_table(tmp_path / name)


@pytest.mark.parametrize("cut", [0, 3, 100, -20])
def test_truncated_parquet(tmp_path, cut):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": list(range(1000))}), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"Write or download it again"):
        open_table(path)


def test_corrupt_page_of_parquet(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": [str(i) for i in range(10_000)]}), path, compression="zstd", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[200:1200] = b"\xff" * 1000
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        for _ in open_table(path).batches():
            pass


def test_parquet_without_rows_and_with_duplicates(tmp_path):
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match="1 columns but 0 rows"):
        open_table(tmp_path / "empty.parquet")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(DataError, match="several columns called 'x'"):
        open_table(tmp_path / "twice.parquet")


@pytest.mark.parametrize("cut", [-10, 15])
def test_damaged_gzip(tmp_path, cut):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 100)[:cut])
    with pytest.raises(DataError, match="damaged or incomplete"):
        open_table(path)
