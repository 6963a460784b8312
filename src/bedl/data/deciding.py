"""What becomes of a feature column, given what it holds; and what to tell the user about it."""

from __future__ import annotations

import re
from hashlib import sha256

from bedl.data import parsing
from bedl.data.columns import BooleanColumn, CategoryColumn, Column, DateColumn, NumberColumn, shown
from bedl.data.errors import DataError, listed
from bedl.data.survey import ColumnSurvey, LabelCounts, identifies
from bedl.errors import option

__all__ = ["decide"]

_ALIKE = 1e-4  # spread over size, below which float32 would blur the values of a number column
_LIKE_A_DATE = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}([ T]\d{1,2}[:.]\d{2}.*)?")
_CODES = " (values begin with zeros, as codes do: write them without if they are amounts)"
_MOSTLY = 0.9  # share of numbers (or dates) from which on a text in between is taken for a mistake


def decide(
    column: ColumnSurvey, labels: LabelCounts | None, max_categories: int, forced: bool, keep_constant: bool
) -> tuple[Column | None, list[str]]:
    """The encoding of a surveyed column, or None if it is left out, and what to tell the user."""
    name = f"column {listed([column.name])}"
    if not column.present:
        return None, [f"{name} has no values and was left out"]
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
            f"{name} holds numbers written as {column.style} ({option('categorical', [column.name])} takes labels)"
        )
    if has_missing:
        notes += [f"{name} is missing in {column.missing} rows: these get the mean, and a feature that says so"]
    if column.kind == "date":
        notes.append(f"{name} holds dates: features are days since the mean, weekday and day of the year")
        return DateColumn(column.name, column.mean, has_missing), notes
    if column.typed_text and column.kind == "number":
        notes.append(
            f"{name} is text that holds numbers, taken as numbers ({option('categorical', [column.name])} takes labels)"
        )
    if column.kind == "boolean":
        return BooleanColumn(column.name, column.mean, has_missing), notes
    shift = 0.0
    if 0 < column.std < _ALIKE * abs(column.mean):
        shift = column.mean
        notes.append(f"{name} varies little for its size: its feature is the difference from the mean, {shift:g}")
    return NumberColumn(column.name, column.mean, has_missing, shift, column.style, column.low, column.high), notes


def _is_identifier(column: ColumnSurvey) -> bool:
    """Whole numbers that are all distinct may well be measurements: the name has to say it, too."""
    distinct = column.rising or column.distinct is not None
    whole = column.kind == "number" and column.whole and column.present == column.rows > 1
    return distinct and whole and identifies(column.name)


def _category(
    column: ColumnSurvey, labels: LabelCounts, max_categories: int, forced: bool
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
    return CategoryColumn(column.name, sorted(kept), distinct > max_categories, column.missing > 0), notes


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
    if alike < _MOSTLY * sum(labels.counts.values()):
        return ""
    return " (they look like dates: write them as YYYY-MM-DD, and they are taken as such)"


def _mixture(column: ColumnSurvey, labels: LabelCounts, name: str) -> list[str]:
    """Numbers (or dates) with some text among them: an error if the text looks like a mistake, else a note."""
    like, share = parsing.share_like(list(labels.counts), list(labels.counts.values()))
    if share < _MOSTLY:
        return [f"{name} mixes {like} with text and is taken as categories"] if share else []
    row, value = column.unlike.get(like.removesuffix("s"), (1, "text"))
    raise DataError(
        f"{name} holds {like} but for some text, first in row {row}: {shown(value)}. Correct it, leave it empty if "
        f"it is missing, take all values as labels ({option('categorical', [column.name])}), or leave "
        f"the column out ({option('ignore', [column.name])})"
    )
