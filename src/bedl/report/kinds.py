"""Aleatoric and epistemic uncertainty beside each other, for every task that tells them apart."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bedl.report import svg
from bedl.report.layout import POINTS, card, legend, quantile_rows, subsample
from bedl.report.text import number, table
from bedl.tasks import Results

__all__ = ["KindWords", "domains", "two_kinds"]


class KindWords(NamedTuple):
    """What a task calls its two kinds of uncertainty."""

    fields: tuple[str, str, str]  # of the record: aleatoric, epistemic, total
    quantity: str
    unit: str
    x_label: str
    y_label: str
    far_right: str


def domains(results: Any) -> list[tuple[str, str, Any]]:
    """The sets of rows that there are: (kind of the mark, name, results)."""
    return [("a", "in-domain", results)] + ([("b", "out-of-domain", results.ood)] if results.ood is not None else [])


def two_kinds(results: Results, words: KindWords) -> str:
    """A card with the scatter plot of the two, and their quantiles."""
    sets = domains(results)
    drawn = []
    for kind, name, part in sets:
        rows = subsample(len(part), POINTS // len(sets))
        # Rounding may leave a difference of entropies a little below 0.
        values = [np.maximum(getattr(part, field)[rows], 0) for field in words.fields]
        tips = [
            f"row {r + 1}, {name}, {words.quantity} {words.unit}: "
            f"aleatoric {number(a)}, epistemic {number(e)}, total {number(t)}"
            for r, a, e, t in zip(rows.tolist(), *values, strict=True)
        ]
        drawn.append((kind, values[0], values[1], tips))
    x, y = (np.concatenate([entry[i] for entry in drawn]) for i in (1, 2))
    frame = svg.Frame.around(x, y, x_zero=True, y_zero=True)
    plot = svg.figure(
        frame,
        *(svg.scatter(frame, a, e, kind, tips) for kind, a, e, tips in drawn),
        name=f"Aleatoric and epistemic {words.quantity}",
        x_label=words.x_label,
        y_label=words.y_label,
    )
    head = [words.quantity, *(f"{kind}, {name}" for _, name, _ in sets for kind in ("aleatoric", "epistemic", "total"))]
    columns = [getattr(part, field) for _, _, part in sets for field in words.fields]
    numbers = table(f"{words.quantity.capitalize()} {words.unit}, all rows", head, quantile_rows(columns))
    how = f"High up: more data of this kind would help. Far right: {words.far_right}, more data would not help."
    key = legend(*((kind, name) for kind, name, _ in sets)) if len(sets) > 1 else ""
    return card("Two kinds of uncertainty", how, plot, key=key, numbers=numbers)
