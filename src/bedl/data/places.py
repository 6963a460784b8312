"""Where data sets are on this machine."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

__all__ = ["data_root"]


def data_root(root: str | PathLike[str] | None = None) -> Path:
    """`root` if given, else $BEDL_DATA, else ~/.cache/bedl."""
    chosen = root or os.environ.get("BEDL_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "bedl"
