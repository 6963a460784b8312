"""How many threads: small steps are over before several have met, and those that wait for others compute meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["few_threads"]

LARGE = 2**26  # multiplications from which several threads pay; some milliseconds of one


@contextmanager
def few_threads(multiplications: float) -> Iterator[None]:
    """One thread inside the block, if a pass takes so few multiplications; then as many as before.

    Decided from the work alone, so that the same call gives the same numbers. A step of ten networks of a table takes
    half as much again of two processors' time as of one's, and ten times as much where others use them, too.

    Args:
        multiplications: of one pass through all networks; parameters times rows, where each is used once for a row.

    Example:
        >>> with few_threads(1000 * 64):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    alone = before > 1 and multiplications < LARGE
    if alone:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if alone:
            torch.set_num_threads(before)
