"""A section that compares methods: a line each, the best first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bedl.report.text import data, number, percent, table
from bedl.tasks import meanings

__all__ = ["comparison_section"]

SHOWN = ("nll", "rmse", "accuracy", "coverage", "calibration_error", "ece", "ood_auroc")
TIMES = {"fit_seconds": "fit, s", "predict_seconds": "1,000 rows, s"}


def comparison_section(comparison: Mapping[str, Any]) -> str:
    """The comparison as a section of a page.

    Args:
        comparison: ``summary``, a row per method as `bedl.compare` has them, ``constant``, ``refused``.
    """
    summary = comparison["summary"]
    names = [name for name in SHOWN if any(name in row for row in summary)]
    known = meanings()
    head = ["method", *(known[name].label for name in names), *TIMES.values()]
    rows = [[data(row["method"], 40), *(_cell(row, name) for name in names), *(_cell(row, t) for t in TIMES)]
            for row in summary]  # fmt: skip
    constant = comparison.get("constant") or {}
    if constant:
        cells = [_cell(constant, name) for name in names]
        rows.append(["one answer for all", *cells, "", ""])
    splits = max((row["splits"] for row in summary), default=0)
    how = (
        f"All methods learned from the same {splits} splits of the data; ± is the standard error of the mean. The best "
        "by negative log-likelihood comes first, and is the one that this page shows."
    )
    if comparison.get("tied"):
        how += f" Tied with it, within a standard error of the difference: {data(', '.join(comparison['tied']), 200)}."
    notes = [
        f"<li>{data(row['method'], 40)} failed: {data(row['error'], 200)}</li>" for row in summary if "error" in row
    ]
    notes += [f"<li>{data(why, 300)}</li>" for why in comparison.get("refused", {}).values()]
    below = f"<details><summary>Not in the table, and why</summary><ul>{''.join(notes)}</ul></details>" if notes else ""
    caption = f"{len(summary)} methods"
    return (
        f'<section class="card wide"><h2>Methods compared</h2><p class="how">{how}</p>'
        f"{table(caption, head, rows)}{below}</section>"
    )


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None or not math.isfinite(value):
        return "–"
    share = name in meanings() and meanings()[name].share
    shown = percent(value) if share else number(value, 3 if name in TIMES else 4)
    error = row.get(f"{name}_se")
    if not error or name in TIMES:
        return shown
    return f"{shown} <small>± {percent(error) if share else number(error, 2)}</small>"
