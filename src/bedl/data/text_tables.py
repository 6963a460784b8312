"""CSV and TSV as streams of text columns.

Every column is read as text. pyarrow would settle a column's type by the first block alone and then fail, far into the
file, at the first value of another; here the encoder decides, after it has seen the whole column.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import pyarrow as pa
import pyarrow.csv as pacsv

from bedl.data.errors import DataError, listed
from bedl.errors import option

__all__ = ["MAX_LINE", "MISSING", "TextFile", "inspect_text", "read_text"]

MAX_LINE = 16 << 20
"""Bytes; a longer line is refused before anything parses it."""
_CHUNK = 1 << 20
_BATCH_BYTES = 16 << 20  # batches are joined up to this size, so that wide tables stay within memory too

MISSING = [*pacsv.ConvertOptions().null_values, "None", "<NA>"]
"""Texts that stand for a missing value."""

_OTHERS = {
    b"PAR1": "a Parquet file. Rename it to .parquet",
    b"PK\x03\x04": "an Excel file or an archive. Rename it to .xlsx, or unpack it",
    b"\xd0\xcf\x11\xe0": "an old Excel file. Export it as CSV in UTF-8",
    b"\xff\xfe": f"UTF-16. Read it with {option('encoding', 'utf-16')}",
    b"\xfe\xff": f"UTF-16. Read it with {option('encoding', 'utf-16')}",
}
_DELIMITERS = (",", ";", "\t", "|")  # the first one that the header holds

_SAVE_AS_UTF8 = f"Say how it is written ({option('encoding')}: latin-1, cp1252, utf-16, …), or save it as UTF-8"


@dataclass(frozen=True)
class TextFile:
    """What one look over a text file told about it."""

    path: Path
    delimiter: str
    columns: list[str]
    lines: int  # that hold rows, unless quoted values run over several
    longest: int  # line, in bytes


def inspect_text(path: Path, tabs: bool) -> TextFile:
    """Reads the header and measures the lines, in bounded memory."""
    with _open(path) as stream:
        header = stream.readline(MAX_LINE + 1)
        if not header:
            raise DataError(f"{path} is empty. Write a line of column names, then one line for each row")
        for start, kind in _OTHERS.items():
            if header.startswith(start):
                raise DataError(f"{path} is no text table but {kind}")
        delimiter, columns = _header(path, header, tabs)
        lines, longest = _measure(path, stream, len(header))
    if not lines:
        raise DataError(f"{path} has a header but no rows. Add at least one line of values under the column names")
    return TextFile(path, delimiter, columns, lines, longest)


def read_text(file: TextFile, rows: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Batches of at most `rows` rows; all columns are strings, with nulls for missing values."""
    block = max(_CHUNK, 1 << (file.longest + 1).bit_length())
    # Arrow reads ahead on a thread of its own, so it opens the file itself, too: if that thread asked Python for more
    # while the interpreter shuts down, after an error, the process would be aborted.
    # `inspect_text` has seen the file whole.
    with pa.input_stream(str(file.path), compression="gzip" if file.path.suffix == ".gz" else None) as stream:
        try:
            reader = pacsv.open_csv(
                stream,
                # One thread: errors then name their line, and no blocks pile up ahead of the consumer.
                read_options=pacsv.ReadOptions(
                    use_threads=False, block_size=block, column_names=file.columns, skip_rows=1
                ),
                parse_options=pacsv.ParseOptions(
                    delimiter=file.delimiter,
                    newlines_in_values=True,
                    ignore_empty_lines=len(file.columns) > 1,  # else an empty line is a value that is missing
                ),
                convert_options=pacsv.ConvertOptions(
                    column_types={name: pa.string() for name in file.columns},
                    include_columns=None if columns is None else list(columns),
                    null_values=MISSING,
                    strings_can_be_null=True,
                ),
            )
            yield from _joined(reader, rows)
        except pa.ArrowInvalid as error:
            raise _explained(file, str(error)) from None


