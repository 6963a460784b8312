"""Excel files: one sheet, its first row the names, its cells as texts that are then read like those of a CSV file."""

from __future__ import annotations

import csv
import datetime
import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bedl.data.errors import DataError, listed
from bedl.data.scratch import Scratch
from bedl.data.spooling import spooled, writing

if TYPE_CHECKING:
    from bedl.data.tables import Table

__all__ = ["spreadsheet"]

LARGEST = 1 << 30  # bytes that a file may unpack to
ROWS = 1000  # that are written together
_ERRORS = {"#N/A", "#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!"}


def spreadsheet(path: Path, sheet: str | None, open_file: Callable[[Path], Table]) -> Table:
    """A sheet of an .xlsx file; the only one with cells, if none is named.

    Formulas count by the values that were saved with them; cells that hold an error count as missing.
    """
    scratch = Scratch()
    copy = scratch.path / f"{path.stem}.csv"
    with writing(copy) as file:
        for rows in _batched(_rows(path, sheet)):
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(rows)
            file.write(text.getvalue().encode("utf-8", "replace"))
    return spooled(copy, scratch, str(path), open_file)


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
            if sum(part.file_size for part in archive.infolist()) > LARGEST:
                raise DataError(f"{path} unpacks to more than {LARGEST >> 30} GiB. Export the sheet as CSV in UTF-8")
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
