"""Folders for what is needed while a process runs: gone with it, and if it was killed, with the next one."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from bedl.data.errors import DataFileError
from bedl.files import lives

__all__ = ["Scratch"]

PREFIX = "bedl-scratch-"


class Scratch:
    """A folder among the system's temporary ones (TMPDIR) that lasts as long as this object.

    Attributes:
        path: the folder.

    Example:
        >>> scratch = Scratch()
        >>> path = scratch.path
        >>> del scratch
        >>> path.exists()
        False
    """

    def __init__(self) -> None:
        _remove_orphans(Path(tempfile.gettempdir()))
        try:
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        except OSError as error:
            raise DataFileError(f"no temporary files can be made: {error}. Set TMPDIR to another folder") from None
        # also where it is found in a cycle, or at the end of the process
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _remove_orphans(folder: Path) -> None:
    """Removes what killed processes of this user left."""
    if os.name != "posix":
        return
    with suppress(OSError):
        for path in folder.glob(f"{PREFIX}*"):
            process = path.name[len(PREFIX) :].partition("-")[0]
            with suppress(OSError):
                if process.isdigit() and path.stat().st_uid == os.getuid() and not lives(int(process)):
                    shutil.rmtree(path, ignore_errors=True)
