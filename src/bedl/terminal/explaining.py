"""Errors as sentences for somebody who does not read Python."""

from __future__ import annotations

import errno

from bedl.errors import BEDLError, on_command_line

__all__ = ["explained"]

_ROOM = "Free some room, or choose a folder on another disk; a fit that was under way goes on with --resume"
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


def explained(error: Exception) -> str:
    """An exception as a sentence for somebody who does not read Python."""
    if isinstance(error, BEDLError):
        return on_command_line(str(error))
    if isinstance(error, MemoryError):
        return "there is not enough memory for this. Close other programs, or take fewer columns (--ignore)"
    if isinstance(error, OSError) and error.strerror:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        return f"{what}. {_REMEDIES.get(error.errno or 0, 'Check the path and the disk')}"
    if isinstance(error, ImportError):
        missing = isinstance(error, ModuleNotFoundError) and error.name
        return f"{error.name} is not installed: pip install 'bedl[all]'" if missing else str(error)
    return f"{type(error).__name__}: {error}\n--debug shows where this comes from"
