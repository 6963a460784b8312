"""Bars for rows that are read and predicted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from bedl.cli.screen import bar
from bedl.tabular import Watcher

__all__ = ["Bars"]


class Bars(Watcher):
    """Shows on stderr how far the rows of a table are, if that is a terminal."""

    def bar(self, text: str, total: int | None) -> AbstractContextManager[Callable[[int], object]]:
        return bar(text, total)
