"""Arrow columns of any kind → numbers, days or labels, vectorised; the first value that does not fit is found.

Missing values are NaN among numbers and null among labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from bedl.data.written import iso_dates, plain_numbers, without_markers

SECONDS_A_DAY = 86_400.0


class NotParsed(ValueError):
    """A value that is not of the kind asked for; `index` counts from 0 within the column."""

    def __init__(self, index: int, value: object):
        super().__init__(f"{value!r} at {index}")
        self.index, self.value = index, value


def plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array, without dictionary encoding; text as `string`, without spaces around it."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pt.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_text(column.type):
        column = pc.utf8_trim_whitespace(column.cast(pa.string()))
    return column


def is_text(kind: pa.DataType) -> bool:
    return pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)


def kind_of_type(kind: pa.DataType) -> str | None:
    """What an Arrow type is: 'number', 'boolean', 'date', 'text', 'missing', or None if it is nothing of these."""
    if pt.is_dictionary(kind):
        return kind_of_type(kind.value_type)
    checks: dict[str, Callable[[pa.DataType], bool]] = {
        "text": is_text,
        "boolean": pt.is_boolean,
        "number": lambda t: pt.is_integer(t) or pt.is_floating(t) or pt.is_decimal(t),
        "date": lambda t: pt.is_date(t) or pt.is_timestamp(t),
        "missing": pt.is_null,
    }
    return next((name for name, check in checks.items() if check(kind)), None)


def as_numbers(array: pa.Array, style: str = "") -> np.ndarray:
    """float64, NaN where missing.

    Args:
        array: the column.
        style: how texts are written, see `bedl.data.written`; empty: as programs write numbers.

    Example:
        >>> as_numbers(pa.array(["1.5", None, "+2e3"]))
        array([1.5e+00,     nan, 2.0e+03])
        >>> as_numbers(pa.array(["$1,234.5", "-7"]), "1,234.5"), as_numbers(pa.array(["1.234,5 €"]), "1.234,5")
        (array([1234.5,   -7. ]), array([1234.5]))
    """
    if is_text(array.type):
        array = without_markers(array)
        if style:
            texts, factors = plain_numbers(array, style)
            _check_all(texts, array)
            return as_numbers(texts) * factors
    kind = kind_of_type(array.type)
    if kind in ("number", "boolean", "missing"):
        # Arrow has no cast from booleans or half floats to float64 in every version.
        if pt.is_boolean(array.type):
            array = array.cast(pa.uint8())
        return _numpy(array.cast(pa.float64(), safe=False))
    if kind != "text":
        raise NotParsed(_first_valid(array), array.type)
    return _numpy(_cast(array, lambda part: part.cast(pa.float64())))


def _check_all(read: pa.Array, array: pa.Array) -> None:
    """An error at the first text that could not be read."""
    unlike = pc.and_(pc.is_null(read), pc.is_valid(array)).to_numpy(zero_copy_only=False)
    if unlike.any():
        index = int(unlike.argmax())
        raise NotParsed(index, array[index].as_py())


def as_booleans(array: pa.Array, words: Sequence[str] = ("false", "true", "0", "1")) -> np.ndarray:
    """0.0 and 1.0, NaN where missing: from booleans, from the numbers 0 and 1, from words in any case.

    Args:
        array: the column.
        words: the texts that are taken, by turns for 0 and for 1.
    """
    if is_text(array.type):
        array = without_markers(array)
        codes = pc.index_in(pc.utf8_lower(array), value_set=pa.array(words))
        numbers = _numpy(codes.cast(pa.float64())) % 2
        wrong = np.isnan(numbers) & ~_missing(array)
    else:
        numbers = as_numbers(array)
        wrong = ~np.isnan(numbers) & (numbers != 0) & (numbers != 1)
    if wrong.any():
        index = int(wrong.argmax())
        raise NotParsed(index, array[index].as_py())
    return numbers


ANSWERS = ("false", "true", "0", "1", "no", "yes")


def as_answers(array: pa.Array) -> np.ndarray:
    """The same, also from 'yes' and 'no'.

    Example:
        >>> as_answers(pa.array(["Yes", None, "no", "1"]))
        array([ 1., nan,  0.,  1.])
    """
    return as_booleans(array, ANSWERS)


def as_days(array: pa.Array, style: str = "") -> np.ndarray:
    """Days since 1970 (UTC), with fractions, NaN where missing: from dates, timestamps, text.

    Args:
        array: the column.
        style: of `bedl.data.written.DATES`, how texts are written; empty: ISO 8601.

    Example:
        >>> as_days(pa.array(["1970-01-02", None, "1970-01-01T06:00"]))
        array([1.  ,  nan, 0.25])
        >>> as_days(pa.array(["02.01.1970", "?"]), "31/12/2023")
        array([ 1., nan])
    """
    kind = kind_of_type(array.type)
    if kind == "text":
        array = without_markers(array)
        if style:
            dates = iso_dates(array, style)
            _check_all(dates, array)
            try:
                return as_days(dates)
            except NotParsed as error:  # the 30th of February
                raise NotParsed(error.index, array[error.index].as_py()) from None
        try:
            array = _cast(array, lambda part: part.cast(pa.timestamp("us")))
        except NotParsed as naive:
            try:  # with an offset from UTC
                array = _cast(array, lambda part: part.cast(pa.timestamp("us", "UTC")))
            except NotParsed as zoned:
                raise max(naive, zoned, key=lambda error: error.index) from None
    elif kind == "date":
        zone = array.type.tz if pt.is_timestamp(array.type) else None
        array = array.cast(pa.timestamp("us", zone), safe=False)
    elif kind != "missing":
        raise NotParsed(_first_valid(array), array.type)
    # Microseconds since 1970 stay below 2⁵³ for 285 years, and days need fewer digits still.
    return _numpy(array.cast(pa.int64()).cast(pa.float64(), safe=False)) / (SECONDS_A_DAY * 1e6)


def as_labels(array: pa.Array) -> pa.Array:
    """Text, null where missing: whole numbers without a decimal point, booleans as 'true' and 'false'.

    Example:
        >>> as_labels(pa.array([1.0, None, 2.5])).to_pylist()
        ['1', None, '2.5']
    """
    if is_text(array.type):
        return array
    if kind_of_type(array.type) is None:
        raise NotParsed(_first_valid(array), array.type)
    if pt.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    if pt.is_decimal(array.type):
        array = array.cast(pa.float64())
    return array.cast(pa.string())


_LIKE = {
    "numbers": r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$",
    "dates": r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}.*)?$",
}


def share_like(values: list[str], counts: list[int]) -> tuple[str, float]:
    """What most of the texts look like, 'numbers' or 'dates', and the share of rows that do.

    Example:
        >>> share_like(["1", "2.5", "?"], [5, 4, 1])
        ('numbers', 0.9)
    """
    total = sum(counts) or 1
    shares = {
        name: sum(c for v, c in zip(values, counts, strict=True) if re.match(pattern, v)) / total
        for name, pattern in _LIKE.items()
    }
    best = max(shares, key=lambda name: shares[name])
    return best, shares[best]


def _numpy(array: pa.Array) -> np.ndarray:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.float64)


def _missing(array: pa.Array) -> np.ndarray:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def _first_valid(array: pa.Array) -> int:
    return int((~_missing(array)).argmax()) if len(array) else 0


def _cast(array: pa.Array, cast: Callable[[pa.Array], pa.Array]) -> pa.Array:
    try:
        return cast(array)
    except pa.ArrowInvalid:
        pass
    low, high = 0, len(array)  # the first value that fails is in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            cast(array.slice(low, middle - low))
            low = middle
        except pa.ArrowInvalid:
            high = middle
    raise NotParsed(low, array[low].as_py())
