"""Folders for what is needed while a process runs: gone with it, and if it was killed, with the next one."""

from __future__ import annotations

import os
import shutil
import tempfile
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
            self._folder = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True)
        except OSError as error:
            raise DataFileError(f"no temporary files can be made: {error}. Set TMPDIR to another folder") from None
        self.path = Path(self._folder.name)

    def __del__(self) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()


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
