"""Sections on the columns of a table: importance and drift, and coverage or accuracy by slice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from bedl.evaluation.report import svg
from bedl.evaluation.report.layout import card, count, data, number, percent, shorten, table
from bedl.evaluation.tasks import ColumnSummary, Slice

__all__ = ["columns_section", "slices_section"]


BARS = 10  # columns that are drawn
LISTED = 100
DRIFT, OUTSIDE = 0.5, 0.05  # standard deviations or total variation, and share of rows, beyond which a column is marked


def columns_section(columns: Sequence[ColumnSummary]) -> str:
    """How much predictions depend on each column, and how it differs from that of training; nothing without columns."""
    if not columns:
        return ""
    ordered = sorted(columns, key=lambda c: (-c.importance if math.isfinite(c.importance) else 0.0, -c.outside))
    rows = [
        [data(c.name, 40), data(c.values, 60), _with_error(c.importance, c.error), number(c.drift, 2),
         percent(c.outside), "drift" if abs(c.drift) > DRIFT or c.outside > OUTSIDE else ""] for c in ordered[:LISTED]
    ]  # fmt: skip
    head = ["column", "values", "importance (nats)", "difference from training", "outside of training", ""]
    numbers = table(f"{len(rows)} of {len(columns)} columns", head, rows)
    how = (
        "Importance: rise of the negative log-likelihood where the column is permuted, ± standard error. Difference: "
        "of the means in standard deviations of training; for categories the total variation distance. Outside: rows "
        "beyond the range of training, or with a new category."
    )
    return card("Columns: importance and drift", how, _bars(ordered) + numbers, wide=True)


def _with_error(value: float, error: float) -> str:
    return f"{number(value, 3)} <small>± {number(error, 2)}</small>" if math.isfinite(value) else "–"


def _bars(columns: Sequence[ColumnSummary]) -> str:
    shown = [c for c in columns if math.isfinite(c.importance)][:BARS]
    if not shown:
        return ""
    values = [max(c.importance, 0.0) for c in shown]
    high = max(c.importance + 2 * c.error for c in shown)
    frame = svg.Frame(0, len(shown), 0, 1.05 * high if high > 0 else 1.0)
    middle = [i + 0.5 for i in range(len(shown))]
    tips = [f"{c.name}: {number(c.importance, 3)} ± {number(c.error, 2)} nats" for c in shown]
    low, up = ([max(c.importance + sign * 2 * c.error, 0.0) for c in shown] for sign in (-1, 1))
    return svg.figure(
        frame, svg.bars(frame, range(len(shown) + 1), values, "a", tips), svg.whiskers(frame, middle, low, up),
        name="Permutation importance of the columns, with two standard errors", y_label="importance (nats)",
        x_label="columns, most important first", x_ticks=middle,
        x_format=lambda at: shorten(shown[int(at)].name, max(3, 36 // len(shown))),
    )  # fmt: skip


def _standard_errors(part: Slice) -> float:
    """How many standard errors hits are from what is expected, with the correction for continuity."""
    gap = part.observed - part.expected
    return math.copysign(max(abs(gap) - 0.5 / part.rows, 0.0) / part.error, gap) if part.error > 0 else 0.0


def slices_section(slices: Sequence[Slice], what: str) -> str:
    """Slices by how far they are from what is expected; nothing without slices.

    Args:
        slices: any.
        what: what the share of hits is called, "coverage" or "accuracy".
    """
    if not slices:
        return ""
    limit = NormalDist().inv_cdf(1 - 0.05 / (2 * len(slices)))  # Bonferroni
    off = [_standard_errors(s) for s in slices]
    order = sorted(range(len(slices)), key=lambda i: -abs(off[i]))[:LISTED]
    rows = [
        [f"{data(s.column, 30)}: {data(s.values, 40)}", count(s.rows), percent(s.observed), percent(s.expected),
         number(z, 2), "significant" if abs(z) > limit else ""] for s, z in ((slices[i], off[i]) for i in order)
    ]  # fmt: skip
    head = ["slice", "rows", what, "expected", "difference / SE", ""]
    significant = sum(abs(z) > limit for z in off)
    how = (
        f"{what.capitalize()} in fifths of the prediction and of each column, and by category; the largest deviations "
        f"first. {significant} of {len(slices)} slices deviate significantly (5\u00a0%, Bonferroni)."
    )
    numbers = table(f"{len(rows)} of {len(slices)} slices", head, rows[:8])
    more = f"<details><summary>All slices</summary>{table('Slices', head, rows)}</details>" if len(rows) > 8 else ""
    return card(f"{what.capitalize()} by slice", how, numbers + more, wide=True)
