"""What the columns of a table hold: streaming passes in bounded memory, before anything is decided."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bedl._utils.errors import DataError, listed, option
from bedl.data import parsing
from bedl.data.columns import (
    BUCKETS,
    BooleanColumn,
    CategoryColumn,
    Column,
    DateColumn,
    NumberColumn,
    TextColumn,
    Where,
    WordCounts,
    finite,
    shown,
    words_of,
)
from bedl.data.readers import Table

Progress = Callable[[int], object]
"""Called with the number of rows read since the last call."""

MANY_WORDS = 4  # in a text, on average, from which on it is free text
MAX_IDENTIFIERS = 1_000_000  # numbers that are remembered to find one twice

SENTINELS = tuple(sign * value for sign in (-1.0, 1.0) for value in (9, 99, 999, 9999, 99999))
_MOST_SUFFIXES = 8  # that the numbers of a column may have
_READERS: dict[str, Callable[..., np.ndarray]] = {
    "number": parsing.as_numbers,
    "boolean": parsing.as_booleans,
    "date": parsing.as_days,
}


@dataclass
class ColumnProfile:
    """One column: its kind so far, and the moments of its numbers (days, if it holds dates).

    Text is taken for numbers, booleans or dates only as long as every value is one; else it is 'category'.
    """

    name: str
    kind: str | None = None  # None: nothing but missing values so far
    rows: int = 0
    missing: int = 0
    nulls: int = 0  # the missing values that no marker stands for
    mean: float = 0.0
    squares: float = 0.0  # sum of squared differences from the mean
    low: float = np.inf
    high: float = -np.inf
    whole: bool = True  # all numbers are integers
    unlike: dict[str, tuple[int, object]] = field(
        default_factory=dict
    )  # by kind: first row (from 1) and text not of it
    frequencies: Counter[float] | None = None  # of the distinct numbers; None if nobody asked, or they are too many
    most_distinct: int = 1000
    typed_text: bool = False  # text by the file's own account
    style: str = ""  # how its numbers or dates are written, see `bedl.data.parsing`
    styles: set[str] | None = None  # of numbers in which all its texts can be read, from the first that is no plain one
    dates: set[str] | None = None  # the same of dates
    marks: set[str] = field(default_factory=set)  # points and commas in such texts
    suffixes: set[str] = field(default_factory=set)  # and what stands behind their digits
    money: bool = False  # one of them has a currency
    rest_low: float = np.inf  # of the numbers that are no `SENTINELS`
    rest_high: float = -np.inf
    sentinels: Counter[float] = field(default_factory=Counter)
    distinct: set[float] | None = None  # numbers seen so far, if asked for; None also if one was seen twice
    rising: bool = True  # each number is larger than the one before
    last: float = -np.inf
    digits: bool = True  # all texts are digits and nothing else
    padded: bool = False  # one of them, at least, begins with a zero that a number would not have
    codes: bool = False  # such are labels: '00123' is another place than '123'

    @property
    def present(self) -> int:
        return self.rows - self.missing

    @property
    def std(self) -> float:
        return float(np.sqrt(self.squares / max(self.present, 1)))

    def see(self, column: pa.Array) -> None:
        """Takes the next rows into account."""
        array = parsing.plain(column)
        typed = parsing.kind_of_type(array.type)
        if typed is None:
            raise DataError(
                f"column {listed([self.name])} is of type {array.type}, which cannot be turned into features. "
                f"Leave it out ({option('ignore', [self.name])}), or store numbers, text, booleans or dates"
            )
        where = Where(self.name, self.rows)
        values = None
        if array.null_count < len(array) and self.kind != "category":
            values = self._text_values(array) if typed == "text" else self._typed_values(array, typed)
        if typed == "text" and self.kind == "category":
            self._see_written(parsing.without_markers(array))
        if typed == "text" and self.kind == "number" and self.digits:
            self.digits = pc.all(pc.match_substring_regex(array, r"^\d+$")).as_py() is not False
            self.padded = self.padded or bool(pc.any(pc.match_substring_regex(array, r"^0\d")).as_py())
        self.missing += array.null_count if values is None else int(np.isnan(values).sum())
        self.nulls += array.null_count
        self.rows += len(array)
        if values is not None:
            self._add(finite(values, where))

    def _see_written(self, array: pa.Array) -> None:
        """How the numbers or dates in a batch of text may be written."""
        if self.dates != set():
            fits = parsing.date_styles(array)
            self.dates = fits if self.dates is None else self.dates & fits
        if self.styles == set():
            return
        found = parsing.number_styles(array)
        self.styles = found if self.styles is None else self.styles & found
        if not self.styles:
            return
        self.marks |= {mark for mark in ".," if pc.any(pc.match_substring_regex(array, rf"\d[{mark}]\d")).as_py()}
        self.money = self.money or bool(pc.any(pc.match_substring_regex(array, parsing.MONEY)).as_py())
        self.suffixes |= parsing.suffixes(array)
        codes = pc.any(pc.match_substring_regex(array, r"^0\d")).as_py()  # '007x' is no number, nor is '007'
        if len(self.suffixes) > _MOST_SUFFIXES or codes:
            self.styles = set()

    def _typed_values(self, array: pa.Array, kind: str) -> np.ndarray:
        self.kind = kind
        return _READERS[kind](array)

    def _text_values(self, array: pa.Array) -> np.ndarray | None:
        for kind in [self.kind] if self.kind else _READERS:
            try:
                values = (
                    _READERS[kind](array, self.style) if kind == _kind_of_style(self.style) else _READERS[kind](array)
                )
                self.kind = None if np.isnan(values).all() else kind  # nothing but markers of missing values is no kind
                return values
            except parsing.NotParsed as error:
                self.unlike[kind] = (self.rows + error.index + 1, error.value)
        self.kind, self.missing = "category", self.nulls  # markers of missing values are labels like others
        return None

    def likely_missing(self) -> list[float]:
        """Numbers that may well stand for missing values: often there, and far from all others."""
        reach = self.rest_high - self.rest_low
        return [
            value
            for value, count in sorted(self.sentinels.items())
            if count > 1 and reach > 0 and not self.rest_low - reach <= value <= self.rest_high + reach
        ]

    def _add(self, values: np.ndarray) -> None:
        """Chan's formula for the moments of a union; sums of squares would cancel."""
        values = values[~np.isnan(values)]
        if not len(values):
            return
        before = self.present - len(values)
        mean = float(values.mean())
        gap = mean - self.mean
        self.squares += float(((values - mean) ** 2).sum()) + gap * gap * before * len(values) / self.present
        self.mean += gap * len(values) / self.present
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        self.whole = self.whole and bool((values == np.rint(values)).all())
        marked = np.isin(values, SENTINELS)
        self.sentinels.update(values[marked].tolist())
        rest = values[~marked]
        self.rest_low = min(self.rest_low, float(rest.min(initial=np.inf)))
        self.rest_high = max(self.rest_high, float(rest.max(initial=-np.inf)))
        self._see_order(values)
        if self.frequencies is not None:
            distinct, counts = np.unique(values, return_counts=True)
            self.frequencies.update(dict(zip(distinct.tolist(), counts.tolist(), strict=True)))
            if len(self.frequencies) > self.most_distinct:
                self.frequencies = None

    def _see_order(self, values: np.ndarray) -> None:
        if self.rising:
            self.rising = bool((np.diff(values, prepend=self.last) > 0).all())
            self.last = float(values[-1])
        if self.distinct is not None:
            before = len(self.distinct)
            self.distinct.update(values.tolist())
            if len(self.distinct) < before + len(values) or len(self.distinct) > MAX_IDENTIFIERS:
                self.distinct = None


