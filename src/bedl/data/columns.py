"""How one column of a table becomes numbers. Each kind names its features and fills them in."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from types import NoneType
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bedl._utils.errors import DataError, listed, option
from bedl.data import parsing
from bedl.data.parsing import is_style
from bedl.data.unknown import UnknownValues

MAX_RANGES = 1e6  # ranges of the training data beyond its ends; networks of any depth say finite things so far out
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_WITHOUT_ERROR = f"To predict such rows with more uncertainty: {option('handle_unknown', 'warn')}"


@dataclass(frozen=True)
class Where:
    """The place of a column's values in the file, for messages."""

    name: str
    first_row: int = 0

    def row(self, index: int) -> str:
        return f"column {listed([self.name])}, row {self.first_row + int(index) + 1}"


def parsed(parse: Callable[[pa.Array], np.ndarray], array: pa.Array, where: Where, expected: str) -> np.ndarray:
    """Numbers of an array; what cannot be one, or is not finite, is an error with its place."""
    try:
        values = parse(array)
    except parsing.NotParsed as error:
        raise DataError(
            f"{where.row(error.index)}: {shown(error.value)} where {expected} is expected. Correct the value, or leave "
            "it empty if it is missing"
        ) from None
    return finite(values, where)


def finite(values: np.ndarray, where: Where) -> np.ndarray:
    """The same values, all missing (NaN) or such that float32 can hold them; anything else is an error."""
    too_large = np.abs(values) > _FLOAT32_MAX
    if too_large.any():
        index = int(too_large.argmax())
        what = "infinite" if np.isinf(values[index]) else f"{values[index]:g}, beyond the range of float32,"
        raise DataError(
            f"{where.row(index)}: the value is {what} and cannot be learned from. Correct it, leave it empty if it is "
            f"missing, or leave out the column ({option('ignore', [where.name])})"
        )
    return values


def shown(value: object) -> str:
    """A value for a message."""
    return listed([value]) if isinstance(value, str) else str(value)


@dataclass(frozen=True)
class NumberColumn:
    """A number as it is; where it is missing, the training mean, and a feature that says so.

    Numbers that differ by little compared with their size (times in seconds since 1970) are taken relative to their
    mean, `shift`: in float32 they would all look alike.
    """

    name: str
    mean: float
    has_missing: bool
    shift: float = 0.0
    style: str = ""  # how texts are written, see `bedl.data.parsing`
    low: float | None = None  # the smallest and the largest value of training; models of earlier versions have none
    high: float | None = None
    std: float | None = None
    kind: ClassVar[str] = "number"
    expected: ClassVar[str] = "a number"

    @property
    def features(self) -> list[str]:
        return [self.name] + [f"{self.name}_missing"] * self.has_missing

    def read(self, array: pa.Array) -> np.ndarray:
        return parsing.as_numbers(array, self.style)

    def encode(
        self, array: pa.Array, out: np.ndarray, where: Where, unknown: UnknownValues | None, foreign: str = "error"
    ) -> None:
        values = parsed(self.read, array, where, self.expected)
        if foreign != "keep" and self.low is not None and self.high is not None:
            values = _near(values, self.low, self.high, where, foreign)
        missing = np.isnan(values)
        _check_missing(missing, self.has_missing, where, unknown)
        usual = self.mean - self.shift if self.has_missing else np.nan
        out[:, 0] = np.where(missing, usual, values - self.shift)
        if self.has_missing:
            out[:, 1] = missing

    def typical(self, count: int) -> np.ndarray:
        """Values at evenly spaced quantiles of a normal, no smaller or larger than those of training."""
        values = self.mean + (self.std or 0.0) * _normal_quantiles(count)
        return np.asarray(np.clip(values, self.low, self.high) - self.shift)[:, None]


@dataclass(frozen=True)
class BooleanColumn(NumberColumn):
    """0 for false, 1 for true."""

    kind: ClassVar[str] = "boolean"
    expected: ClassVar[str] = "true or false"

    def read(self, array: pa.Array) -> np.ndarray:
        return parsing.as_booleans(array)

    def typical(self, count: int) -> np.ndarray:
        return (_positions(count) > 1 - self.mean).astype(float)[:, None]


