"""Files that are written whole or not at all, and never over others unasked. The one home of both."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import socket
import tempfile
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bedl._utils.errors import BEDLError, option

_ROOM = f"Free some room, or choose a folder on another disk; a fit goes on from there ({option('resume', True)})"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "The system allows no larger files here: choose a folder on another disk",
    errno.EROFS: "Choose a folder that can be written to",
    errno.EACCES: "Check the permissions, or choose another place",
    errno.EPERM: "Check the permissions, or choose another place",
    errno.ENOENT: "Was it removed meanwhile? Check the path",
    errno.EIO: "The disk cannot be read or written there: check it",
}


def remedy(error: OSError) -> str:
    """What to do about a file that cannot be read or written.

    Example:
        >>> remedy(OSError(errno.EROFS, "Read-only file system"))
        'Choose a folder that can be written to'
    """
    return _REMEDIES.get(error.errno or 0, "Check the path and the disk")


class OutputFileError(BEDLError, OSError):
    """A file or folder cannot be written where it was asked for."""


class OutputExistsError(OutputFileError, FileExistsError):
    """There is something already where the output should go; nothing has been changed."""


def check_writable(path: Path, overwrite: bool) -> None:
    """Say no before any work is done: to folders, to files that are not to be replaced, to places that are none."""
    if path.is_dir():
        raise OutputExistsError(f"{path} is a folder. Give the name of a file in it")
    if path.exists() and not overwrite:
        raise _exists(path)
    check_folder_writable(path.parent)


def check_folder_writable(folder: Path) -> None:
    """Say no to a folder in which nothing can be made."""
    if not folder.is_dir():
        raise OutputFileError(f"there is no folder {folder} (it does not exist). Create it first: mkdir -p {folder}")
    if not os.access(folder, os.W_OK):
        raise OutputFileError(f"{folder} cannot be written to. Choose another folder")


def _exists(path: Path) -> OutputExistsError:
    return OutputExistsError(f"{path} exists. Choose another name, or replace it ({option('overwrite', True)})")


class AtomicFile:
    """A hidden file beside `path` that takes its place when it is complete; those of killed processes are removed.

    Args:
        path: where the file is to be.
        overwrite: whether a file that is there may be replaced, also one that appears meanwhile.

    Attributes:
        path: where the file is to be.
        temporary: the hidden file to write to; it ends as `path` does.
    """

    def __init__(self, path: Path, overwrite: bool = True):
        self.path, self.overwrite = path, overwrite
        prefix, suffix = f".{path.stem}.{_MACHINE}-{os.getpid()}-", f".part{path.suffix}"
        remove_stale_temps(path.parent, [path.name])
        try:
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=suffix)
        except OSError as error:
            raise OutputFileError(
                f"{path.parent} cannot be written to: {error.strerror}. Choose another folder"
            ) from None
        os.close(descriptor)
        self.temporary = Path(name)

    def finish(self) -> None:
        """Flush the hidden file to disk and give it its name: at any moment the old file or the new one is there."""
        try:
            _flush(self.temporary)
            mask = os.umask(0)
            os.umask(mask)
            self.temporary.chmod(0o666 & ~mask)  # temporary files are private; results have the usual permissions
            self._put()
        finally:
            self.discard()
        _flush(self.path.parent)  # the rename itself

    def _put(self) -> None:
        if not self.overwrite:
            try:
                os.link(self.temporary, self.path)  # fails if a file has appeared meanwhile
                return
            except FileExistsError:
                raise _exists(self.path) from None
            except OSError:  # a file system without links
                if self.path.exists():
                    raise _exists(self.path) from None
        os.replace(self.temporary, self.path)

    def discard(self) -> None:
        """Remove the hidden file, if it is still there."""
        self.temporary.unlink(missing_ok=True)


_MACHINE = f"{zlib.crc32(socket.gethostname().encode()):08x}"
_PENDING = re.compile(
    r"\.(?P<stem>.+)\.(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-\w+\.part(?P<suffix>(\.[^.]+)?)", re.S | re.A
)
_FORGOTTEN = 3600  # seconds without a write, after which a file of another machine has no writer any more


def remove_stale_temps(folder: Path, names: Collection[str]) -> None:
    """Remove the hidden files of killed processes that were writing files of these names.

    Whether a process of this machine was killed can be asked. One of another machine, as on a disk that a cluster
    shares, is taken for killed when it has not written for an hour.
    """
    if os.name != "posix":
        return
    with suppress(OSError):
        for hidden in os.listdir(folder):
            found = _PENDING.fullmatch(hidden) if hidden.startswith(".") else None
            if found is not None and found["stem"] + found["suffix"] in names:
                with suppress(OSError):
                    if not _is_written(folder / hidden, found["machine"], int(found["process"])):
                        (folder / hidden).unlink()


def _is_written(path: Path, machine: str, process: int) -> bool:
    """Whether a process may be writing a hidden file right now."""
    return pid_alive(process) if machine == _MACHINE else time.time() - path.stat().st_mtime < _FORGOTTEN


def pid_alive(process: int) -> bool:
    """Whether a process of this machine is running."""
    try:
        os.kill(process, 0)  # no signal, only the question
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return not _has_ended(process)


def _has_ended(process: int) -> bool:
    """Whether a process was killed and only its number is left, as nobody has asked yet how it ended; on Linux."""
    try:
        state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2][:1]
    except OSError:
        return False
    return state in (b"Z", b"X")


@contextmanager
def atomic_write(path: Path, overwrite: bool = True) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place at the end of the block, and vanishes on an error.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_write(Path(folder, "a.txt")) as temporary:
        ...         _ = temporary.write_text("all of it")
        ...     os.listdir(folder)
        ['a.txt']
    """
    pending = AtomicFile(path, overwrite)
    try:
        yield pending.temporary
    except BaseException:
        pending.discard()
        raise
    pending.finish()


def write_atomically(path: Path, content: bytes, overwrite: bool = True) -> None:
    """Put `content` at `path` so that at any moment the old file or the new one is there, whole; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, overwrite) as temporary:
        temporary.write_bytes(content)


def in_order(content: bytes) -> bytes:
    """The same safetensors file with its metadata in alphabetical order: safetensors writes it in a random one.

    So what is equal has equal bytes. The file is the length of a JSON text in 8 bytes, that text, and the tensors.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    if "__metadata__" in header:
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Rows that outlive the process: one line of JSON each, appended whole, found again by a few of their fields.
#
# A process may be killed in the middle of a line, and several may write to one file: whoever appends holds the file's
# lock, takes away what a dead process left unfinished, and looks first whether somebody else has written the row.


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
