"""What can be wrong with data, and with the places it is read from or written to."""

from __future__ import annotations

from bedl.errors import BEDLError

__all__ = ["DataError", "DataFileError", "DataFileNotFoundError", "listed"]


class DataError(BEDLError, ValueError):
    """What a file or a table holds cannot be used; the message says why, where, and what to do."""


class DataFileError(BEDLError, OSError):
    """A file or folder cannot be read or downloaded."""


class DataFileNotFoundError(DataFileError, FileNotFoundError):
    """There is no such file, folder or data set."""


def listed(names: list[str] | tuple[str, ...], most: int = 8) -> str:
    """Names for a message: quoted, and no more of them than can be read.

    Example:
        >>> listed(["age", "size"])
        "'age', 'size'"
        >>> listed([str(i) for i in range(100)], most=2)
        "'0', '1' and 98 more"
    """
    shown = ", ".join(repr(name if len(name) <= 60 else name[:57] + "…") for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