@dataclass(frozen=True)
class DateColumn:
    """Days since the mean day of training, and where in the week and in the year, as points on a circle."""

    name: str
    mean: float  # days since 1970
    has_missing: bool
    std: float | None = None
    style: str = ""  # how texts are written, see `bedl.data.parsing`
    kind: ClassVar[str] = "date"

    @property
    def features(self) -> list[str]:
        parts = "days weekday_sin weekday_cos yearday_sin yearday_cos".split() + ["missing"] * self.has_missing
        return [f"{self.name}_{part}" for part in parts]

    def encode(
        self, array: pa.Array, out: np.ndarray, where: Where, unknown: UnknownValues | None, foreign: str = "error"
    ) -> None:
        expected = f"a date ({self.style or 'YYYY-MM-DD'}, or with a time after it)"
        days = parsed(lambda column: parsing.as_days(column, self.style), array, where, expected)
        missing = np.isnan(days)
        _check_missing(missing, self.has_missing, where, unknown)
        out[:, :5] = self._features(np.where(missing, self.mean, days))
        # known to be missing: the middle of every circle
        out[missing, :5] = 0 if self.has_missing else np.nan
        if self.has_missing:
            out[:, 5] = missing

    def typical(self, count: int) -> np.ndarray:
        """Days at evenly spaced quantiles of a normal."""
        return self._features(self.mean + (self.std or 0.0) * _normal_quantiles(count))

    def _features(self, days: np.ndarray) -> np.ndarray:
        """shape: (n,) -> (n, 5)"""
        date = np.floor(days).astype("datetime64[D]")
        year = date.astype("datetime64[Y]")
        yearday = (date - year.astype("datetime64[D]")).astype(float)
        angles = 2 * np.pi * np.stack([np.floor(days) % 7 / 7, yearday / 365.25])
        return np.column_stack([days - self.mean, np.stack([np.sin(angles), np.cos(angles)], 1).reshape(4, -1).T])


@dataclass(frozen=True)
class CategoryColumn:
    """One feature for each category, 1 where it holds; 'other' for the rare ones, 'missing' where there is none."""

    name: str
    categories: list[str]
    has_other: bool
    has_missing: bool
    counts: list[int] | None = None  # rows of training with each feature; models of earlier versions have none
    kind: ClassVar[str] = "category"

    @property
    def features(self) -> list[str]:
        names = [f"{self.name}={category}" for category in self.categories]
        return names + [f"{self.name}_other"] * self.has_other + [f"{self.name}_missing"] * self.has_missing

    def encode(
        self, array: pa.Array, out: np.ndarray, where: Where, unknown: UnknownValues | None, foreign: str = "error"
    ) -> None:
        labels = labels_of(array, where)
        missing = np.asarray(labels.is_null().to_numpy(zero_copy_only=False))
        _check_missing(missing, self.has_missing, where, unknown)
        found = pc.index_in(labels, value_set=pa.array(self.categories, pa.string()))
        codes = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        unseen = (codes < 0) & ~missing
        if self.has_other:
            codes[unseen] = len(self.categories)
        elif unseen.any():
            new = pc.unique(labels.filter(pa.array(unseen))).to_pylist()
            if unknown is None:
                raise DataError(
                    f"{where.row(int(unseen.argmax()))}: training saw no {listed(new)} there, only "
                    f"{listed(self.categories)}. Correct it, or train again with such rows. {_WITHOUT_ERROR}"
                )
            unknown.add(where.name, unseen, where.first_row, new)
        if self.has_missing:
            codes[missing] = len(self.categories) + self.has_other
        out[:] = 0
        rows = np.flatnonzero(codes >= 0)
        out[rows, codes[rows]] = 1
        out[codes < 0] = np.nan

    def typical(self, count: int) -> np.ndarray:
        """Each feature as often as in training."""
        counts = np.asarray(self.counts or np.ones(len(self.features)), dtype=float)
        return np.eye(len(counts))[np.searchsorted(counts.cumsum() / counts.sum(), _positions(count))]


