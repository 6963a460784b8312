"""What every score asks of its arrays, and the error that says which one is wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bedl._utils.errors import BEDLError

Floats = NDArray[np.float64]


class MetricError(BEDLError, ValueError):
    """A score was asked of arrays that it is not defined for."""


def as_rows(**arrays: ArrayLike) -> list[Floats]:
    """The arrays as float64, checked: numbers, not empty, finite, all of one shape.

    Nothing is broadcast: an (n, 1) column against an (n,) row would compare every point with every other.
    """
    result = [_as_numbers(name, value) for name, value in arrays.items()]
    first_name, first = next(iter(arrays)), result[0]
    for name, array in zip(arrays, result, strict=True):
        if array.shape != first.shape:
            raise MetricError(
                f"{name} has shape {array.shape} but {first_name} has shape {first.shape}: "
                "give arrays of one shape (an (n, 1) column becomes a row with .ravel())"
            )
    return result


def as_table(name: str, values: ArrayLike, rows: int | None = None, *, finite: bool = True) -> Floats:
    """A float64 array of shape (n, columns), checked."""
    table = _as_numbers(name, values, finite=finite)
    if table.ndim != 2:
        raise MetricError(f"{name} has shape {table.shape}: a table of shape (n, columns) is needed")
    if rows is not None and len(table) != rows:
        raise MetricError(f"{name} has {len(table)} rows, but there are {rows} labels or targets")
    return table


def as_labels(name: str, values: ArrayLike, classes: int, *, unknown: bool = False) -> NDArray[np.intp]:
    """Class numbers 0 … classes − 1 as integers, checked; with `unknown`, also −1 where none is known. shape: (n,)"""
    labels = np.asarray(values)
    if labels.ndim != 1 or labels.size == 0:
        raise MetricError(f"{name} has shape {labels.shape}: one class number per row is needed, and at least one row")
    needed = f"0 to {classes - 1}" + (", or -1 where not known" if unknown else "")
    if not np.issubdtype(labels.dtype, np.integer):
        raise MetricError(f"{name} are of type {labels.dtype}: give class numbers as integers, {needed}")
    if labels.min() < -unknown or labels.max() >= classes:
        raise MetricError(f"{name} lie between {labels.min()} and {labels.max()}, outside of {needed}")
    return labels.astype(np.intp, copy=False)


def _as_numbers(name: str, values: Any, *, finite: bool = True) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise MetricError(f"{name} are not numbers: give an array of numbers") from None
    if array.size == 0:
        raise MetricError(f"{name} is empty: a score needs at least one row")
    bad = ~np.isfinite(array) if finite else np.isnan(array)
    if bad.any():
        raise MetricError(
            f"{name} has {int(bad.sum())} of {array.size} values that are NaN{' or infinite' if finite else ''}: "
            "leave these rows out of all arrays first"
        )
    return array


def normal_cdf(z: Floats) -> Floats:
    """Φ(z) to the last digits in both tails; NumPy has no erf of its own, and SciPy is not needed for one function.

    >>> normal_cdf(np.array([0.0, -1.959963984540054])).round(6).tolist()
    [0.5, 0.025]
    """
    flat = np.ravel(z) * -math.sqrt(0.5)
    result = np.empty(flat.size)
    for start in range(0, flat.size, 65_536):  # in parts: a list of all values takes four times the memory
        part = flat[start : start + 65_536].tolist()
        result[start : start + len(part)] = [0.5 * math.erfc(x) for x in part]
    return result.reshape(np.shape(z))
