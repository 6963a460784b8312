"""The plots and tables of a page on labels: of each label, and of all answers together as classes no and yes."""

from __future__ import annotations

import numpy as np

from bedl.evaluation import metrics
from bedl.evaluation.report import svg
from bedl.evaluation.report.layout import (
    Cell,
    Verdict,
    card,
    data,
    legend,
    most_uncertain,
    number,
    percent,
    shorten,
    table,
)
from bedl.evaluation.report.page import of_classes, of_detection
from bedl.evaluation.report.pages import Page, classification
from bedl.evaluation.report.parts import said_of_parts
from bedl.evaluation.tasks import get, score
from bedl.evaluation.tasks.multilabel import MultilabelResults

NAMED = 6  # likely labels of a row that are named


def sections(results: MultilabelResults, scores: dict[str, float]) -> list[str]:
    """Every section that the results allow, in the order of the page."""
    answers = results.answers()
    parts = [_labels(results), *classification.sections(answers, score(answers))]
    parts.append(_most_uncertain(results, "Most uncertain rows"))
    if results.ood is not None:
        parts.append(_most_uncertain(results.ood, "Most uncertain rows, OOD"))
    return [part for part in parts if part]


def verdict(results: MultilabelResults, scores: dict[str, float]) -> list[Verdict]:
    """The verdict: of all labels together, and of OOD rows."""
    answers = results.answers()
    said = of_classes(answers, score(answers), get(answers.task).baseline(answers))
    return [*said, ("so", said_of_parts(answers, classification.KINDS)), *of_detection(scores)]


def _labels(results: MultilabelResults) -> str:
    """How often each label is expected and seen, and how well it is told."""
    some = results.labelled
    p, y = results.probabilities[some].astype(float), results.observed[some]
    expected = results.probabilities.mean(0, dtype=float)
    names = [shorten(str(name), 40) for name in results.label_names]
    place = np.arange(len(names), dtype=float)
    seen = y.mean(0) if some.any() else None
    frame = svg.Frame(-0.5, len(names) - 0.5, 0, 1.05 * max(expected.max(), 0 if seen is None else seen.max(), 1e-9))
    tips = [f"{name}: expected in {percent(e)} of rows" for name, e in zip(names, expected, strict=True)]
    marks, key = [svg.bars(frame, np.r_[place - 0.5, place[-1] + 0.5], expected, "a", tips)], [("a bar", "expected")]
    head, rows = ["label", "expected"], [[data(name, 40), percent(e)] for name, e in zip(names, expected, strict=True)]
    if seen is not None:
        marks.append(svg.scatter(frame, place, seen, "b", [f"{n}: {percent(s)}" for n, s in zip(names, seen)]))  # noqa: B905
        key.append(("b", "observed"))
        head += ["observed", "right", "AUROC", "Brier score"]
        for i, row in enumerate(rows):
            said, true = p[:, i], y[:, i]
            both = 0 < true.mean() < 1
            ranked = number(metrics.auroc(said[true == 0], said[true == 1])) if both else "–"
            row += [percent(float(true.mean())), percent(float(((said > 0.5) == true).mean())), ranked]
            row.append(number(float(np.square(said - true).mean())))
    plot = svg.figure(
        frame, *marks, name="How often each label is expected", x_label="labels, in the order of the table",
        y_label="share of rows", x_ticks=(), y_format=lambda v: f"{100 * v:g} %",
    )  # fmt: skip
    how = "Bars are the mean predicted probabilities; points what was observed, which should lie at their ends."
    return card("Labels", how, plot, key=legend(*key), numbers=table("Each label, all rows", head, rows))


def _most_uncertain(results: MultilabelResults, title: str) -> str:
    def named(row: int, chosen: np.ndarray) -> str:
        best = chosen[np.argsort(-results.probabilities[row, chosen], kind="stable")][:NAMED]
        more = ", …" if len(chosen) > NAMED else ""
        said = (f"{data(results.label_names[i], 30)} ({percent(float(results.probabilities[row, i]))})" for i in best)
        return ", ".join(said) + more if len(chosen) else "–"

    columns: dict[str, Cell] = {"predicted": lambda row: named(row, np.flatnonzero(results.probabilities[row] > 0.5))}
    if results.labels is not None:
        labels = results.labels
        columns["true"] = lambda row: named(row, np.flatnonzero(labels[row] == 1))
    columns["entropy"] = lambda row: f"{number(float(results.entropy[row]), 3)} nats"
    columns["epistemic"] = lambda row: f"{number(float(results.epistemic[row]), 3)} nats"
    return most_uncertain(results, title, columns)


PAGE = Page(
    sections=sections,
    notes=lambda results: [
        "Entropies are in nats (natural logarithm); aleatoric + epistemic = total.",
        "Reliability, entropy, risk–coverage and confusion treat each label of each row as a prediction of its own.",
    ],
    observed="labels",
    verdict=verdict,
    needing_targets="likelihood, accuracy, calibration, ROC, risk–coverage and confusion matrix",
    facts=lambda results: [("labels", str(len(results.label_names)))],
)
