"""Results → one page of HTML that needs nothing else: no network, no other file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bedl import tasks
from bedl.files import refuse_unwritable, write_atomically
from bedl.report.comparison import comparison_section
from bedl.report.document import document
from bedl.report.layout import INTERVALS, POINTS, headline, verdict
from bedl.report.learning import learning_section
from bedl.report.maps import maps_section
from bedl.report.pages import Page, page_of
from bedl.report.text import count, data
from bedl.tasks import Results, ResultsError, meanings, score

__all__ = ["render", "write_report"]


def render(
    results: Results, scores: Mapping[str, Any] | None = None, comparison: Mapping[str, Any] | None = None
) -> str:
    """The page, as HTML.

    Args:
        results: what to show.
        scores: further scores; by the names of `bedl.report.meanings` they replace the ones computed here, others,
            numbers or text, are added to the headline.
        comparison: of methods on the same data, as `bedl.compare` gives it; a section of its own.
    """
    if not isinstance(results, Results):
        raise ResultsError(f"a report shows a record such as RegressionResults, not {type(results).__name__}")
    page = page_of(results.task)
    values: dict[str, Any] = {**score(results), **_checked(scores or {})}
    baseline = tasks.get(results.task).baseline(results)
    baselines = {"baseline": baseline, "linear model": {k: v for k, v in results.linear.items() if k in baseline}}
    about = "".join(
        f"<div><dt>{data(name, 40)}</dt><dd>{data(value, 120)}</dd></div>" for name, value in _facts(results, page)
    )
    main = f"""{verdict(page.verdict(results, values))}
{headline(values, getattr(results, "level", None), baselines)}
<div class="cards" id="content" tabindex="-1">
{"" if comparison is None else comparison_section(comparison)}
{maps_section(results.maps)}{"".join(page.sections(results, values))}{learning_section(results.training)}
</div>
{_notes(results, page, bool(baseline))}"""
    return document(results.title, about, main)


def write_report(
    results: Results,
    path: str | os.PathLike[str],
    *,
    scores: Mapping[str, Any] | None = None,
    comparison: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the page to a file, whole or not at all, and return its path.

    Raises:
        OutputExistsError: there is a file, and `overwrite` is False.
    """
    target = Path(path)
    refuse_unwritable(target, overwrite)
    write_atomically(target, render(results, scores, comparison).encode("utf-8"), overwrite)
    return target


def _checked(scores: Mapping[str, Any]) -> Mapping[str, Any]:
    known = meanings()
    for name, value in scores.items():
        if name in known and not isinstance(value, (int, float, np.number)):
            raise ResultsError(f"the score {name} must be a number, not {value!r}; text goes under a name of your own")
    return scores


def _facts(results: Results, page: Page) -> list[tuple[str, str]]:
    facts = [("target", str(results.target_name)), *page.facts(results), ("rows", count(len(results)))]
    if results.ood is not None:
        facts.append(("out-of-domain rows", count(len(results.ood))))
    return [*((str(name), str(value)) for name, value in results.about.items()), *facts]


def _notes(results: Results, page: Page, baseline: bool) -> str:
    """What the page cannot say, and why."""
    rows, known = len(results), int(results.labelled.sum())
    notes = [data(note, 400) for note in results.notes]
    if known == 0:
        notes.append(f"There are no {page.observed}: {page.needing_targets} cannot be computed and are left out.")
    elif known < rows:
        notes.append(
            f"{count(known)} of {count(rows)} rows have {page.observed}; scores that need them use these rows."
        )
    if results.ood is None:
        notes.append("No out-of-domain rows were given: how well foreign inputs are recognised is not shown.")
    if max(rows, len(results.ood) if results.ood is not None else 0) > min(POINTS // 2, INTERVALS):
        notes.append(
            f"Plots show at most {count(POINTS)} points{page.drawn}, chosen at random but the same ones each time. "
            "Scores and tables use all rows."
        )
    notes += page.notes(results)
    if baseline and page.baseline:
        notes.append(f"Baseline: {page.baseline}. A report does not know the training data.")
    if results.linear:
        notes.append(
            "Linear model: a Bayesian ridge or logistic regression per fold that learned from the same rows, and is "
            "one of the model's members."
        )
    notes.append("How uncertainty splits into its parts depends on the model, not on the data alone.")
    items = "".join(f"<li>{note}</li>" for note in notes)
    return f'<section class="card notes"><h2>Notes and limits</h2><ul>{items}</ul></section>'
