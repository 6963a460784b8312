"""Where a model folder goes: one writer at a time, replaced in one step, and a way out of whatever a kill leaves.

Beside a place `m` there may be `m.partial`, a fit under way or interrupted; `.m.new`, a model being saved; `.m.gone`,
what is being removed; and `.m.lock`, held by the one process that writes. A new model is made in the folder `model` of
the first or the second, and changes places with the old one in one step where the system can do that. Where it cannot,
the old one waits in the folder `old` for a moment, and comes back if the process dies in that moment.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bedl.errors import option
from bedl.files import OutputExistsError, OutputFileError, refuse_unwritable_folder

__all__ = ["CARD", "actual", "locked", "new_of", "partial_of", "put_in_place", "refuse_taken", "remove"]

CARD = "model.json"
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_EXCHANGE, _HERE = 2, -100  # RENAME_EXCHANGE and AT_FDCWD of Linux


# -- names ----------------------------------------------------------------------------------------------
def partial_of(place: Path) -> Path:
    """Where a fit keeps what it has done until its model is complete."""
    return place.with_name(place.name + ".partial")


def new_of(place: Path) -> Path:
    """Where a model is while it is being saved."""
    return place.with_name(f".{place.name}.new")


def actual(place: Path) -> Path:
    """The folder itself where a name is a link to one."""
    if place.is_symlink() and not place.exists():
        raise OutputExistsError(f"{place} is a link to nothing. Remove it, or choose another name ({option('out')})")
    return place.resolve() if place.is_symlink() else place


def refuse_taken(place: Path, overwrite: bool) -> None:
    """Say no, before any work, to a place that cannot be written, or holds what must not be lost."""
    if place.is_dir() and overwrite and not (place / CARD).is_file() and any(place.iterdir()):
        raise OutputExistsError(f"{place} is a folder that holds no model, and is not overwritten. Choose another")
    if place.exists() and not place.is_dir():
        raise OutputExistsError(f"{place} is a file. Choose another name for the model's folder ({option('out')})")
    if place.exists() and not overwrite:
        begun = f"; with {option('resume', True)}, to go on with the fit that was interrupted"
        raise OutputExistsError(
            f"{place} exists. Choose another name, or replace it "
            f"({option('overwrite', True)}{begun if partial_of(place).exists() else ''})"
        )
    refuse_unwritable_folder(place.parent)


# -- one writer -----------------------------------------------------------------------------------------
@contextmanager
def locked(place: Path) -> Iterator[None]:
    """A block in which no other process writes to a place; what a kill left there is put right first.

    The lock is the operating system's: it ends with the process that holds it, however that ends, so none is ever
    stale. On network file systems it holds between machines as far as these pass locks on, as NFS does; one without
    locks is said by a warning.
    """
    refuse_unwritable_folder(place.parent)
    path = place.with_name(f".{place.name}.lock")
    handle = _acquired(path, place)
    try:
        _put_right(place)
        yield
    finally:
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(handle)


def _acquired(path: Path, place: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if _holds(handle, path, place):
                return handle
        except BlockingIOError:
            os.close(handle)
            raise OutputFileError(
                f"another process is writing to {place}{_holder(path)}. Wait until it ends, or choose another name "
                f"({option('out')})"
            ) from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # of a file that the one before us has removed after we had opened it


def _holds(handle: int, path: Path, place: Path) -> bool:
    """Takes the lock of an open file and says whose it is; False if the file is no longer the one at the path."""
    _lock(handle, place)
    try:
        if not os.path.samestat(os.stat(path), os.fstat(handle)):
            return False
    except FileNotFoundError:
        return False
    who = {"process": os.getpid(), "machine": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.ftruncate(handle, 0)
    os.write(handle, json.dumps(who).encode())
    return True


def _lock(handle: int, place: Path) -> None:
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ImportError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _WITHOUT_LOCKS:
            raise
        warnings.warn(
            f"there are no file locks in {place.parent}: see to it that nothing else writes to {place} meanwhile",
            stacklevel=4,
        )


def _holder(path: Path) -> str:
    try:
        who = json.loads(path.read_text())
        return f" (process {int(who['process'])} on {who['machine']} since {who['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _put_right(place: Path) -> None:
    """What a kill left: an old model comes back if the new one did not take its place, the rest is removed."""
    for folder in (partial_of(place), new_of(place)):
        if (folder / "old" / CARD).is_file() and not place.exists():
            os.replace(folder / "old", place)
    for folder in (partial_of(place) / "old", new_of(place), _gone(place)):
        if folder.is_dir():
            shutil.rmtree(folder)


# -- in one step ----------------------------------------------------------------------------------------
def put_in_place(folder: Path, place: Path) -> None:
    """The complete model in `folder / "model"` to its place, and `folder` removed, with what was there before."""
    new, old = folder / "model", folder / "old"
    if not place.exists():
        os.replace(new, place)
    elif not _exchanged(new, place):
        os.replace(place, old)
        try:
            os.replace(new, place)
        except OSError:
            os.replace(old, place)
            raise
    remove(folder, place)


def remove(folder: Path, place: Path) -> None:
    """A folder beside `place`, at once: a kill leaves all of it, or what the next writer removes."""
    os.replace(folder, _gone(place))
    shutil.rmtree(_gone(place), ignore_errors=True)


def _gone(place: Path) -> Path:
    return place.with_name(f".{place.name}.gone")


def _exchanged(one: Path, other: Path) -> bool:
    """Two folders under each other's names, in one step; False where the system has no such step."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)
