"""Errors as sentences for somebody who does not read Python."""

from __future__ import annotations

from bedl.errors import BEDLError, on_command_line
from bedl.files import remedy

__all__ = ["explained"]


def explained(error: Exception) -> str:
    """An exception as a sentence for somebody who does not read Python."""
    if isinstance(error, BEDLError):
        return on_command_line(str(error))
    if isinstance(error, MemoryError):
        return "there is not enough memory for this. Close other programs, or take fewer columns (--ignore)"
    if isinstance(error, OSError) and error.strerror:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        return f"{what}. {remedy(error)}"
    if isinstance(error, ImportError):
        missing = isinstance(error, ModuleNotFoundError) and error.name
        return f"{error.name} is not installed: pip install 'bedl[all]'" if missing else str(error)
    return f"{type(error).__name__}: {error}\n--debug shows where this comes from"
