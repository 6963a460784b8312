"""Files that are written whole or not at all, and never over others unasked. The one home of both."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import tempfile
import time
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bedl.errors import BEDLError, option

__all__ = [
    "OutputExistsError",
    "OutputFileError",
    "PendingFile",
    "in_order",
    "lives",
    "refuse_unwritable",
    "refuse_unwritable_folder",
    "remedy",
    "remove_leftovers",
    "write_atomically",
    "written_whole",
]

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


def refuse_unwritable(path: Path, overwrite: bool) -> None:
    """Say no before any work is done: to folders, to files that are not to be replaced, to places that are none."""
    if path.is_dir():
        raise OutputExistsError(f"{path} is a folder. Give the name of a file in it")
    if path.exists() and not overwrite:
        raise _exists(path)
    refuse_unwritable_folder(path.parent)


def refuse_unwritable_folder(folder: Path) -> None:
    """Say no to a folder in which nothing can be made."""
    if not folder.is_dir():
        raise OutputFileError(f"there is no folder {folder} (it does not exist). Create it first: mkdir -p {folder}")
    if not os.access(folder, os.W_OK):
        raise OutputFileError(f"{folder} cannot be written to. Choose another folder")


def _exists(path: Path) -> OutputExistsError:
    return OutputExistsError(f"{path} exists. Choose another name, or replace it ({option('overwrite', True)})")


class PendingFile:
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
        remove_leftovers(path.parent, [path.name])
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


def remove_leftovers(folder: Path, names: Collection[str]) -> None:
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
    return lives(process) if machine == _MACHINE else time.time() - path.stat().st_mtime < _FORGOTTEN


def lives(process: int) -> bool:
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
def written_whole(path: Path, overwrite: bool = True) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place at the end of the block, and vanishes on an error.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with written_whole(Path(folder, "a.txt")) as temporary:
        ...         _ = temporary.write_text("all of it")
        ...     os.listdir(folder)
        ['a.txt']
    """
    pending = PendingFile(path, overwrite)
    try:
        yield pending.temporary
    except BaseException:
        pending.discard()
        raise
    pending.finish()


def write_atomically(path: Path, content: bytes, overwrite: bool = True) -> None:
    """Put `content` at `path` so that at any moment the old file or the new one is there, whole; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path, overwrite) as temporary:
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
