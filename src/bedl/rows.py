"""Rows that outlive the process: one line of JSON each, appended whole, found again by a few of their fields.

A process may be killed in the middle of a line, and several may write to one file: whoever appends holds the file's
lock, takes away what a dead process left unfinished, and looks first whether somebody else has written the row.
"""

from __future__ import annotations

import errno
import json
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bedl.errors import BEDLError

__all__ = ["Row", "RowFile", "RowFileError"]

Row = dict[str, Any]
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class RowFileError(BEDLError, ValueError):
    """A file that does not hold rows."""


class RowFile:
    """Rows in a file, of which the last one with the same key counts.

    Args:
        path: the file, which need not exist; None: rows are kept in memory.
        key: the fields that say which row it is.
        failure: the field in which a row says why it failed; empty or missing where it did not.
        fault: what is wrong with a row that has its key, in a few words; None if nothing is.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = RowFile(Path(folder, "rows.jsonl"), key=("method", "split"))
        ...     rows.add({"method": "bedl", "split": 0, "rmse": 2.5}), rows.add({"method": "bedl", "split": 0})
        ...     RowFile(rows.path, rows.key).rows()
        (True, False)
        [{'method': 'bedl', 'split': 0, 'rmse': 2.5}]
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        key: Sequence[str],
        failure: str = "failed",
        fault: Callable[[Row], str | None] = lambda row: None,
    ):
        self.path = None if path is None else Path(path)
        self.key, self.failure, self.fault = tuple(key), failure, fault
        self._rows: dict[tuple[Any, ...], Row] = {}
        self._seen = 0  # bytes of the file that are in `_rows`
        self._turn = threading.RLock()
        self.refresh()

    def rows(self) -> list[Row]:
        """The rows that count, in the order in which their keys appeared."""
        return list(self._rows.values())

    def get(self, wanted: Mapping[str, Any]) -> Row | None:
        """The row with the key that these fields make, as far as was read."""
        return self._rows.get(self._key(wanted))

    def has(self, wanted: Mapping[str, Any], failed: bool = True) -> bool:
        """Whether there is a row with this key; one that failed counts if `failed`."""
        row = self.get(wanted)
        return row is not None and (failed or not row.get(self.failure))

    def refresh(self) -> None:
        """Read what was appended since, by whomever."""
        if self.path is None:
            return
        if self.path.exists() and not self.path.is_file():
            raise RowFileError(f"{self.path} is no file that rows can be read from; choose another place")
        try:
            with self._turn, self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._seen:  # another file, or rows were taken out
                    self._rows, self._seen = {}, 0
                file.seek(self._seen)
                self._take(file.read())
        except FileNotFoundError:
            self._rows, self._seen = {}, 0

    def make_ready(self) -> None:
        """Raise the error that `add` would raise, if any, before there is a row to lose."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._turn, self._alone():
                pass

    def add(self, row: Row, again: bool = False) -> bool:
        """Append a row, unless there is one with its key; whether it was written.

        Args:
            row: numbers that are not finite become null.
            again: write it also if the one that is there failed.
        """
        row = {str(name): _plain(value) for name, value in row.items()}
        if self.path is None:
            if self.has(row, failed=not again):
                return False
            self._rows[self._key(row)] = row
            return True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._turn, self._alone() as handle:
            self.refresh()
            if self.has(row, failed=not again):
                return False
            line = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()
            os.write(handle, line)
            os.fsync(handle)
            self._take(line)
        return True

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """The file, open to append to, with its lock, and ending with a whole line."""
        assert self.path is not None
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            _lock(handle, self.path)
            size = os.fstat(handle).st_size
            end = _end_of_whole_lines(handle, size)
            if end < size and self._is_row(os.pread(handle, size - end, end)):
                os.write(handle, b"\n")  # an editor saved the file without its last line break
            elif end < size:
                os.ftruncate(handle, end)
            yield handle
        finally:
            os.close(handle)  # and with it the lock

    def _take(self, content: bytes) -> None:
        """Rows from whole lines; the rest is somebody's line under way."""
        whole = content.rfind(b"\n") + 1
        for line in content[:whole].splitlines():
            if not line.strip():
                continue
            if not self._is_row(line):
                raise RowFileError(
                    f"{self.path} holds a line that is no row with {', '.join(self.key)}: {line[:60]!r}. Remove the "
                    "line, or choose another file"
                )
            row = json.loads(line)
            fault = self.fault(row)
            if fault is not None:
                raise RowFileError(
                    f"{self.path} holds a damaged row ({fault}): {line[:160]!r}. Remove the line, and it is made again"
                )
            self._rows[self._key(row)] = row
        self._seen += whole

    def _is_row(self, line: bytes) -> bool:
        try:
            hash(self._key(json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        return True

    def _key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.key)


def _end_of_whole_lines(handle: int, size: int, step: int = 1 << 16) -> int:
    """Where the last line ends that ends with a line break."""
    end = size
    while end > 0:
        start = max(0, end - step)
        found = os.pread(handle, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _lock(handle: int, path: Path) -> None:
    """Wait for the file's lock, which ends with the process that holds it, however that ends."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX)
    except (ImportError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _WITHOUT_LOCKS:
            raise
        warnings.warn(
            f"there are no file locks in {path.parent}: let one process at a time write to {path}", stacklevel=4
        )


def _plain(value: Any) -> Any:
    """A value as JSON holds it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # a number or an array of NumPy or torch
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
