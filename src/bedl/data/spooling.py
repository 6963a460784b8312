"""Tables that are put into a temporary file before they are read: from standard input, in another encoding, in Excel.

A table is read more than once, and Arrow wants UTF-8.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bedl.data.errors import DataError, DataFileError
from bedl.data.scratch import Scratch
from bedl.errors import option

if TYPE_CHECKING:
    import pyarrow as pa

    from bedl.data.tables import Table

__all__ = ["recoded", "spooled", "standard_input", "writing"]

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
    scratch, digest = Scratch(), hashlib.sha256()
    path = scratch.path / f"stdin{suffix}"
    with writing(path) as file:
        while part:
            digest.update(part)
            file.write(part)
            part = stream.read(CHUNK)
    return spooled(path, scratch, "standard input", open_file, digest.hexdigest())


def recoded(path: Path, encoding: str, open_file: Opener) -> Table:
    """A text table that is written in another encoding than UTF-8."""
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise DataError(
            f"there is no encoding {encoding!r}. Name one such as utf-8, latin-1, cp1252 or utf-16 "
            f"({option('encoding')})"
        ) from None
    scratch, packed = Scratch(), path.suffix.lower() == ".gz"
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
    return spooled(copy, scratch, str(path), open_file)


def spooled(path: Path, scratch: Scratch, name: str, open_file: Opener, digest: str | None = None) -> Table:
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
