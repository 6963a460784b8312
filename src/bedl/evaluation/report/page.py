"""The frame of every page: one HTML document that needs nothing else, no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import html
import math
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from bedl._utils.io import check_writable, write_atomically
from bedl.evaluation import tasks
from bedl.evaluation.report.layout import (
    INTERVALS,
    POINTS,
    Verdict,
    count,
    data,
    headline,
    number,
    percent,
    text,
    verdict,
)
from bedl.evaluation.report.pages import Page, page_of
from bedl.evaluation.report.parts import (
    columns_section,
    comparison_section,
    learning_section,
    maps_section,
    slices_section,
)
from bedl.evaluation.tasks import Results, ResultsError, meanings, score


def document(title: str, about: str, main: str) -> str:
    """A whole page.

    Args:
        title: plain text.
        about: facts in the head of the page, HTML: ``<div><dt>…</dt><dd>…</dd></div>`` each.
        main: the content, HTML; the element with the id "content" is what a keyboard can skip to.
    """
    style, script = _asset("page.css"), _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # The page's own script and no other: even markup that slipped through could not run.
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(title, 120)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the plots</a>
<header>
<h1>{data(title, 120)}</h1>
<button type="button" id="theme" hidden>Theme: auto</button>
<dl class="about">{about}</dl>
</header>
<main>
{main}
</main>
<footer>Made by bedl. This page is one file and loads nothing else.</footer>
<div id="tip" hidden></div>
<div id="spoken" class="hidden" aria-live="polite"></div>
<script>{script}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return files("bedl.evaluation.report").joinpath(name).read_text(encoding="utf-8")


# Results → one page of HTML that needs nothing else: no network, no other file.


def render(
    results: Results, scores: Mapping[str, Any] | None = None, comparison: Mapping[str, Any] | None = None
) -> str:
    """The page, as HTML.

    Args:
        results: what to show.
        scores: further scores; by the names of `bedl.tasks.meanings` they replace the ones computed here, others,
            numbers or text, are added to the headline.
        comparison: of methods on the same data, as `bedl.compare` gives it; a section of its own.
    """
    if not isinstance(results, Results):
        raise ResultsError(f"a report shows a record such as RegressionResults, not {type(results).__name__}")
    page = page_of(results.task)
    values: dict[str, Any] = {**score(results), **_checked(scores or {})}
    baseline = tasks.get(results.task).baseline(results)
    baselines = {"baseline": baseline}
    about = "".join(
        f"<div><dt>{data(name, 40)}</dt><dd>{data(value, 120)}</dd></div>" for name, value in _facts(results, page)
    )
    sections = [maps_section(results.maps), *page.sections(results, values), columns_section(results.columns)]
    sections += [slices_section(results.slices, page.hits), learning_section(results.training)]
    main = f"""{verdict(page.verdict(results, values))}
{headline(values, getattr(results, "level", None), baselines)}
<div class="cards" id="content" tabindex="-1">
{"" if comparison is None else comparison_section(comparison)}
{"".join(sections)}
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
    check_writable(target, overwrite)
    write_atomically(target, render(results, scores, comparison).encode("utf-8"), overwrite)
    return target


def preview(results: Results) -> str:
    """The uncertainty components, and the intervals or the entropies, as HTML to embed in a notebook."""
    page = page_of(results.task)
    cards = "".join(page.sections(results, score(results))[:2])
    facts = "".join(f"<div><dt>{data(k, 40)}</dt><dd>{data(v, 120)}</dd></div>" for k, v in _facts(results, page))
    return embedded(document(results.title, facts, f'<div class="cards" id="content" tabindex="-1">{cards}</div>'), 640)


def embedded(page: str, height: int) -> str:
    """A page in a frame of its own, so that its style stays inside."""
    frame = 'style="width:100%;border:0" sandbox="allow-scripts"'
    return f'<iframe title="bedl" height="{height}" {frame} srcdoc="{html.escape(page, quote=True)}"></iframe>'


def _checked(scores: Mapping[str, Any]) -> Mapping[str, Any]:
    known = meanings()
    for name, value in scores.items():
        if name in known and not isinstance(value, (int, float, np.number)):
            raise ResultsError(f"the score {name} must be a number, not {value!r}; text goes under a name of your own")
    return scores


