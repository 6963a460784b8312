"""Who looks on while a table is learned from or predicted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bedl.data import TableEncoder

__all__ = ["Watcher"]


class Watcher:
    """Is told what happens; override what you need. This one keeps silent.

    Attributes:
        callbacks: look on while networks are trained, see `bedl.training.Callback`.
    """

    callbacks: tuple[Any, ...] = ()

    def bar(self, text: str, total: int | None) -> AbstractContextManager[Callable[[int], object]]:
        """A block of work on `total` rows, if that is known; the function it gives is called with rows done."""
        return nullcontext(lambda count: None)

    def on_columns(self, encoder: TableEncoder) -> None:
        """It is decided how the table is read."""

    def on_trained(self, chosen: str) -> None:
        """Something was learned; what it is, in a line."""

    def on_rows(self, encoder: TableEncoder, counts: dict[str, int]) -> None:
        """The table is encoded; so many rows are for training, so many are held out."""
