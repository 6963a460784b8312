"""Writing tables batch by batch: into an open file, or to a path, where the table appears whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import pyarrow as pa

from bedl.data.errors import DataError, DataFileError, DataFileExistsError, listed

__all__ = ["TableStream", "TableWriter"]

SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl")


class TableStream:
    """Writes columns, batch after batch, into an open binary file, such as ``sys.stdout.buffer``.

    Args:
        file: to write to; it stays open.
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
            text = csv.CSVWriter(self.file, schema, write_options=options)
            self._write, self.finish = text.write_batch, text.close

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
        overwrite: replace a file that is there.

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
        self.path, self.overwrite = Path(path), overwrite
        self._kind = self.path.suffix.lower()
        self._check_place()
        try:
            handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.", suffix=".part")
        except OSError as error:
            raise DataFileError(
                f"{self.path.parent} cannot be written to: {error.strerror}. Choose another folder"
            ) from None
        self._temporary = Path(temporary)
        self._file = os.fdopen(handle, "wb")
        self._stream = TableStream(self._file, self._kind)

    def write(self, columns: Mapping[str, np.ndarray | Sequence[Any]]) -> None:
        """Appends rows: each column's values, all of the same length, the same columns every time."""
        try:
            self._stream.write(columns)
        except OSError as error:
            raise DataFileError(f"{self.path} could not be written: {error}. Is the disk full?") from None

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
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            if not self.overwrite and self.path.exists():
                raise DataFileExistsError(
                    f"{self.path} has appeared in the meantime. Choose another name, or overwrite it"
                )
            umask = os.umask(0)
            os.umask(umask)
            self._temporary.chmod(0o666 & ~umask)  # temporary files are private; results have the usual permissions
            os.replace(self._temporary, self.path)
        except OSError as error:
            self.discard()
            if isinstance(error, DataFileError):
                raise
            raise DataFileError(f"{self.path} could not be written: {error}. Is the disk full?") from None
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Gives up: nothing of what was written remains."""
        with suppress(OSError):  # what is still waiting to be written need not be
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _check_place(self) -> None:
        if self._kind not in SUFFIXES:
            raise DataError(f"{self.path}: tables are written as {', '.join(SUFFIXES)}. Let the name end in one")
        if self.path.is_dir():
            raise DataFileError(f"{self.path} is a folder. Give the name of a file")
        if self.path.exists() and not self.overwrite:
            raise DataFileExistsError(f"{self.path} exists. Choose another name, or overwrite it (--overwrite)")
        if not self.path.parent.is_dir():
            raise DataFileError(f"there is no folder {self.path.parent}. Create it first: mkdir -p {self.path.parent}")


def _as_array(values: np.ndarray | Sequence[Any]) -> pa.Array:
    if isinstance(values, np.ndarray) and values.dtype.kind in "OU":
        return pa.array(values.tolist())
    return pa.array(values)
