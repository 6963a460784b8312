"""Numbers and dates as people write them: with units, currencies and suffixes; in national orders; or as missing.

A *style* says how a whole column is written. Of numbers it is an example of their marks, with what stands behind them:
"1,234.5", "1.234,5", "1,234.5 sq ft", or "1,234.5k" where letters such as k and m multiply. Of dates it is one of
`DATES`.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
