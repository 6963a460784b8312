"""Tables that are read in batches, as often as needed, in bounded memory."""

from __future__ import annotations

import codecs
import csv
import datetime
import gzip
import hashlib
import io
import os
import re
import shutil
import sys
import tempfile
import weakref
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from bedl._utils.errors import DataError, DataFileError, DataFileNotFoundError, listed, option
from bedl._utils.io import pid_alive
from bedl.data.parsing import with_missing

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 65_536
BUILTIN_NAMES = ("breast_cancer", "cifar10", "diabetes", "digits", "fashion_mnist", "iris", "mnist", "wine")
"""Names that stand for a data set, besides `uci:<name>`; the image sets take `:train` or `:test`."""

Reader = Callable[[int, Sequence[str] | None], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Table:
    """A table somewhere: its columns are known, its rows come in batches.

    Attributes:
        name: the path or the built-in name.
        columns: names, in order.
        n_rows: how many rows there are; for text files the number of lines, which quoted line breaks may exceed.
        image_shape: (height, width) or (channels, height, width), if the feature columns are pixels.
        default_target: the column that built-in sets call their target.
        digest: SHA-256 of the content, where no file tells whether a table is still the same.
        typed: the file says what its columns are; False for text files, where numbers look like any other text.
    """

    name: str
    columns: list[str]
    n_rows: int
    read: Reader
    image_shape: tuple[int, ...] | None = None
    default_target: str | None = None
    typed: bool = True
    digest: str | None = None

    def with_missing(self, markers: Collection[str]) -> Table:
        """The same table, in which these texts and numbers are missing values."""
        if not markers:
            return self
        return replace(self, read=lambda rows, names: (with_missing(b, markers) for b in self.read(rows, names)))

    def batches(self, rows: int = BATCH_ROWS, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Batches of at most `rows` rows; each call starts again at the first row. `columns`: only these."""
        if rows < 1:
            raise DataError(f"batches need at least one row each, not {rows}")
        return self.read(rows, columns)


def open_table(source: Any, root: str | PathLike[str] | None = None, encoding: str | None = None) -> Table:
    """The table in a file (.csv, .tsv, both also .gz, .parquet, .xlsx), in a data frame, or a built-in one.

    Args:
        source: a path, "book.xlsx:sheet" for one sheet of several; "-", standard input; a frame of pandas, polars or
            Arrow; a table that is open already; or a name: digits, diabetes, breast_cancer, iris, wine, also with
            :train or :test; uci:<name> or uci:<name>:<split>:train (or test); mnist, fashion_mnist, cifar10, with
            :train (the default) or :test.
        root: where downloaded sets are; $BEDL_DATA by default.
        encoding: of text files; UTF-8 by default.

    Example:
        >>> table = open_table("iris")
        >>> table.n_rows, table.columns[-1]
        (150, 'target')
    """
    if isinstance(source, Table):
        return source
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__dataframe__"):
        return _checked(_frame_table(source))
    if isinstance(source, str) and (source.startswith("uci:") or source.split(":")[0] in BUILTIN_NAMES):
        from bedl.data.datasets.builtin import builtin_table

        return builtin_table(source, root)
    if isinstance(source, str) and source == "-":
        return standard_input(lambda path: _open_file(path, encoding, None))
    sheet, named = None, re.fullmatch(r"(.+\.xlsx):(.+)", str(source), re.I)
    if named is not None and not Path(source).exists():
        source, sheet = named.groups()
    path = Path(source)
    _check_is_file(path)
    return _open_file(path, encoding, sheet)


def _open_file(path: Path, encoding: str | None, sheet: str | None) -> Table:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])
    text = kind in (".csv", ".tsv")
    if encoding is not None and not text:
        raise DataError(f"{path}: only text files have an encoding. Leave it out")
    if text and encoding is not None:
        return transcode(path, encoding, lambda copy: _open_file(copy, None, None))
    if text:
        return _checked(_text_table(path, tabs=kind == ".tsv"))
    if kind in (".parquet", ".pq") and suffixes[-1] != ".gz":
        return _checked(_parquet_table(path))
    if kind == ".xlsx" and suffixes[-1] != ".gz":
        return spreadsheet(path, sheet, lambda copy: _open_file(copy, None, None))
    raise DataError(
        f"{path}: files ending in {kind or 'nothing'!r} are not read. Give a .csv, .tsv (or .csv.gz, .tsv.gz), "
        ".parquet or .xlsx file; export other spreadsheets as CSV in UTF-8"
    )


def from_columns(
    name: str, columns: list[str], matrix: np.ndarray, target: np.ndarray | list[str], image_shape: tuple | None = None
) -> Table:
    """A table of a matrix in memory, shape (rows, columns), and a last column `target`."""

    def read(rows: int, wanted: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        names = [*columns, "target"]
        for start in range(0, len(matrix), rows):
            part = matrix[start : start + rows].T
            arrays = [*map(pa.array, np.ascontiguousarray(part)), pa.array(target[start : start + rows])]
            batch = pa.RecordBatch.from_arrays(arrays, names)
            yield batch if wanted is None else batch.select(list(wanted))

    return Table(name, [*columns, "target"], len(matrix), read, image_shape, "target")


def _frame_table(frame: Any) -> Table:
    """A data frame; its index, if it has one, is no column."""
    try:
        pandas = type(frame).__module__.startswith("pandas")
        whole = pa.Table.from_pandas(frame, preserve_index=False) if pandas else pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"the data frame holds what a table cannot: {error}. Let each column hold one kind") from None
    if not whole.num_rows or not whole.num_columns:
        raise DataError(f"the data frame has {whole.num_columns} columns and {whole.num_rows} rows. Give at least one")

    def read(rows: int, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        chosen = whole if columns is None else whole.select(list(columns))
        yield from chosen.to_batches(max_chunksize=rows)

    return Table(f"a {type(frame).__name__}", list(whole.column_names), whole.num_rows, read)


def _check_is_file(path: Path) -> None:
    try:
        if path.is_dir():
            raise DataFileError(f"{path} is a folder. Give the path of one .csv, .tsv, .parquet or .xlsx file")
        if not path.exists():
            hint = "" if path.suffix else f" Built-in names are {', '.join(BUILTIN_NAMES)} and uci:<name>"
            raise DataFileNotFoundError(f"there is no file {path}. Check the path.{hint}")
        if not path.is_file():
            raise DataFileError(
                f"{path} is a pipe or a device, which is read once, and a table is read several times. Read it from "
                f"standard input (- < {path}), or write it to a file first"
            )
        with path.open("rb"):
            pass
    except (PermissionError, ValueError) as error:  # ValueError: a null character in the path
        raise DataFileError(f"{path} cannot be opened: {error}. Check the path and its permissions") from None


def _checked(table: Table) -> Table:
    twice = [name for name, count in Counter(table.columns).items() if count > 1]
    if twice:
        raise DataError(f"{table.name} has several columns called {listed(twice)}. Give each column a name of its own")
    return table


def _text_table(path: Path, tabs: bool) -> Table:

    file = inspect_text(path, tabs)
    return Table(str(path), file.columns, file.lines, lambda rows, columns: read_text(file, rows, columns), typed=False)


def _parquet_table(path: Path) -> Table:
    import pyarrow.parquet as pq

    def damaged(error: Exception) -> DataError:
        reason = str(error).split("\n")[0]
        return DataError(f"{path} is no Parquet file, or a damaged one ({reason}). Write or download it again")

    def open_file() -> pq.ParquetFile:
        # Pages are read as they are needed; buffering whole row groups would hold hundreds of megabytes.
        return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 18)

    def read(rows: int, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        try:
            with open_file() as file:
                names = None if columns is None else list(columns)
                yield from file.iter_batches(rows, columns=names, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise damaged(error) from None

    try:
        with open_file() as file:
            columns, n_rows = file.schema_arrow.names, file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty. Write or download it again") from None
        raise damaged(error) from None
    if not n_rows or not columns:
        raise DataError(f"{path} has {len(columns)} columns but {n_rows} rows. Give a table with at least one of each")
    return Table(str(path), columns, n_rows, read)


# CSV and TSV as streams of text columns.
#
# Every column is read as text. pyarrow would settle a column's type by the first block alone and then fail, far into
# the file, at the first value of another; here the encoder decides, after it has seen the whole column.


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


# Folders for what is needed while a process runs: gone with it, and if it was killed, with the next one.


PREFIX = "bedl-scratch-"


class TempDir:
    """A folder among the system's temporary ones (TMPDIR) that lasts as long as this object.

    Attributes:
        path: the folder.

    Example:
        >>> scratch = TempDir()
        >>> path = scratch.path
        >>> del scratch
        >>> path.exists()
        False
    """

    def __init__(self) -> None:
        _remove_orphans(Path(tempfile.gettempdir()))
        try:
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        except OSError as error:
            raise DataFileError(f"no temporary files can be made: {error}. Set TMPDIR to another folder") from None
        # also where it is found in a cycle, or at the end of the process
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _remove_orphans(folder: Path) -> None:
    """Removes what killed processes of this user left."""
    if os.name != "posix":
        return
    with suppress(OSError):
        for path in folder.glob(f"{PREFIX}*"):
            process = path.name[len(PREFIX) :].partition("-")[0]
            with suppress(OSError):
                if process.isdigit() and path.stat().st_uid == os.getuid() and not pid_alive(int(process)):
                    shutil.rmtree(path, ignore_errors=True)


# Tables that are put into a temporary file before they are read: from standard input, in another encoding, in Excel.
#
# A table is read more than once, and Arrow wants UTF-8.


Opener = Callable[[Path], "Table"]
_BEGINNINGS = ((b"PAR1", ".parquet"), (b"PK\x03\x04", ".xlsx"), (b"\x1f\x8b", ".csv.gz"))
CHUNK = 1 << 20


def standard_input(open_file: Opener) -> Table:
    """The table that is piped into this process; its first bytes say of which kind it is."""
    if sys.stdin is None or sys.stdin.isatty():
        raise DataError("standard input (-) is a terminal. Pipe a table into it: bedl … - < table.csv")
    stream: IO[bytes] = sys.stdin.buffer
    part = stream.read(CHUNK)
    header = part.split(b"\n", 1)[0]
    plain = ".tsv" if b"\t" in header and b"," not in header else ".csv"
    suffix = next((suffix for start, suffix in _BEGINNINGS if part.startswith(start)), plain)
    scratch, digest = TempDir(), hashlib.sha256()
    path = scratch.path / f"stdin{suffix}"
    with writing(path) as file:
        while part:
            digest.update(part)
            file.write(part)
            part = stream.read(CHUNK)
    return materialise(path, scratch, "standard input", open_file, digest.hexdigest())


def transcode(path: Path, encoding: str, open_file: Opener) -> Table:
    """A text table that is written in another encoding than UTF-8."""
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise DataError(
            f"there is no encoding {encoding!r}. Name one such as utf-8, latin-1, cp1252 or utf-16 "
            f"({option('encoding')})"
        ) from None
    scratch, packed = TempDir(), path.suffix.lower() == ".gz"
    copy = scratch.path / (path.stem if packed else path.name)
    opened: Any = gzip.open if packed else open
    try:
        with opened(path, "rt", encoding=encoding, newline="") as source, writing(copy) as file:
            while text := source.read(CHUNK):
                file.write(text.encode())
    except UnicodeError as error:
        raise DataError(
            f"{path} is not written in {encoding}: {error}. Name another encoding ({option('encoding')})"
        ) from None
    except (EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or incomplete ({error}). Compress or download it again") from None
    return materialise(copy, scratch, str(path), open_file)


def materialise(path: Path, scratch: TempDir, name: str, open_file: Opener, digest: str | None = None) -> Table:
    """The table in a temporary file, under the name that its user knows; the file lasts as long as the table."""
    with _called(path, name):
        table = open_file(path)

    def read(rows: int, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        with _called(scratch.path / path.name, name):
            yield from table.read(rows, columns)

    return replace(table, name=name, read=read, digest=digest)


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A new file; an error that names the remedy if there is no room for it."""
    try:
        with path.open("wb") as file:
            yield file
    except gzip.BadGzipFile:
        raise
    except OSError as error:
        raise DataFileError(
            f"{path.parent} cannot be written to: {error}. Free some room, or set TMPDIR to another folder"
        ) from None


@contextmanager
def _called(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise DataError(str(error).replace(str(path), name)) from None


# Excel files: one sheet, its first row the names, its cells as texts that are then read like those of a CSV file.


MAX_UNPACKED_BYTES = 1 << 30  # bytes that a file may unpack to
ROWS = 1000  # that are written together
_ERRORS = {"#N/A", "#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!"}


def spreadsheet(path: Path, sheet: str | None, open_file: Callable[[Path], Table]) -> Table:
    """A sheet of an .xlsx file; the only one with cells, if none is named.

    Formulas count by the values that were saved with them; cells that hold an error count as missing.
    """
    scratch = TempDir()
    copy = scratch.path / f"{path.stem}.csv"
    with writing(copy) as file:
        for rows in _batched(_rows(path, sheet)):
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(rows)
            file.write(text.getvalue().encode("utf-8", "replace"))
    return materialise(copy, scratch, str(path), open_file)


def _rows(path: Path, sheet: str | None) -> Iterator[list[str]]:
    """The names, then the rows; empty rows are left out, and empty columns at the end."""
    width = 0
    for number, cells in enumerate(_cells(path, sheet)):
        texts = [_text(cell) for cell in cells]
        if not any(texts):
            continue
        if not width:
            while not texts[-1]:
                texts.pop()
            width = len(texts)
        if any(texts[width:]):
            raise DataError(
                f"row {number + 1} of {path} has a value to the right of the last column name. Name each column in the "
                "first row, and leave nothing beside the table"
            )
        yield (texts + [""] * width)[:width]
    if not width:
        raise DataError(f"{path} holds no cells. It should hold a row of column names, then one row for each point")


def _cells(path: Path, sheet: str | None) -> Iterator[tuple[Any, ...]]:
    try:
        import openpyxl
    except ImportError:
        raise ImportError(
            f"{path}: Excel files are read by openpyxl: pip install 'bedl[excel]'; or export the sheet as CSV in UTF-8"
        ) from None
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(part.file_size for part in archive.infolist()) > MAX_UNPACKED_BYTES:
                raise DataError(
                    f"{path} unpacks to more than {MAX_UNPACKED_BYTES >> 30} GiB. Export the sheet as CSV in UTF-8"
                )
        book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
        try:
            chosen = _chosen(path, book, sheet)
            chosen.reset_dimensions()  # a file may claim to be larger than it is
            yield from chosen.iter_rows(values_only=True)
        finally:
            book.close()
    except (DataError, OSError, MemoryError):
        raise
    except Exception as error:  # openpyxl raises whatever damaged parts of a file lead to
        reason = f"{type(error).__name__}: {error}"
        raise DataError(
            f"{path} is no Excel file, or a damaged one ({reason}). Save it again, or export the sheet as CSV in UTF-8"
        ) from None


def _chosen(path: Path, book: Any, sheet: str | None) -> Any:
    names = [found.title for found in book.worksheets]
    if sheet is not None:
        if sheet not in names:
            raise DataError(f"{path} has no sheet {sheet!r}. It has {listed(names)}; choose one: {path}:SHEET")
        return book[sheet]
    filled = [found for found in book.worksheets if any(any(cell is not None for cell in row) for row in _begin(found))]
    if len(filled) > 1:
        raise DataError(f"{path} has several sheets, {listed([f.title for f in filled])}. Name one: {path}:SHEET")
    return (filled or book.worksheets)[0]


def _begin(sheet: Any) -> Iterator[tuple[Any, ...]]:
    sheet.reset_dimensions()
    return sheet.iter_rows(max_row=20, values_only=True)


def _text(cell: Any) -> str:
    if cell is None or cell in _ERRORS:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, datetime.datetime):
        return cell.date().isoformat() if cell.time() == datetime.time() else cell.isoformat(timespec="seconds")
    return repr(cell) if isinstance(cell, float) else str(cell)


def _batched(rows: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    batch: list[list[str]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == ROWS:
            yield batch
            batch = []
    yield batch