def _joined(reader: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows, in batches of `rows` rows, or fewer where rows are long."""
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for batch in reader:
        while len(batch):
            part = batch.slice(0, rows - count)
            batch = batch.slice(len(part))
            waiting.append(part)
            count, size = count + len(part), size + part.nbytes
            if count == rows or size >= _BATCH_BYTES:
                yield _one(waiting)
                waiting, count, size = [], 0, 0
    if waiting:
        yield _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _open(path: Path) -> IO[bytes]:
    stream = _Gzip(path) if path.suffix == ".gz" else open(path, "rb")  # noqa: SIM115 - closed by the caller
    return cast(IO[bytes], stream)


class _Gzip(gzip.GzipFile):
    """gzip whose damage is reported as such, from wherever it is read."""

    def read(self, size: int | None = -1) -> bytes:
        try:
            return super().read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{self.name} is damaged or incomplete ({error}). Compress or download it again") from None

    def readline(self, size: int | None = -1) -> bytes:
        try:
            return super().readline(-1 if size is None else size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{self.name} is damaged or incomplete ({error}). Compress or download it again") from None


def _header(path: Path, line: bytes, tabs: bool) -> tuple[str, list[str]]:
    if len(line) > MAX_LINE:
        raise _line_too_long(path, 1)
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise DataError(f"the header of {path} is not UTF-8 text. {_SAVE_AS_UTF8}") from None
    if not text.strip():
        raise DataError(f"the first line of {path} is empty. Write the names of the columns there")
    if "\r" in text:
        raise DataError(f"{path} ends its lines with a bare carriage return. Save it with Unix or Windows line ends")
    if text.count('"') % 2:
        raise DataError(f"a column name of {path} has an unclosed quote or a line break. Write each name on one line")
    delimiter = "\t" if tabs else next((mark for mark in _DELIMITERS if mark in text), ",")
    names = [name.strip() for name in next(csv.reader([text], delimiter=delimiter, skipinitialspace=True))]
    # Tables written with a nameless index begin with an empty name.
    names = [name or f"column_{number}" for number, name in enumerate(names, 1)]
    return delimiter, names


def _measure(path: Path, stream: IO[bytes], longest: int) -> tuple[int, int]:
    """Number of lines, 0 if all are empty, and the longest; a line beyond MAX_LINE is refused as soon as it is."""
    lines, run, content = 0, 0, False  # run: bytes since the last line end
    while chunk := stream.read(_CHUNK):
        content = content or bool(chunk.strip())
        first = chunk.find(b"\n")
        if first < 0:
            run += len(chunk)
        else:
            # Lines within a chunk are no longer than the chunk, which is what a block holds anyway.
            longest = max(longest, run + first)
            lines += chunk.count(b"\n")
            run = len(chunk) - chunk.rfind(b"\n") - 1
        if max(run, longest) > MAX_LINE:
            raise _line_too_long(path, lines + 2)
    return (lines + (run > 0) if content else 0), max(longest, run)


def _line_too_long(path: Path, line: int) -> DataError:
    return DataError(
        f"line {line} of {path} is longer than {MAX_LINE >> 20} MiB. A row should be one line: check the line ends and "
        "the quotes, and leave out columns that hold whole documents or images"
    )


def _explained(file: TextFile, message: str) -> DataError:
    """pyarrow's message in the words of someone who has the file open in an editor."""
    if ragged := re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", message):
        line, expected, got = ragged.groups()
        return DataError(
            f"row {int(line) - 1 if line else '?'} of {file.path} has {got} values where the header has {expected} "
            f"columns. Put values that hold a {file.delimiter!r} or a line break in quotes, and fill up short rows"
        )
    if "UTF8" in message:
        number = re.search(r"column #(\d+)", message)
        line = re.search(r"Row #(\d+)", message)
        where = f", column {listed([file.columns[int(number[1])]])}" if number else ""
        where += f", row {int(line[1]) - 1}" if line else ""
        return DataError(f"{file.path} is not UTF-8 text{where}. {_SAVE_AS_UTF8}")
    if "straddling" in message:
        return DataError(
            f"a quoted value of {file.path} runs on for more than {_CHUNK >> 20} MiB. Was a quote never closed?"
        )
    return DataError(f"{file.path} cannot be read: {message}")
