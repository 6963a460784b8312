"""Writing tables batch by batch: into an open file, or to a path, where the table appears whole or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import pyarrow as pa

from bedl._utils.errors import DataError, listed
from bedl._utils.io import AtomicFile, OutputFileError, check_writable, remedy

SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl")


class TableStream:
    """Writes columns, batch after batch, into an open binary file, such as ``sys.stdout.buffer``.

    Args:
        file: the file to write to; it stays open.
        kind: ".csv", ".tsv", ".parquet" or ".jsonl".

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> stream = TableStream(file, ".jsonl")
        >>> stream.write({"name": ["a", "b"], "mean": np.array([0.5, np.nan])})
        2
        >>> print(file.getvalue().decode(), end="")
        {"name": "a", "mean": 0.5}
        {"name": "b", "mean": null}
    """

    def __init__(self, file: IO[bytes], kind: str):
        self.file, self.kind, self.rows = file, kind, 0
        self.schema: pa.Schema | None = None
        self._write: Callable[[pa.RecordBatch], Any] = lambda batch: None
        self.finish: Callable[[], Any] = lambda: None
        """To be called after the last batch: what a format ends with."""

    def write(self, columns: Mapping[str, np.ndarray | Sequence[Any]]) -> int:
        """Appends rows, as many as it returns: each column's values, the same columns every time."""
        try:
            batch = pa.RecordBatch.from_arrays([_as_array(values) for values in columns.values()], list(columns))
            if self.schema is None:
                self._begin(batch.schema)
            elif batch.schema.names != self.schema.names:
                raise DataError(
                    f"every batch needs the columns {listed(self.schema.names)}, not {listed(list(columns))}"
                )
            batch = batch.cast(self.schema)
        except DataError:
            raise
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise DataError(f"rows {self.rows + 1} and on do not fit those before them: {error}") from None
        self._write(batch)
        self.rows += len(batch)
        return len(batch)

    def _begin(self, schema: pa.Schema) -> None:
        # A column that is all None in the first batch may hold text later.
        fields = [pa.field(f.name, pa.string() if pa.types.is_null(f.type) else f.type) for f in schema]
        self.schema = schema = pa.schema(fields)
        if self.kind == ".parquet":
            import pyarrow.parquet as pq

            parquet = pq.ParquetWriter(self.file, schema)
            self._write, self.finish = parquet.write_batch, parquet.close
        elif self.kind == ".jsonl":
            self._write = self._write_json
        else:
            from pyarrow import csv

            options = csv.WriteOptions(delimiter="\t" if self.kind == ".tsv" else ",")
            names = [_harmless(name) for name in schema.names]
            renamed = pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])
            text = csv.CSVWriter(self.file, renamed, write_options=options)
            self._write = lambda batch: text.write_batch(_harmless_batch(batch, names))
            self.finish = text.close

    def _write_json(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            # JSON has no NaN and no infinity.
            row = {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()}
            self.file.write(json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n")


class TableWriter:
    """Writes columns, batch after batch, to .csv, .tsv, .parquet or .jsonl.

    Rows go to a hidden file beside `path`, which takes its place when the block ends well. If it does not, the hidden
    file is removed and `path` stays as it was.

    Args:
        path: where the table shall be; the suffix is the format.
        overwrite: whether a file that is there may be replaced.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with TableWriter(f"{folder}/out.csv") as writer:
        ...         writer.write({"name": ["a", "b"], "mean": np.array([0.5, 1.0])})
        ...     print(Path(folder, "out.csv").read_text().splitlines())
        ['"name","mean"', '"a",0.5', '"b",1']
    """

    def __init__(self, path: str | PathLike[str], overwrite: bool = False):
        self.path = Path(path)
        self._kind = self.path.suffix.lower()
        if self._kind not in SUFFIXES:
            raise DataError(f"{self.path}: tables are written as {', '.join(SUFFIXES)}. Let the name end in one")
        check_writable(self.path, overwrite)
        self._pending = AtomicFile(self.path, overwrite)
        self._file = open(self._pending.temporary, "wb")  # noqa: SIM115  (closed by `close` and `discard`)
        self._stream = TableStream(self._file, self._kind)

    def write(self, columns: Mapping[str, np.ndarray | Sequence[Any]]) -> None:
        """Appends rows: each column's values, all of the same length, the same columns every time."""
        try:
            self._stream.write(columns)
        except OSError as error:
            raise _unwritten(self.path, error) from None

    @property
    def rows(self) -> int:
        """How many rows were written."""
        return self._stream.rows

    def close(self) -> None:
        """Finishes the file and puts it in its place."""
        try:
            if self._stream.schema is None:
                raise DataError(f"no rows were written to {self.path}, so there is no table to keep")
            self._stream.finish()
            self._file.close()
            self._pending.finish()
        except OutputFileError:
            raise
        except OSError as error:
            raise _unwritten(self.path, error) from None
        finally:
            self.discard()

    def discard(self) -> None:
        """Gives up: nothing of what was written remains."""
        with suppress(OSError):  # what is still waiting to be written need not be
            self._file.close()
        self._pending.discard()

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _harmless(text: str) -> str:
    """A text that neither a spreadsheet takes for a formula nor a terminal for a command.

    >>> _harmless("=HYPERLINK(1)"), _harmless("-1.5"), _harmless("red\\x1b[2J")
    ("'=HYPERLINK(1)", '-1.5', 'red\\\\x1b[2J')
    """
    if _FORMULA.match(text) and not _NUMBER.fullmatch(text):
        text = "'" + text
    return _STEERS.sub(lambda found: repr(found[0])[1:-1], text)


def _harmless_batch(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """The same rows with harmless texts, each distinct one looked at once."""
    columns = []
    for column in batch.columns:
        if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
            column = column.cast(pa.string())
        if pa.types.is_string(column.type):
            coded = column.dictionary_encode()
            texts = [_harmless(text) for text in coded.dictionary.to_pylist()]
            column = pa.DictionaryArray.from_arrays(coded.indices, pa.array(texts, pa.string())).cast(pa.string())
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names)


def _unwritten(path: Path, error: OSError) -> OutputFileError:
    return OutputFileError(f"{path} could not be written: {error}. {remedy(error)}")


def _as_array(values: Any) -> pa.Array:
    if isinstance(values, pa.Array):
        return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    if isinstance(values, np.ndarray) and values.dtype.kind in "OU":
        return pa.array(values.tolist())
    return pa.array(values)
