"""What some rows look like, and the error of records that do not fit together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bedl.errors import BEDLError

__all__ = ["Array", "Examples", "ResultsError"]

Array = NDArray[Any]


class ResultsError(BEDLError, ValueError):
    """The results do not fit together, or there is nothing to show."""


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
    """What some of the rows look like: a few of their columns, or their images.

    Args:
        columns: name → one value per example; any values, shown as text.
        images: 0 … 255, grey (k, H, W) or (k, 1, H, W), colour (k, 3, H, W). dtype: uint8
        index: which rows these are, counted from 0; all rows in order if left out. shape: (k,)

    >>> Examples(columns={"age": [40, 50, 60]}).take(np.array([2, 0])).columns
    {'age': [60, 40]}
    """

    columns: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    images: Array | None = None
    index: Array = None  # type: ignore[assignment]  # never None once made

    def __post_init__(self) -> None:
        lengths = {len(values) for values in self.columns.values()}
        if self.images is not None:
            images = self.images
            grey = images.ndim == 3 or (images.ndim == 4 and images.shape[1] == 1)
            if images.dtype != np.uint8 or not (grey or (images.ndim == 4 and images.shape[1] == 3)):
                raise ResultsError(
                    f"images are {images.dtype} of shape {images.shape}: give uint8 of shape (k, H, W), "
                    "(k, 1, H, W) or (k, 3, H, W)"
                )
            lengths.add(len(images))
        if len(lengths) > 1:
            raise ResultsError(f"columns and images of the examples differ in length: {sorted(lengths)}")
        if self.index is None:
            object.__setattr__(self, "index", np.arange(lengths.pop() if lengths else 0))
        elif lengths and len(self.index) not in lengths:
            raise ResultsError(f"index names {len(self.index)} rows, but there are {lengths.pop()} examples")

    def __len__(self) -> int:
        return len(self.index)

    def take(self, which: Array) -> Examples:
        """The examples at these positions, in this order."""
        return Examples(
            {name: [values[i] for i in which.tolist()] for name, values in self.columns.items()},
            None if self.images is None else self.images[which],
            self.index[which],
        )
