"""The plots and tables of a page on counts: those of numbers, and how often each count is expected and seen."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np

from bedl.evaluation import metrics
from bedl.evaluation.report import svg
from bedl.evaluation.report.layout import card, count, legend, number, table
from bedl.evaluation.report.pages import regression
from bedl.evaluation.tasks.count import CountResults

BARS = 30  # at most; larger counts are put together
ROWS = 20_000  # predictions that are looked at


def sections(results: CountResults, scores: dict[str, float]) -> list[str]:
    """The frequencies of the counts, then every section of a page on numbers."""
    return [_frequencies(results), *regression.sections(results, scores)]


def _frequencies(results: CountResults) -> str:
    known = np.flatnonzero(results.labelled) if results.labelled.any() else np.arange(len(results))
    rows = known[:: max(1, -(-len(known) // ROWS))]
    y = results.observed[rows]
    top = float(max(results.upper[rows].max(), np.nanmax(y, initial=0))) + 1
    edges = np.unique(np.ceil(np.linspace(0, top, min(BARS, int(top)) + 1)))  # each bar begins with its count
    below = metrics.negative_binomial_cdf(
        edges[None, :] - 1, results.mean[rows][:, None], results.std[rows][:, None]
    ).sum(0)
    expected = np.diff(below)
    named = [f"{number(a)}" if b - a == 1 else f"{number(a)} – {number(b - 1)}" for a, b in pairwise(edges)]
    seen = np.histogram(y[np.isfinite(y)], edges)[0] if np.isfinite(y).any() else None
    frame = svg.Frame(
        0, float(edges[-1]), 0, 1.05 * float(max(expected.max(), 0 if seen is None else seen.max(), 1e-9))
    )
    tips = [f"count {name}: {number(e, 3)} rows expected" for name, e in zip(named, expected, strict=True)]
    marks, key = [svg.bars(frame, edges, expected, "a", tips)], [("a bar", "expected")]
    head = ["count", "rows expected", "rows observed"]
    cells = [[name, number(e, 3), "–"] for name, e in zip(named, expected, strict=True)]
    if seen is not None:
        tips = [f"count {name}: {count(int(n))} rows observed" for name, n in zip(named, seen, strict=True)]
        marks.append(svg.scatter(frame, (edges[:-1] + edges[1:]) / 2, seen, "b", tips))
        key.append(("b", "observed"))
        cells = [[name, expect, count(int(n))] for (name, expect, _), n in zip(cells, seen, strict=True)]
    plot = svg.figure(frame, *marks, name="How often each count is expected", x_label="count", y_label="rows")
    how = "Bars add up the predicted probabilities of each count; points, what was observed, should lie at their ends."
    return card("Frequencies of the counts", how, plot, key=legend(*key), numbers=table("Rows by count", head, cells))


PAGE = dataclasses.replace(
    regression.PAGE,
    sections=sections,
    notes=lambda results: [
        "Std is a standard deviation of the count; aleatoric² + epistemic² = total².",
        "Intervals, frequencies and calibration (by mid-PIT) assume a negative binomial with the given mean and std.",
    ],
    needing_targets="likelihood, errors, coverage, calibration and residuals",
)