@dataclass(frozen=True)
class TextColumn:
    """Free text as hashed TF-IDF: words that share a bucket share a feature; rows have length 1.

    A bucket's value is its count of words times `idf`. Texts without a word are 0.
    """

    name: str
    idf: list[float]
    has_missing: bool
    kind: ClassVar[str] = "text"

    @property
    def features(self) -> list[str]:
        return [f"{self.name}_words_{i}" for i in range(len(self.idf))] + [f"{self.name}_missing"] * self.has_missing

    def encode(
        self, array: pa.Array, out: np.ndarray, where: Where, unknown: UnknownValues | None, foreign: str = "error"
    ) -> None:
        texts = labels_of(array, where)
        missing = np.asarray(texts.is_null().to_numpy(zero_copy_only=False))
        _check_missing(missing, self.has_missing, where, unknown)
        values = bucket_counts(texts, len(self.idf)) * np.asarray(self.idf, dtype=np.float32)
        size = np.linalg.norm(values, axis=1, keepdims=True)
        out[:, : len(self.idf)] = values / np.where(size > 0, size, 1)
        if self.has_missing:
            out[:, len(self.idf)] = missing
        else:
            out[missing] = np.nan

    def typical(self, count: int) -> np.ndarray:
        """Texts of a single word, frequent ones more often."""
        share = np.exp(-np.asarray(self.idf)).cumsum()
        return np.eye(len(share))[np.searchsorted(share / share[-1], _positions(count))]


Column = NumberColumn | BooleanColumn | DateColumn | CategoryColumn | TextColumn
_KINDS: dict[str, Callable[..., Column]] = {
    "number": NumberColumn,
    "boolean": BooleanColumn,
    "date": DateColumn,
    "category": CategoryColumn,
    "text": TextColumn,
}


def column_to_dict(column: Column) -> dict[str, Any]:
    return {"kind": column.kind, **asdict(column)}


def column_from_dict(fields: dict[str, Any]) -> Column:
    """The inverse of `column_to_dict`."""
    rest = dict(fields)
    kind = rest.pop("kind")
    check_types(rest, _TYPES)
    return _KINDS[kind](**rest)


_NUMBER = (int, float)
_TYPES: dict[str, tuple[type, ...]] = {
    "name": (str,), "mean": _NUMBER, "has_missing": (bool,), "has_other": (bool,), "shift": _NUMBER, "style": (str,),
    "low": (*_NUMBER, NoneType), "high": (*_NUMBER, NoneType), "std": (*_NUMBER, NoneType), "categories": (list,),
    "counts": (list, NoneType), "idf": (list,),
}  # fmt: skip


def check_types(fields: dict[str, Any], types: dict[str, tuple[type, ...]]) -> None:
    """A TypeError unless every field that is there has one of its types; lists hold texts or finite numbers.

    What a file says is not trusted: a flag that is a large number would be that many columns.
    """
    for name, value in fields.items():
        known = types.get(name)
        if known is None or not isinstance(value, known) or (isinstance(value, bool) and bool not in known):
            raise TypeError(f"{name} is {type(value).__name__} {str(value)[:40]}")
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, (str, *_NUMBER, NoneType, dict)) for item in items):
            raise TypeError(f"{name} holds something else than texts and numbers")
        if not all(np.isfinite(item) for item in items if isinstance(item, float)):
            raise TypeError(f"{name} is not finite")
    if not all(isinstance(category, str) for category in fields.get("categories", ())):
        raise TypeError("categories holds something else than texts")
    style = fields.get("style", "")
    if style and not is_style(style):
        raise TypeError(f"style is {style!r}")