@dataclass
class LabelCounts:
    """How often each text occurs. Beyond some number of distinct texts the rare ones are forgotten."""

    most: int = 20_000
    counts: Counter[str] = field(default_factory=Counter)
    total: int = 0
    exact: bool = True

    def see(self, column: pa.Array) -> None:
        """Counts the next rows."""
        labels = parsing.as_labels(parsing.plain(column)).drop_null()
        self.total += len(labels)
        found = pc.value_counts(labels)
        self.counts.update(dict(zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True)))
        if len(self.counts) > 2 * self.most:
            self.counts = Counter(dict(self.counts.most_common(self.most)))
            self.exact = False


def profile(
    table: Table,
    columns: Sequence[str],
    categorical: Collection[str],
    targets: Sequence[str],
    numeric: bool,
    progress: Progress | None = None,
    decimal: str = "auto",
    date_order: str = "auto",
) -> dict[str, ColumnProfile]:
    """First pass: kinds and moments of the columns.

    Args:
        table: the table.
        columns: the names of the columns to look at.
        categorical: those that hold labels, whatever they look like.
        targets: those to predict.
        numeric: whether the targets are meant as numbers, even if they are stored as text.
        progress: called with the number of rows read since the last call.
        decimal: "." or ",", the mark before the decimals of numbers in text; "auto" finds out.
        date_order: "dmy" or "mdy", whether day or month comes first in dates such as 01/02/2023; "auto" finds out.
    """
    first = "1.234,5" if decimal == "," else ""
    result = {name: ColumnProfile(name, "category" if name in categorical else None, style=first) for name in columns}
    _look(table, result, targets, numeric, progress)
    for name, column in result.items():
        if column.kind == "number" and column.digits and column.padded and not (numeric and name in targets):
            column.kind, column.codes = "category", True
        if column.kind in ("date", "boolean"):
            column.style = ""  # which was one of numbers
    # Numbers and dates as people write them are found after the whole column was seen, and then read once more.
    styles = {name: _style(column, decimal, date_order) for name, column in result.items() if name not in categorical}
    again = {name: ColumnProfile(name, style=style) for name, style in styles.items() if style is not None}
    if again:
        _look(table, again, targets, numeric, progress)
        result |= {name: column for name, column in again.items() if column.kind in ("number", "date")}
    return result


