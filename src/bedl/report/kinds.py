"""What the uncertainty is made of, at a glance: noise, too little evidence, a network that could be otherwise."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bedl.report import svg
from bedl.report.layout import card, legend, quantile_rows
from bedl.report.text import number, percent, table
from bedl.tasks import Results

__all__ = ["KindWords", "domains", "kinds", "said_of_parts"]

BARS = 48  # in all
GAP = 0.06  # between the two sets of rows, of the width of one
THREE = (
    ("noise", "data", "noise: more data will not help"),
    ("evidence", "distributional", "little evidence here"),
    ("network", "model", "the network could be otherwise"),
)
TWO = (("noise", "aleatoric", THREE[0][2]), ("evidence", "epistemic", "not known: more data would help"))


class KindWords(NamedTuple):
    """What a task calls its uncertainty."""

    total: str  # the field of the record
    quantity: str  # what it is
    unit: str
    squared: bool  # whether squares of the parts add up, not the parts themselves


def domains(results: Any) -> list[tuple[str, str, Any]]:
    """The sets of rows that there are: (kind of the mark, name, results)."""
    return [("a", "in-domain", results)] + ([("b", "out-of-domain", results.ood)] if results.ood is not None else [])


def _told_apart(results: Any) -> tuple[tuple[str, str, str], ...]:
    """The parts that every set of rows has: three of them, or two."""
    return THREE if all(part.parts for _, _, part in domains(results)) else TWO


def _values(part: Any, named: tuple[tuple[str, str, str], ...], words: KindWords) -> list[np.ndarray]:
    """The parts of one set of rows. shapes: (n,)"""
    return [np.asarray(getattr(part, f"{name}_{words.quantity}"), float) for _, name, _ in named]


def _shares(values: list[np.ndarray], squared: bool) -> np.ndarray:
    """Of how much of the total each part is. shape: (parts, n)"""
    stacked = np.maximum(np.stack(values), 0.0) ** (2 if squared else 1)  # rounding may leave less than 0
    total = stacked.sum(0)
    return stacked / np.where(total > 0, total, 1.0)


def said_of_parts(results: Any, words: KindWords) -> str:
    """One sentence: how much of all uncertainty each part is."""
    values = _values(results, THREE if results.parts else TWO, words)
    sizes = [float((np.maximum(v, 0.0) ** (2 if words.squared else 1)).sum()) for v in values]
    if not sum(sizes):
        return "No row has any uncertainty."
    names = ("noise", "lack of evidence", "the network itself") if len(sizes) == 3 else ("noise", "what is not known")
    said = [f"{percent(size / sum(sizes), 0)} {name}" for size, name in zip(sizes, names, strict=True)]
    return f"Uncertainty of these rows is {', '.join(said[:-1])} and {said[-1]}."


def kinds(results: Results, words: KindWords) -> str:
    """A card with the stacked view, and the quantiles of the parts."""
    sets, named = domains(results), _told_apart(results)
    top = max(float(np.max(getattr(part, words.total))) for _, _, part in sets)
    frame = svg.Frame(0, len(sets) + (len(sets) - 1) * GAP, 0, 1.05 * top if top > 0 else 1.0)
    marks: list[str] = []
    for i, (_, name, part) in enumerate(sets):
        marks += _stack(frame, part, name, words, i * (1 + GAP), BARS // len(sets), named)
    starts = [i * (1 + GAP) for i in range(len(sets))]
    plot = svg.figure(
        frame,
        *marks,
        name=f"{words.quantity.capitalize()} of the rows, from the most certain to the least, by what it is made of",
        x_label="rows, the most certain to the left",
        y_label=f"{words.quantity}, {words.unit}",
        x_ticks=[start + 0.5 for start in starts],
        x_format=lambda at: sets[int(at)][1] if len(sets) > 1 else "all rows",
    )
    head, columns = [words.quantity], []
    for _, name, part in sets:
        head += [f"{kind}, {name}" for _, kind, _ in named] + [f"total, {name}"]
        columns += [*_values(part, named, words), getattr(part, words.total)]
    numbers = table(f"{words.quantity.capitalize()} {words.unit}, all rows", head, quantile_rows(columns))
    how = f"A bar is a group of rows, its height their {words.quantity}, its colours what that is made of"
    how += ", in proportion to the variances." if words.squared else "."
    key = legend(*((f"bar {kind}", said) for kind, _, said in named))
    return card("What the uncertainty is made of", how, plot, key=key, numbers=numbers)


def _stack(
    frame: svg.Frame,
    part: Any,
    name: str,
    words: KindWords,
    start: float,
    bars: int,
    named: tuple[tuple[str, str, str], ...],
) -> list[str]:
    """The bars of one set of rows, a layer for each part."""
    total = np.asarray(getattr(part, words.total), float)
    shares = _shares(_values(part, named, words), words.squared)
    groups = [group for group in np.array_split(np.argsort(total, kind="stable"), min(bars, len(total))) if len(group)]
    edges = start + np.linspace(0, 1, len(groups) + 1)
    height = np.array([total[group].mean() for group in groups])
    layers = np.stack([(shares[:, group] * total[group]).mean(1) for group in groups], 1)  # shape: (parts, groups)
    begins = np.cumsum([0, *map(len, groups[:-1])]) / len(total)
    tips = [
        f"{name}, {percent(begin, 0)} to {percent(begin + len(group) / len(total), 0)} of the rows: "
        f"{words.quantity} {number(h, 3)}, of it "
        + ", ".join(f"{kind} {percent(v / h if h else 0.0, 0)}" for (_, kind, _), v in zip(named, column, strict=True))
        for begin, group, h, column in zip(begins, groups, height, layers.T, strict=True)
    ]
    base, drawn = np.zeros(len(groups)), []
    for (kind, _, _), layer in zip(named, layers, strict=True):
        drawn.append(svg.bars(frame, edges, layer, kind, tips, base=base))
        base = base + layer
    return drawn
