"""Aleatoric and epistemic uncertainty beside each other, for targets and for classes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bedl.report import svg
from bedl.report.layout import POINTS, card, legend, quantile_rows, subsample
from bedl.report.results import ClassificationResults, RegressionResults
from bedl.report.text import number, table

__all__ = ["domains", "two_kinds"]


class _Words(NamedTuple):
    fields: tuple[str, str, str]  # aleatoric, epistemic, total
    quantity: str
    unit: str
    x_label: str
    y_label: str
    far_right: str


_STD = _Words(
    ("aleatoric_std", "epistemic_std", "std"),
    "std",
    "in the target's unit",
    "aleatoric std: noise in the data (target's unit)",
    "epistemic std: what the model does not know",
    "the target itself is noisy",
)
_ENTROPY = _Words(
    ("aleatoric_entropy", "epistemic_entropy", "entropy"),
    "entropy",
    "in nats",
    "aleatoric (expected) entropy, in nats",
    "epistemic entropy (mutual information), nats",
    "the classes themselves overlap",
)


def domains(results: Any) -> list[tuple[str, str, Any]]:
    """The sets of rows that there are: (kind of the mark, name, results)."""
    return [("a", "in-domain", results)] + ([("b", "out-of-domain", results.ood)] if results.ood is not None else [])


def two_kinds(results: RegressionResults | ClassificationResults) -> str:
    """A card with the scatter plot of the two, and their quantiles."""
    words = _STD if isinstance(results, RegressionResults) else _ENTROPY
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