def _kind_of_style(style: str) -> str:
    return "date" if style in parsing.DATES else "number"


def _style(column: ColumnProfile, decimal: str, date_order: str) -> str | None:
    """Another way in which the numbers or dates of a column of text may be written, if that is what it holds."""
    if column.kind != "category" or column.codes or "number" not in column.unlike:
        return None
    if column.style:
        return ""  # not with the mark that was asked for: perhaps as programs write numbers
    if column.dates:
        return _date_style(column, column.dates, date_order)
    if not column.styles or parsing.style_with("1,234.5", column.suffixes, column.money) is None:
        return None
    marks = _marks(column, decimal)
    return None if marks is None else parsing.style_with(marks, column.suffixes, column.money)


def _date_style(column: ColumnProfile, styles: set[str], date_order: str) -> str | None:
    """Which of the orders that fit a column of dates is meant."""
    if len(styles) > 1 and date_order == "auto" and "." in str(column.unlike["number"][1]):
        return "31/12/2023"
    order = {"dmy": {"31/12/2023"}, "mdy": {"12/31/2023"}}.get(date_order, set())
    styles = styles & order or styles
    if len(styles) > 1:
        row, value = column.unlike["number"]
        raise DataError(
            f"column {listed([column.name])} holds dates such as {listed([str(value)])} (row {row}): does the day or "
            f"the month come first? Say which: {option('date_order', 'dmy')}, or {option('date_order', 'mdy')}"
        )
    return styles.pop()


def _marks(column: ColumnProfile, decimal: str) -> str | None:
    """The marks for thousands and decimals of a column of written numbers."""
    assert column.styles is not None
    fits = column.styles & {".": {"1,234.5"}, ",": {"1.234,5"}}.get(decimal, column.styles)
    if len(fits) == 2 and column.money and len(column.marks) == 1:
        return (
            "1,234.5" if "," in column.marks else "1.234,5"
        )  # three digits behind the mark: no money has such decimals
    if len(fits) == 2 and column.marks:
        row, value = column.unlike["number"]
        raise DataError(
            f"column {listed([column.name])} holds numbers such as {listed([str(value)])} (row {row}): is their mark "
            f"for thousands or for decimals? Say which mark comes before decimals: {option('decimal', '.')}, or "
            f"{option('decimal', ',')}"
        )
    return min(fits) if fits else None


def _look(
    table: Table, result: dict[str, ColumnProfile], targets: Sequence[str], numeric: bool, progress: Progress | None
) -> None:
    for name, column in result.items():
        column.frequencies = Counter() if name in targets else None
        column.distinct = set() if identifies(name) else None
    columns = list(result)
    for batch in _watched(table.batches(columns=columns), progress):
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            result[name].typed_text = table.typed and parsing.kind_of_type(array.type) == "text"
            if name in targets and not numeric and result[name].typed_text:
                result[name].kind = "category"  # '0' to '9', stored as text, are meant as names
            result[name].see(array)


