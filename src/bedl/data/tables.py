"""Tables that are read in batches, as often as needed, in bounded memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bedl.data.errors import DataError, DataFileError, DataFileNotFoundError, listed

__all__ = ["BATCH_ROWS", "BUILTIN_NAMES", "Table", "from_columns", "open_table"]

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
        from bedl.data.builtin import builtin_table

        return builtin_table(source, root)
    if isinstance(source, str) and source == "-":
        from bedl.data.spooling import standard_input

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
        from bedl.data.spooling import recoded

        return recoded(path, encoding, lambda copy: _open_file(copy, None, None))
    if text:
        return _checked(_text_table(path, tabs=kind == ".tsv"))
    if kind in (".parquet", ".pq") and suffixes[-1] != ".gz":
        return _checked(_parquet_table(path))
    if kind == ".xlsx" and suffixes[-1] != ".gz":
        from bedl.data.spreadsheets import spreadsheet

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
    from bedl.data.text_tables import inspect_text, read_text

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
