"""The tables, one file each; a table is found by the name of its file."""

from __future__ import annotations

import importlib
import pkgutil

from bedl.bench.benchmark import BenchError, Table

__all__ = ["get", "names"]


def names() -> list[str]:
    """All tables.

    Example:
        >>> "uci" in names()
        True
    """
    return sorted(name for _, name, _ in pkgutil.iter_modules(__path__) if not name.startswith("_"))


def get(name: str) -> Table:
    """The table of a name; an error with all names if there is none.

    Example:
        >>> get("uci").name
        'uci'
    """
    if name not in names():
        raise BenchError(f"there is no table {name!r}; there are {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    found: Table = module.TABLE
    return found