_IDENTIFIER = re.compile(
    r"^(|#|unnamed: ?\d+|id|idx|index|uuid|guid|row|row[ _-]?(id|index|number|num|no|nr))$|[ _-](id|uuid|guid)$", re.I
)


def identifies(name: str) -> bool:
    """Whether a column is called as identifiers are.

    Example:
        >>> [name for name in ("id", "shop_id", "PassengerId", "Unnamed: 0", "grid", "humidity") if identifies(name)]
        ['id', 'shop_id', 'PassengerId', 'Unnamed: 0']
    """
    return bool(_IDENTIFIER.search(name)) or bool(re.search(r"[a-z](Id|ID)$", name))


def count_labels(table: Table, columns: Sequence[str], progress: Progress | None = None) -> dict[str, LabelCounts]:
    """Second pass, over columns of categories only: how often each occurs."""
    result = {name: LabelCounts() for name in columns}
    if columns:
        for batch in _watched(table.batches(columns=columns), progress):
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                result[name].see(array)
    return result


def is_free_text(column: ColumnProfile, labels: LabelCounts, max_categories: int) -> bool:
    """Whether a column of text has too many values for categories, and many words in each."""
    many = len(labels.counts) > max_categories or (labels.exact and len(labels.counts) == labels.total)
    if not many or column.codes:
        return False
    rows, _ = words_of(pa.array(labels.counts, pa.string()))
    return len(rows) >= MANY_WORDS * len(labels.counts)


def count_words(table: Table, columns: Sequence[str], progress: Progress | None = None) -> dict[str, WordCounts]:
    """Third pass, over columns of free text only: in how many texts words occur."""
    result = {name: WordCounts() for name in columns}
    if columns:
        for batch in _watched(table.batches(columns=columns), progress):
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                result[name].see(parsing.as_labels(parsing.plain(array)))
    return result


def _watched(batches: Iterator[pa.RecordBatch], progress: Progress | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        if progress is not None:
            progress(len(batch))


# What becomes of a feature column, given what it holds; and what to tell the user about it.


_MIN_RELATIVE_SPREAD = 1e-4  # spread over size, below which float32 would blur the values of a number column
_LIKE_A_DATE = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}([ T]\d{1,2}[:.]\d{2}.*)?")
_CODES = " (values begin with zeros, as codes do: write them without if they are amounts)"
_MIN_SHARE = 0.9  # share of numbers (or dates) from which on a text in between is taken for a mistake


def infer_encoding(
    column: ColumnProfile,
    labels: LabelCounts | None,
    words: WordCounts | None,
    max_categories: int,
    forced: bool,
    keep_constant: bool,
) -> tuple[Column | None, list[str]]:
    """The encoding of a surveyed column, or None if it is left out, and what to tell the user."""
    name = f"column {listed([column.name])}"
    if not column.present:
        return None, [f"{name} has no values and was left out"]
    if words is not None:
        return TextColumn(column.name, words.idf(), column.missing > 0), [
            f"{name} holds free text: its words are counted in {BUCKETS} hashed features, weighted by TF-IDF "
            f"({option('categorical', [column.name])} takes labels)"
        ]
    if labels is not None:
        return _category(column, labels, max_categories, forced)
    if column.low == column.high and not column.missing and not keep_constant:
        return None, [f"{name} has the same value in every row and was left out"]
    if _is_identifier(column):
        how = "rises from row to row" if column.rising else "is another in every row"
        return None, [
            f"{name} is a whole number that {how}, and called like an identifier: it was left out (give it another "
            "name if it means something)"
        ]
    has_missing = column.missing > 0
    notes = []
    if column.style:
        notes.append(
            f"{name} holds {_kind_of_style(column.style)}s written as {column.style} "
            f"({option('categorical', [column.name])} takes labels)"
        )
    for value in column.likely_missing():
        notes.append(
            f"{name} is {value:g} in {column.sentinels[value]} rows, far from all other values, {column.rest_low:g} to "
            f"{column.rest_high:g}: if that stands for a missing value, say so ({option('na_values', [f'{value:g}'])})"
        )
    if has_missing:
        notes += [f"{name} is missing in {column.missing} rows: these get the mean, and a feature that says so"]
    if column.kind == "date":
        notes.append(f"{name} holds dates: features are days since the mean, weekday and day of the year")
        return DateColumn(column.name, column.mean, has_missing, column.std, column.style), notes
    if column.typed_text and column.kind == "number":
        notes.append(
            f"{name} is text that holds numbers, taken as numbers ({option('categorical', [column.name])} takes labels)"
        )
    if column.kind == "boolean":
        return BooleanColumn(column.name, column.mean, has_missing), notes
    shift = 0.0
    if 0 < column.std < _MIN_RELATIVE_SPREAD * abs(column.mean):
        shift = column.mean
        notes.append(f"{name} varies little for its size: its feature is the difference from the mean, {shift:g}")
    extent = column.low, column.high, column.std
    return NumberColumn(column.name, column.mean, has_missing, shift, column.style, *extent), notes


