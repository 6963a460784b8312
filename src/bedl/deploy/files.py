"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bedl.errors import BEDLError

__all__ = ["ExportError", "OutputFileError", "refuse_unwritable", "written_whole"]


class ExportError(BEDLError, ValueError):
    """A model cannot be exported, or its export does not agree with it."""


class OutputFileError(BEDLError, OSError):
    """A file cannot be written where it was asked for."""


def refuse_unwritable(path: Path, overwrite: bool) -> None:
    """Say no before any work is done."""
    if path.is_dir():
        raise OutputFileError(f"{path} is a folder; name a file in it")
    if path.exists() and not overwrite:
        raise OutputFileError(f"{path} exists; pass overwrite=True to replace it, or choose another name")
    if not path.parent.is_dir():
        raise OutputFileError(f"the folder {path.parent} does not exist; create it first")
    if not os.access(path.parent, os.W_OK):
        raise OutputFileError(f"the folder {path.parent} cannot be written to; choose another one")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place at the end of the block, and vanishes on an error."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        mode = 0o666 & ~_umask()
        temporary.chmod(mode)  # mkstemp's files are for their owner alone
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