def _facts(results: Results, page: Page) -> list[tuple[str, str]]:
    facts = [("target", str(results.target_name)), *page.facts(results), ("rows", count(len(results)))]
    if results.ood is not None:
        facts.append(("OOD rows", count(len(results.ood))))
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
        notes.append("No out-of-distribution (OOD) rows were given, so OOD detection is not evaluated.")
    if max(rows, len(results.ood) if results.ood is not None else 0) > min(POINTS // 2, INTERVALS):
        notes.append(
            f"Plots show at most {count(POINTS)} points{page.drawn}, chosen at random with a fixed seed. "
            "Scores and tables use all rows."
        )
    notes += page.notes(results)
    if baseline and page.baseline:
        notes.append(f"Baseline: {page.baseline}.")
    notes.append("The uncertainty components depend on the model, not on the data alone.")
    items = "".join(f"<li>{note}</li>" for note in notes)
    return f'<section class="card notes"><h2>Notes</h2><ul>{items}</ul></section>'


# The verdict: sentences at the top of a page.


CHANCE = 1.96  # standard errors: a 95 % confidence interval
CLOSE = 0.03  # a larger deviation from the nominal coverage is reported even where it may be chance


def of_targets(results: Any, scores: dict[str, float], baseline: dict[str, float]) -> list[Verdict]:
    """Whether intervals are calibrated, and whether predictions beat the constant baseline."""
    said: list[Verdict] = []
    count, level = int(results.labelled.sum()), results.level
    if "coverage" in scores:
        chance = CHANCE * math.sqrt(level * (1 - level) / count) + 0.5 / count
        found = f"{percent(level, 0)} intervals contain {percent(scores['coverage'], 0)} of the targets"
        if abs(scores["coverage"] - level) <= min(chance, CLOSE):
            said.append(("good", f"Intervals are calibrated: {found}."))
        elif abs(scores["coverage"] - level) <= chance:
            said.append(("so", f"{found}; with {count} rows the difference may be chance."))
        elif scores["coverage"] < level:
            said.append(("bad", f"Intervals are too narrow: {found}."))
        else:
            said.append(("so", f"Intervals are too wide: {found}."))
    if "rmse" in baseline and "rmse" in scores:
        said.append(_against(scores["rmse"], baseline["rmse"]))
    return said


def _against(error: float, plain: float) -> Verdict:
    both = f"RMSE {number(error, 3)} against {number(plain, 3)}"
    if error < plain:
        share = percent(1 - error / plain, 0)
        return "good", f"Errors are {share} smaller than those of a constant prediction: {both}."
    return "bad", f"Predictions are no better than a constant one: {both}."


def of_classes(results: Any, scores: dict[str, float], baseline: dict[str, float]) -> list[Verdict]:
    """Whether predictions beat the most frequent class, and whether probabilities are calibrated."""
    some = results.labelled
    if "accuracy" not in scores or not some.any():
        return []
    right, plain = scores["accuracy"], baseline.get("accuracy", 0.0)
    frequent = int(np.bincount(results.observed[some]).argmax())
    name = results.class_names[frequent]
    # McNemar's test: rows that one of the two predicts rightly
    more = (results.predicted == results.observed)[some].astype(int) - (results.observed[some] == frequent)
    better = more.sum() > CHANCE * math.sqrt(np.abs(more).sum())
    balanced = f"balanced accuracy {percent(scores['balanced_accuracy'])}"
    said: list[Verdict] = [(
        "good" if better else "so" if right > plain else "bad",
        f"{percent(right)} of the predictions are right, {percent(plain)} if always {data(name, 30)}; {balanced}.",
    )]  # fmt: skip
    confidence = results.probabilities[some].max(1).astype(float)
    mean = float(confidence.mean())
    chance = CHANCE * math.sqrt(float((confidence * (1 - confidence)).mean()) / int(some.sum())) + 0.5 / int(some.sum())
    both = f"mean confidence {percent(mean)}, accuracy {percent(right)}"
    if abs(mean - right) <= chance:
        said.append(("good", f"Probabilities are calibrated on average: {both}."))
    elif mean > right:
        said.append(("bad", f"The model is overconfident: {both}."))
    else:
        said.append(("so", f"The model is underconfident: {both}."))
    return said


def of_detection(scores: dict[str, float]) -> list[Verdict]:
    """Whether OOD rows are detected."""
    if "ood_auroc" not in scores:
        return []
    names = {"ood_auroc": "total", "ood_auroc_epistemic": "epistemic"}
    best = max(scores["ood_auroc"], scores["ood_auroc_epistemic"])
    rest = "AUROC " + ", ".join(f"{number(scores[key], 2)} by {name} uncertainty" for key, name in names.items()) + "."
    if best >= 0.9:
        return [("good", f"OOD rows are detected: {rest}")]
    if best > 0.6:
        return [("so", f"OOD rows are partly detected: {rest}")]
    return [("bad", f"OOD rows are not detected: {rest}")]