def _is_identifier(column: ColumnProfile) -> bool:
    """Whole numbers that are all distinct may well be measurements: the name has to say it, too."""
    distinct = column.rising or column.distinct is not None
    whole = column.kind == "number" and column.whole and column.present == column.rows > 1
    return distinct and whole and identifies(column.name)


def _category(
    column: ColumnProfile, labels: LabelCounts, max_categories: int, forced: bool
) -> tuple[Column | None, list[str]]:
    name, distinct = f"column {listed([column.name])}", len(labels.counts)
    notes = [] if forced or column.codes else _mixture(column, labels, name)
    if distinct == 1 and not column.missing:
        return None, [f"{name} has the same value in every row and was left out"]
    hint = _CODES if column.codes else _dates_hint(labels)
    if labels.exact and distinct == labels.total and distinct > 1:
        return None, [f"{name} has another text in every row, like an identifier, and was left out{hint}"]
    if labels.exact and distinct > max(max_categories, labels.total / 2):
        return None, [f"{name} has another text in most rows, like an identifier, and was left out{hint}"]
    kept = _frequent(labels, max_categories)
    if sum(labels.counts[label] for label in kept) < 0.01 * labels.total:
        return None, [f"{name} has more than {distinct} texts, none of them frequent, and was left out{hint}"]
    if column.missing:
        notes.append(f"{name} is missing in {column.missing} rows, which is taken as a category of its own")
    if distinct > max_categories:
        more = "" if labels.exact else "more than "
        notes.append(
            f"{name} has {more}{distinct} categories: the {len(kept)} most frequent ones are kept, the rest are "
            f"taken as 'other'{hint}"
        )
    elif hint:
        notes.append(f"{name} is taken as categories{hint}")
    kept, other = sorted(kept), distinct > max_categories
    counts = [labels.counts[label] for label in kept]
    counts += [labels.total - sum(counts)] * other + [column.missing] * (column.missing > 0)
    return CategoryColumn(column.name, kept, other, column.missing > 0, counts), notes


def _frequent(labels: LabelCounts, most: int) -> list[str]:
    """All texts, or of too many the most frequent ones.

    A text that stands in one row only says which row that is. Among equally frequent ones the choice must not follow
    the order of the rows either, which may follow the target: it is by their hashes.
    """
    if len(labels.counts) <= most:
        return list(labels.counts)
    ranked = sorted(labels.counts.items(), key=lambda pair: (-pair[1], sha256(pair[0].encode()).digest()))
    return [label for label, count in ranked[:most] if count > 1]


def _dates_hint(labels: LabelCounts) -> str:
    """What to do about dates that are written in another order than can be told for sure."""
    alike = sum(count for label, count in labels.counts.items() if _LIKE_A_DATE.fullmatch(label.strip()))
    if alike < _MIN_SHARE * sum(labels.counts.values()):
        return ""
    return " (they look like dates: write them as YYYY-MM-DD, and they are taken as such)"


def _mixture(column: ColumnProfile, labels: LabelCounts, name: str) -> list[str]:
    """Numbers (or dates) with some text among them: an error if the text looks like a mistake, else a note."""
    like, share = parsing.share_like(list(labels.counts), list(labels.counts.values()))
    if share < _MIN_SHARE:
        return [f"{name} mixes {like} with text and is taken as categories"] if share else []
    row, value = column.unlike.get(like.removesuffix("s"), (1, "text"))
    raise DataError(
        f"{name} holds {like} but for some text, first in row {row}: {shown(value)}. Correct it, leave it empty if "
        f"it is missing, take all values as labels ({option('categorical', [column.name])}), or leave "
        f"the column out ({option('ignore', [column.name])})"
    )