def _near(values: np.ndarray, low: float, high: float, where: Where, foreign: str) -> np.ndarray:
    """The same values, none absurdly far from those of training: an error, or clipped with a warning."""
    reach = MAX_RANGES * ((high - low) or max(abs(low), 1.0))
    inside = np.clip(values, low - reach, high + reach)
    far = ~np.isnan(values) & (inside != values)
    if not far.any():
        return values
    index = int(far.argmax())
    more = f" (as are {int(far.sum()) - 1} more of this batch)" if far.sum() > 1 else ""
    what = f"{where.row(index)}: {values[index]:g} is absurdly far from what training saw, {low:g} to {high:g}{more}"
    if foreign == "error":
        raise DataError(
            f"{what}. No prediction means anything there. Correct it, or go on with a value nearer by "
            f"({option('on_foreign_values', 'clip')}), or with this one ({option('on_foreign_values', 'keep')})"
        )
    warnings.warn(f"{what}; taken as {inside[index]:g}", stacklevel=2)
    return inside


def labels_of(array: pa.Array, where: Where) -> pa.Array:
    try:
        return parsing.as_labels(array)
    except parsing.NotParsed as error:
        raise DataError(
            f"column {listed([where.name])} is of type {error.value}, where training saw text. Store text there"
        ) from None


def _check_missing(missing: np.ndarray, seen: bool, where: Where, unknown: UnknownValues | None) -> None:
    if seen or not missing.any():
        return
    if unknown is None:
        raise DataError(
            f"{where.row(int(missing.argmax()))}: the value is missing, and in training none was. Fill it in, or train "
            f"again with such rows. {_WITHOUT_ERROR}"
        )
    unknown.add(where.name, missing, where.first_row, ["no value"])


def _positions(count: int) -> np.ndarray:
    """Evenly spaced probabilities. shape: (count,)"""
    return (np.arange(count) + 0.5) / count


def _normal_quantiles(count: int) -> np.ndarray:
    return np.array([NormalDist().inv_cdf(p) for p in _positions(count)])


# Free text as numbers: hashed TF-IDF, in bounded memory.


BUCKETS = 64  # features of a column of free text; words that share a bucket count as one
_WORD = r"[^\pL]+"  # what stands between words


def words_of(texts: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """The words of texts in lower case, and the text that each is from. shapes: (words,)

    Example:
        >>> rows, words = words_of(pa.array(["A fine house!", None, "fine"]))
        >>> rows.tolist(), words.to_pylist()
        ([0, 0, 0, 2], ['a', 'fine', 'house', 'fine'])
    """
    lists = pc.split_pattern_regex(pc.utf8_lower(texts), _WORD)
    rows, words = pc.list_parent_indices(lists), pc.list_flatten(lists)
    some = pc.greater(pc.utf8_length(words), 0)
    return rows.filter(some).to_numpy(zero_copy_only=False), words.filter(some)


def bucket_counts(texts: pa.Array, buckets: int = BUCKETS) -> np.ndarray:
    """How many words of each text fall into each bucket. shape: (n, buckets)"""
    rows, words = words_of(texts)
    coded = words.dictionary_encode()
    # CRC-32 is the same on all machines, other than Python's own hash
    bucket = np.array([crc32(word.encode()) % buckets for word in coded.dictionary.to_pylist()], dtype=np.int64)
    counts = np.zeros((len(texts), buckets), dtype=np.float32)
    np.add.at(counts, (rows, bucket[coded.indices.to_numpy(zero_copy_only=False)]), 1)
    return counts


@dataclass
class WordCounts:
    """In how many texts each bucket has a word, batch by batch."""

    texts: int = 0
    found: np.ndarray = field(default_factory=lambda: np.zeros(BUCKETS, dtype=np.int64))

    def see(self, texts: pa.Array) -> None:
        """Counts the next rows."""
        self.texts += len(texts) - texts.null_count
        self.found += (bucket_counts(texts) > 0).sum(0)

    def idf(self) -> list[float]:
        """Inverse document frequencies, as scikit-learn smooths them: log((1 + n)/(1 + found)) + 1."""
        return (np.log((1 + self.texts) / (1 + self.found)) + 1).tolist()
