"""Arrow columns of any kind → numbers, days or labels, vectorised; the first value that does not fit is found.

Missing values are NaN among numbers and null among labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

MARKERS = ("?", "-", "--", ".", "n/a", "na", "none", "null", "unknown", "missing")
"""What stands for a missing value in a column of numbers or dates, in any case."""

MONEY = r"[$€£¥₹]|\b(USD|EUR|GBP|CHF|JPY)\b"
_SYMBOL, _CODE = r"[$€£¥₹%]", r"(?:USD|EUR|GBP|CHF|JPY)"
_SIGN = rf"(?:[+-]?{_SYMBOL}? ?|{_SYMBOL} ?[+-])"
NUMBERS: dict[str, str] = {
    "1,234.5": r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?",
    "1.234,5": r"(?:\d{1,3}(?:[.]\d{3})+|\d+)(?:,\d+)?",
}
_SUFFIX = r"[^\d\s.,+$€£¥₹%-](?:[^\d]{0,15}[23²³]?)"
_MAGNITUDES = {
    "k": 1e3, "tsd": 1e3, "thousand": 1e3, "m": 1e6, "mn": 1e6, "mio": 1e6, "million": 1e6, "b": 1e9, "bn": 1e9,
    "billion": 1e9,
}  # fmt: skip
_LENGTH = len("1,234.5")  # of the marks in a style


def without_markers(array: pa.Array) -> pa.Array:
    """Text with null in place of `MARKERS`.

    Example:
        >>> without_markers(pa.array(["1", "?", "Unknown"])).to_pylist()
        ['1', None, None]
    """
    marked = pc.is_in(pc.utf8_lower(array), value_set=pa.array(MARKERS))
    return pc.if_else(marked, pa.scalar(None, array.type), array) if pc.any(marked).as_py() else array


def with_missing(batch: pa.RecordBatch, markers: Collection[str]) -> pa.RecordBatch:
    """A batch with null in place of the texts, or the numbers, that a user calls missing.

    Example:
        >>> batch = pa.RecordBatch.from_pydict({"x": [1.0, -999.0], "y": ["a", "-999"]})
        >>> with_missing(batch, ["-999"]).to_pydict()
        {'x': [1.0, None], 'y': ['a', None]}
    """
    if not markers:
        return batch
    columns = []
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            marked = np.isin(column.to_numpy(zero_copy_only=False), _as_floats(markers))
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            texts = pc.utf8_trim_whitespace(column)
            found = pc.is_in(texts, value_set=pa.array(list(markers), column.type))
            marked = found.to_numpy(zero_copy_only=False)
        else:
            marked = np.zeros(len(column), dtype=bool)
        columns.append(pc.if_else(pa.array(marked), pa.scalar(None, column.type), column))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _as_floats(markers: Collection[str]) -> list[float]:
    found = []
    for marker in markers:
        try:
            found.append(float(marker))
        except ValueError:
            continue
    return found


# -- numbers ------------------------------------------------------------------------------------------
def number_styles(array: pa.Array) -> set[str]:
    """The marks with which every text can be read as a number, whatever stands behind it.

    Example:
        >>> number_styles(pa.array(["$1,000.50", "$20"])), number_styles(pa.array(["3,5 kg", None]))
        ({'1,234.5'}, {'1.234,5'})
    """
    return {
        name
        for name, digits in NUMBERS.items()
        if pc.all(pc.match_substring_regex(array, rf"^{_SIGN}{digits} ?(?:{_SUFFIX}|{_SYMBOL}|{_CODE})?$")).as_py()
        is not False
    }


def suffixes(array: pa.Array) -> set[str]:
    """What stands behind the numbers, in lower case and without currencies.

    Example:
        >>> sorted(suffixes(pa.array(["836 sq ft", "$1.5M", "7 EUR"])))
        ['', 'm', 'sq ft']
    """
    behind = pc.replace_substring_regex(pc.unique(array.drop_null()), r"^[^\d]*[\d.,]+", "")
    bare = pc.replace_substring_regex(behind, rf"{_SYMBOL}|\b{_CODE}\b", "")
    return set(pc.unique(pc.utf8_lower(pc.utf8_trim_whitespace(bare))).to_pylist())


def style_with(marks: str, behind: Collection[str], money: bool) -> str | None:
    """The style of numbers with these marks, and these texts behind them; None if they are no unit.

    Example:
        >>> style_with("1,234.5", {"sq ft"}, False), style_with("1,234.5", {"k", "m", ""}, False)
        ('1,234.5 sq ft', '1,234.5k')
        >>> style_with("1,234.5", {"m"}, False), style_with("1,234.5", {"st", "nd"}, False)
        ('1,234.5 m', None)
    """
    units = set(behind) - {""}
    if not units:
        return marks
    # m alone may be metres, and needs no factor
    if units <= set(_MAGNITUDES) and (money or len(units) > 1 or units & {"k", "thousand", "million", "billion"}):
        return f"{marks}k"
    stems = {unit.removesuffix("s") or unit for unit in units}
    return f"{marks} {stems.pop()}" if len(stems) == 1 else None


def plain_numbers(array: pa.Array, style: str) -> tuple[pa.Array, np.ndarray]:
    """Texts that read as programs write numbers, null where a text is not of the style; and factors on them.

    Example:
        >>> texts, factors = plain_numbers(pa.array(["$1,234.5k", "7 m", "red"]), "1,234.5k")
        >>> texts.to_pylist(), factors.tolist()
        (['1234.5', '7', None], [1000.0, 1000000.0, 1.0])
    """
    marks, unit = style[:_LENGTH], style[_LENGTH:]
    behind = "|".join(_MAGNITUDES) if unit == "k" else f"{_escaped(unit.strip())}s?" if unit else ""
    money = rf" ?(?:{_SYMBOL}|{_CODE})?"
    like = rf"(?i)^(?P<sign>{_SIGN})(?P<digits>{NUMBERS[marks]})(?: ?(?P<unit>{behind}))?{money}$"
    found = pc.extract_regex(array, like)
    sign = pc.if_else(pc.match_substring(found.field("sign"), "-"), "-", "")
    digits = pc.replace_substring(pc.replace_substring(found.field("digits"), marks[1], ""), marks[5], ".")
    texts = pc.if_else(pc.is_valid(found), pc.binary_join_element_wise(sign, digits, ""), pa.scalar(None, pa.string()))
    if unit != "k":
        return texts, np.ones(len(array))
    place = pc.index_in(pc.utf8_lower(found.field("unit")), value_set=pa.array(list(_MAGNITUDES)))
    factors = np.array([1.0, *_MAGNITUDES.values()])
    return texts, factors[pc.fill_null(place, -1).to_numpy(zero_copy_only=False) + 1]


def _escaped(unit: str) -> str:
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", unit)  # RE2 takes no escapes of other characters


# -- dates --------------------------------------------------------------------------------------------
_DAY, _MONTH, _YEAR = r"(?P<d>0?[1-9]|[12]\d|3[01])", r"(?P<m>0?[1-9]|1[0-2])", r"(?P<y>[12]\d{3})"
_NAME = (
    r"(?P<m>(?i:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
    r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?))"
)
_TIME = r"(?:,?[ T]+(?P<h>\d{1,2}):(?P<min>\d{2})(?::(?P<s>\d{2}(?:\.\d+)?))?(?: ?(?P<half>(?i:am|pm)))?)?"
DATES: dict[str, str] = {
    "31/12/2023": rf"^{_DAY}[./-]{_MONTH}[./-]{_YEAR}{_TIME}$",
    "12/31/2023": rf"^{_MONTH}[./-]{_DAY}[./-]{_YEAR}{_TIME}$",
    "2023/12/31": rf"^{_YEAR}[./]{_MONTH}[./]{_DAY}{_TIME}$",
    "31 Dec 2023": rf"^{_DAY}[. -]{{1,2}}{_NAME}[., -]{{1,2}}{_YEAR}{_TIME}$",
    "Dec 31, 2023": rf"^{_NAME}[. ]{{1,2}}{_DAY},? {_YEAR}{_TIME}$",
}
"""How dates are written beside YYYY-MM-DD: an example, and what they look like."""

_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def date_styles(array: pa.Array) -> set[str]:
    """The styles in which every text can be read as a date.

    Example:
        >>> date_styles(pa.array(["07/14/2023", "01/02/2023"])), date_styles(pa.array(["14 Jul 2023", None]))
        ({'12/31/2023'}, {'31 Dec 2023'})
    """
    return {name for name, like in DATES.items() if pc.all(pc.match_substring_regex(array, like)).as_py() is not False}


def iso_dates(array: pa.Array, style: str) -> pa.Array:
    """Texts as ISO 8601 has them, null where one is not of the style.

    Example:
        >>> iso_dates(pa.array(["Jul 4, 2023", "Dec 31, 2023 7:05 pm", "x"]), "Dec 31, 2023").to_pylist()
        ['2023-07-04T00:00:00', '2023-12-31T19:05:00', None]
    """
    found = pc.extract_regex(array, DATES[style])
    day, month, year, hour, minute, second, half = (
        pc.fill_null(pc.replace_substring_regex(found.field(name), "^$", "0"), "0")
        for name in ("d", "m", "y", "h", "min", "s", "half")
    )
    number = pc.index_in(pc.utf8_slice_codeunits(pc.utf8_lower(month), 0, 3), value_set=pa.array(_NAMES))
    month = pc.coalesce(pc.cast(pc.add(number, 1), pa.string()), month)
    clock = pc.cast(hour, pa.int64())
    twelve, half = pc.equal(clock, 12), pc.utf8_lower(half)
    clock = pc.if_else(pc.and_(pc.equal(half, "pm"), pc.invert(twelve)), pc.add(clock, 12), clock)
    clock = pc.if_else(pc.and_(pc.equal(half, "am"), twelve), 0, clock)
    two = {"width": 2, "padding": "0"}
    date = pc.binary_join_element_wise(year, pc.utf8_lpad(month, **two), pc.utf8_lpad(day, **two), "-")
    parts = (pc.utf8_lpad(pc.cast(clock, pa.string()), **two), pc.utf8_lpad(minute, **two))
    # seconds may have decimals, which stand behind their two digits
    seconds = pc.if_else(pc.equal(pc.utf8_length(second), 1), pc.utf8_lpad(second, **two), second)
    time = pc.binary_join_element_wise(*parts, seconds, ":")
    whole = pc.binary_join_element_wise(date, time, "T")
    return pc.if_else(pc.is_valid(found), whole, pa.scalar(None, pa.string()))


def is_style(text: str) -> bool:
    """Whether a text from a file names a style."""
    return text in DATES or (text[:_LENGTH] in NUMBERS and (text[_LENGTH:] in ("", "k") or text[_LENGTH] == " "))


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
        style: how texts are written, see `bedl.data.parsing`; empty: as programs write numbers.

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
        style: of `bedl.data.parsing.DATES`, how texts are written; empty: ISO 8601.

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
