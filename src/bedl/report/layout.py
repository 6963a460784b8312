"""Pieces that the pages of all tasks are put together from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from bedl.report import png
from bedl.report.text import count, data, number, percent, table, text
from bedl.tasks import Results, meanings

__all__ = [
    "Cell",
    "Verdict",
    "card",
    "headline",
    "histogram_edges",
    "legend",
    "most_surprising",
    "most_uncertain",
    "quantile_rows",
    "subsample",
    "verdict",
]

Cell = Callable[[int], str]
Verdict = tuple[Literal["good", "bad", "so"], str]
"""A sentence, HTML, and whether it is good news, bad news or neither."""

POINTS = 1_000  # in a scatter plot; more only hide each other
INTERVALS = 120  # in the plot of predictions with their intervals
EXAMPLES = 20  # rows of a table
LONG = r"[+-]?\d{0,12}\.\d{4,}([eE][+-]?\d{1,3})?"  # numbers with many decimals, as programs write them
PICTURES = 18  # whole lines, on a wide screen and on a phone


def subsample(count: int, limit: int = POINTS) -> np.ndarray:
    """At most `limit` of the rows 0 … count − 1, in order, the same ones every time.

    >>> subsample(3).tolist(), len(subsample(10_000)), bool((subsample(10_000) == subsample(10_000)).all())
    ([0, 1, 2], 1000, True)
    """
    if count <= limit:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, limit, replace=False))


def histogram_edges(*arrays: np.ndarray, bins: int = 24) -> np.ndarray:
    """Edges of equal width from 0 to the largest value of all arrays. shape: (bins + 1,)"""
    high = max(float(array.max()) for array in arrays)
    return np.linspace(0, high if high > 0 else 1.0, bins + 1)


def legend(*entries: tuple[str, str]) -> str:
    """What the colours and shapes of a plot are: (kind, text) pairs, as the classes of the style sheet name them."""
    items = "".join(
        f'<li><span class="swatch {kind}" aria-hidden="true"></span>{text(name)}</li>' for kind, name in entries
    )
    return f'<ul class="legend">{items}</ul>'


def card(title: str, how: str, plot: str, *, key: str = "", numbers: str = "", wide: bool = False) -> str:
    """A plot with its title, a sentence on how to read it, its legend, and its numbers, folded. All HTML already.

    Cards stand in pairs; a `wide` one has a line of the page for itself.
    """
    details = f"<details><summary>Numbers</summary>{numbers}</details>" if numbers else ""
    kind = "card wide" if wide else "card"
    return f'<section class="{kind}"><h2>{title}</h2><p class="how">{how}</p>{key}{plot}{details}</section>'


def verdict(sentences: Sequence[Verdict]) -> str:
    """What the numbers come to, in words."""
    items = "".join(f'<li class="{kind}">{said}</li>' for kind, said in sentences)
    return f'<ul class="verdict">{items}</ul>' if items else ""


def headline(
    scores: Mapping[str, Any], level: float | None = None, baselines: Mapping[str, Mapping[str, float]] | None = None
) -> str:
    """The scores as a list of terms; names that no task knows are shown as they are.

    Args:
        scores: the scores by name.
        level: the level of the intervals, which belongs to their coverage and width.
        baselines: what some of the scores would be otherwise, such as for one answer to all rows, by name.
    """
    known, items = meanings(), []
    for name, value in scores.items():
        meaning = known.get(name)
        if isinstance(value, (int, float, np.number)):
            shown = percent(float(value)) if meaning and meaning.share else number(float(value))
        else:
            shown = data(value, 40)
        label, note = (text(meaning.label), text(meaning.note, 200)) if meaning else (data(name, 40), "")
        if name in ("coverage", "width") and level is not None:
            label += f" of {100 * level:g}\u00a0% intervals"
        for other, plain in list((baselines or {}).items())[::-1]:
            if name in plain:
                value = percent(plain[name]) if meaning and meaning.share else number(plain[name])
                note = f'<span class="baseline">{text(other)} {value}</span> · {note}'
        items.append(f"<div><dt>{label}</dt><dd><strong>{shown}</strong><small>{note}</small></dd></div>")
    return f'<dl class="scores">{"".join(items)}</dl>'


def quantile_rows(columns: Iterable[np.ndarray]) -> list[list[str]]:
    """Rows of a table: mean and quantiles of each array, a column each."""
    arrays = [np.asarray(column, float) for column in columns]
    rows = [["mean", *(number(float(a.mean())) for a in arrays)]]
    for name, q in (("minimum", 0.0), ("5 %", 0.05), ("median", 0.5), ("95 %", 0.95), ("maximum", 1.0)):
        rows.append([name, *(number(float(np.quantile(a, q))) for a in arrays)])
    return rows


def most_uncertain(results: Results, title: str, columns: Mapping[str, Cell]) -> str:
    """The most uncertain rows that have examples, as pictures or as a table.

    Args:
        results: with examples.
        title: the title of the section, HTML.
        columns: heading → what the row of that number says there, HTML; asked for the rows that are shown only.
    """
    return _examples(results, results.uncertainty, title, columns, "largest total uncertainty, the most uncertain")


def most_surprising(results: Results, title: str, columns: Mapping[str, Cell], how: str) -> str:
    """The rows whose target the prediction took for least likely; arguments as for `most_uncertain`.

    Args:
        results: with examples and targets.
        title: the title of the section, HTML.
        columns: as for `most_uncertain`.
        how: what is largest in these rows.
    """
    surprise = results.surprise
    if surprise is None:
        return ""
    return _examples(results, surprise, title, columns, f"{how}, the most surprising")


def _examples(results: Results, by: np.ndarray, title: str, columns: Mapping[str, Cell], largest: str) -> str:
    ranks = by[results.examples.index]
    order = np.argsort(-ranks, kind="stable")[: EXAMPLES if results.examples.images is None else PICTURES]
    shown = results.examples.take(order[np.isfinite(ranks[order])])
    if not len(shown):
        return ""
    if shown.images is not None:
        return _pictures(shown.images, shown.index, title, columns, largest)
    head = ["row", *columns, *(data(name, 40) for name in shown.columns)]
    rows = [
        [count(int(row) + 1), *(cell(int(row)) for cell in columns.values())]
        + [_shown(values[i]) for values in shown.columns.values()]
        for i, row in enumerate(shown.index)
    ]
    caption = f"{title}: {count(len(rows))} of {count(len(results))}"
    how = f"The rows with the {largest} first; rows are counted from 1."
    return f'<section class="card wide"><h2>{title}</h2><p class="how">{how}</p>{table(caption, head, rows)}</section>'


def _shown(value: Any) -> str:
    """A value of the table; numbers in text files have more decimals than anybody reads."""
    if isinstance(value, str) and re.fullmatch(LONG, value.strip()):
        value = float(value)
    return data(value, 60)


def _pictures(images: np.ndarray, index: np.ndarray, title: str, columns: Mapping[str, Cell], largest: str) -> str:
    figures = []
    for image, row in zip(images, index.tolist(), strict=True):
        facts = "".join(f"<div><dt>{name}</dt><dd>{cell(row)}</dd></div>" for name, cell in columns.items())
        figures.append(
            f'<figure><img src="{png.data_uri(image)}" alt="row {row + 1}" width="96" height="96">'
            f'<figcaption><span class="row">row {count(row + 1)}</span><dl>{facts}</dl></figcaption></figure>'
        )
    how = f"The images with the {largest} first."
    return (
        f'<section class="card wide"><h2>{title}</h2><p class="how">{how}</p>'
        f'<div class="pictures">{"".join(figures)}</div></section>'
    )
