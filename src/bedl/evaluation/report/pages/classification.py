"""The plots and tables of a page on classes."""

from __future__ import annotations

import json
import math

import numpy as np

from bedl.evaluation import metrics
from bedl.evaluation.report import svg
from bedl.evaluation.report.layout import (
    Cell,
    Verdict,
    card,
    count,
    data,
    legend,
    most_surprising,
    most_uncertain,
    number,
    percent,
    quantile_rows,
    shorten,
    table,
    text,
)
from bedl.evaluation.report.page import of_classes, of_detection
from bedl.evaluation.report.pages import Page
from bedl.evaluation.report.parts import KindWords, domains, kinds, said_of_parts
from bedl.evaluation.tasks import get
from bedl.evaluation.tasks.classification import ClassificationResults

CLASSES_SHOWN = 15  # in the confusion matrix; beyond, its cells hold no number that could be read
CURVE_POINTS = 400
MISTAKES = 12
KINDS = KindWords("entropy", "entropy", "in nats", squared=False)


def sections(results: ClassificationResults, scores: dict[str, float]) -> list[str]:
    """Every section that the results allow, in the order of the page."""
    parts = [kinds(results, KINDS)]
    if results.labelled.any():
        parts.append(_reliability(results, scores))
    parts.append(_entropy(results, scores))
    if results.labelled.any():
        parts += [_refusing(results), _ranking(results), *_confusion(results)]
    parts.append(_sets(results))
    parts.append(most_uncertain(results, "Most uncertain examples", _row(results)))
    how = "lowest probability of the true class"
    parts.append(most_surprising(results, "Most surprising examples", _row(results), how))
    if results.ood is not None:
        parts.append(most_uncertain(results.ood, "Most uncertain examples, OOD", _row(results.ood)))
    return [part for part in parts if part]


def verdict(results: ClassificationResults, scores: dict[str, float]) -> list[Verdict]:
    """What the numbers come to."""
    said = of_classes(results, scores, get(results.task).baseline(results))
    return [*said, ("so", said_of_parts(results, KINDS)), *of_detection(scores)]


def _reliability(results: ClassificationResults, scores: dict[str, float]) -> str:
    some = results.labelled
    curve = metrics.reliability_curve(results.observed[some], results.probabilities[some])
    full = curve.counts > 0
    frame = svg.Frame(0, 1, 0, 1, bottom=196)
    below = svg.Frame(0, 1, 0, 1.05 * float(curve.counts.max()), top=206)
    tips = [
        f"confidence {percent(a)} to {percent(b)}: {count(n)} rows"
        + (f", mean confidence {percent(c)}, {percent(r)} right" if n else "")
        for a, b, n, c, r in zip(curve.edges[:-1], curve.edges[1:], *curve[1:], strict=True)
    ]
    tips_full = [tip for tip, some_rows in zip(tips, full, strict=True) if some_rows]
    gaps = svg.whiskers(frame, curve.confidence[full], curve.confidence[full], curve.accuracy[full])
    plot = svg.figure(
        below,
        svg.grid_lines(frame, [0, 0.25, 0.5, 0.75, 1], lambda v: f"{100 * v:g} %"),
        svg.line(frame, [0, 1], [0, 1], "ref"),
        gaps,
        svg.line(frame, curve.confidence[full], curve.accuracy[full]),
        svg.scatter(frame, curve.confidence[full], curve.accuracy[full], "a solid", tips_full, size=3.6),
        svg.bars(below, curve.edges, curve.counts, "a", tips),
        name="Reliability diagram: accuracy against confidence, and rows by confidence",
        x_label="confidence: probability of the predicted class",
        y_label="accuracy (above), rows (below)",
        x_format=lambda v: f"{100 * v:g} %",
        y_format=_short,
        y_ticks=svg.ticks(0, below.y_high, 2)[1:],
    )
    rows = [
        [f"{percent(a)} – {percent(b)}", count(n), percent(c), percent(r), percent(r - c).replace("-", "−")]
        for a, b, n, c, r in zip(curve.edges[:-1], curve.edges[1:], *curve[1:], strict=True)
    ]
    head = ["confidence", "rows", "mean confidence", "accuracy", "accuracy − confidence"]
    how = (
        "On the dashed diagonal, predictions with confidence 80\u00a0% are right in 80\u00a0% of cases; below it the "
        f"model is overconfident. Bars: rows. ECE {percent(scores['ece'])}."
    )
    return card("Reliability diagram", how, plot, numbers=table("Rows by confidence, 15 bins", head, rows))


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else number(value)


def _curve(values: np.ndarray, top: float) -> tuple[np.ndarray, np.ndarray]:
    """The ECDF from 0 to the top, thinned to what a plot can show."""
    x, share = metrics.ecdf(np.clip(values, 0, top))
    if len(x) > CURVE_POINTS:
        keep = np.unique(np.linspace(0, len(x) - 1, CURVE_POINTS).astype(int))
        x, share = x[keep], share[keep]
    return np.r_[0, x, top], np.r_[0, share, 1]


def _entropy(results: ClassificationResults, scores: dict[str, float]) -> str:
    top = math.log(len(results.class_names))
    frame = svg.Frame(0, top * 1.001, 0, 1)
    sets = domains(results)
    marks = []
    for kind, name, part in sets:
        marks.append(svg.steps(frame, *_curve(part.entropy, top), kind))
        at = np.linspace(0, top, 11)
        share = np.searchsorted(np.sort(part.entropy), at + 1e-9, side="right") / len(part)
        tips = [
            f"{name}: {percent(s)} of rows have entropy up to {number(a, 3)} nats"
            for a, s in zip(at, share, strict=True)
        ]
        marks.append(svg.scatter(frame, at, share, kind, tips))
    plot = svg.figure(
        frame,
        *marks,
        name="Cumulative distribution of the predictive entropy",
        x_label=f"entropy in nats (uniform: log {len(results.class_names)} = {number(top, 3)})",
        y_label="share of rows at or below",
        y_format=lambda v: f"{100 * v:g} %",
    )
    how = "The empirical distribution function: curves of confident predictions rise early, of uncertain ones late."
    head, values = ["entropy in nats"], []
    for _, name, part in sets:
        head.append(name)
        values.append(part.entropy)
    rows = quantile_rows(values)
    if results.ood is not None:
        rows.append(["ECDF-AUC = log C − mean", number(scores["ecdf_auc"]), number(scores["ood_ecdf_auc"])])
    numbers = table("Entropy of the predicted probabilities, all rows", head, rows)
    if results.ood is not None:
        how += (
            " That of OOD rows should lie to the right and below. Detection by entropy: AUROC "
            f"{number(scores['ood_auroc'])}, AUPR {number(scores['ood_aupr'])}, FPR95 {percent(scores['ood_fpr95'])}."
        )
        numbers += _detection_table(results, scores)
    key = legend(*((f"line {kind}", name) for kind, name, _ in sets))
    return card(
        "Entropy, in-domain and OOD" if results.ood is not None else "Entropy", how, plot, key=key, numbers=numbers
    )


def _detection_table(results: ClassificationResults, scores: dict[str, float]) -> str:
    assert results.ood is not None
    known, foreign = results.epistemic_entropy, results.ood.epistemic_entropy
    total = [scores["ood_auroc"], scores["ood_aupr"], scores["ood_fpr95"]]
    epistemic = [scores["ood_auroc_epistemic"], metrics.aupr(known, foreign), metrics.fpr_at_tpr(known, foreign)]
    rows = [
        [name, number(values[0]), number(values[1]), percent(values[2])]
        for name, values in (("total entropy", total), ("epistemic entropy", epistemic))
    ]
    return table("Detection of OOD rows", ["by", "AUROC", "AUPR", "FPR95"], rows)


def _ranking(results: ClassificationResults) -> str:
    """ROC and precision–recall curves of the rarer of two classes, with a threshold to move."""
    some = results.labelled
    labels, table_ = results.observed[some], results.probabilities[some].astype(float)
    if len(results.class_names) != 2 or len(np.unique(labels)) < 2:
        return ""
    rarer = int(np.bincount(labels).argmin())
    name, true = shorten(str(results.class_names[rarer]), 24), labels == rarer
    curve = metrics.threshold_curve(table_[~true, rarer], table_[true, rarer])
    keep = np.unique(np.linspace(0, len(curve.threshold) - 1, CURVE_POINTS).round().astype(int))
    fpr, recall, precision = curve.false_positive_rate, curve.recall, curve.precision
    frame = svg.Frame(0, 1, 0, 1)
    steps = []
    for i in np.unique(np.searchsorted(recall, np.linspace(0, 1, 101))).clip(0, len(recall) - 1).tolist():
        said = (
            f"Threshold {number(float(curve.threshold[i]), 3)}: recall {percent(recall[i])}, precision "
            f"{percent(precision[i])}, false-positive rate {percent(fpr[i])}; {count(round(recall[i] * true.sum()))} "
            f"true and {count(round(fpr[i] * (~true).sum()))} false positives"
        )
        places = [*frame.x([fpr[i], recall[i]]), *frame.y([recall[i], precision[i]])]
        steps.append((float(curve.threshold[i]), said, [round(float(place), 1) for place in places]))
    start = int(np.argmin([abs(threshold - 0.5) for threshold, _, _ in steps]))
    moved = [f'<circle class="moved" cx="{steps[start][2][k]}" cy="{steps[start][2][2 + k]}" r="5"/>' for k in range(2)]

    def share(value: float) -> str:
        return f"{100 * value:g} %"

    roc = svg.figure(
        frame, svg.line(frame, [0, 1], [0, 1], "ref"), svg.line(frame, np.r_[0, fpr[keep]], np.r_[0, recall[keep]]),
        moved[0], name=f"ROC curve of {name}", x_label="false-positive rate", y_label=f"recall of {name}",
        x_format=share, y_format=share,
    )  # fmt: skip
    chance = float(true.mean())
    both = svg.figure(
        frame, svg.line(frame, [0, 1], [chance, chance], "ref"),
        svg.line(frame, np.r_[0, recall[keep]], np.r_[precision[0], precision[keep]]), moved[1],
        name=f"Precision–recall curve of {name}", x_label=f"recall of {name}", y_label="precision",
        x_format=share, y_format=share,
    )  # fmt: skip
    area, average = (values[rarer] for values in metrics.one_vs_rest(labels, table_))
    how = (
        f"{data(name)} is the rarer class ({percent(chance)} of rows). AUROC {number(area)} (chance 0.5), average "
        f"precision {number(average)} (chance {number(chance, 3)}; dashed)."
    )
    data_steps = text(json.dumps([[said, *places] for _, said, places in steps]), 10**6)
    slider = (
        f'<p><input type="range" min="0" max="{len(steps) - 1}" value="{start}" data-steps="{data_steps}" hidden '
        f'aria-label="threshold on the probability of {text(name)}"><output>{text(steps[start][1], 300)}</output></p>'
    )
    return card("ROC and precision–recall", how, f'{slider}<div class="tables">{roc}{both}</div>', wide=True)


def _refusing(results: ClassificationResults) -> str:
    some = results.labelled
    wrong = results.predicted[some] != results.observed[some]
    curve = metrics.risk_coverage(wrong, results.entropy[some])
    n = len(curve.risk)
    keep = np.unique(np.linspace(0, n - 1, min(n, CURVE_POINTS)).astype(int))
    frame = svg.Frame(0, 1, 0, 1.1 * float(curve.risk.max()) or 1.0)
    at = np.unique(np.maximum(np.round(np.linspace(0.1, 1, 10) * n).astype(int), 1)) - 1
    tips = [f"coverage {percent(c)}: error rate {percent(r)}" for c, r in zip(*(v[at] for v in curve), strict=True)]
    plot = svg.figure(
        frame,
        svg.line(frame, curve.coverage[keep], curve.risk[keep]),
        svg.scatter(frame, curve.coverage[at], curve.risk[at], "a solid", tips, size=3.2),
        name="Risk–coverage curve: error rate of the most certain rows",
        x_label="coverage: share of rows, most certain first",
        y_label="error rate (risk)",
        x_format=lambda v: f"{100 * v:g} %",
        y_format=lambda v: f"{100 * v:.3g} %",
    )
    rows = [[percent(c), percent(r), percent(1 - r)] for c, r in zip(*(v[at] for v in curve), strict=True)]
    how = (
        "The error rate among the rows that remain if those with the highest entropy are rejected; it should fall to "
        "the left."
    )
    numbers = table("Rejecting the most uncertain rows", ["coverage", "error rate (risk)", "accuracy"], rows)
    return card("Risk–coverage curve", how, plot, numbers=numbers)


def _confusion(results: ClassificationResults) -> list[str]:
    some = results.labelled
    classes = len(results.class_names)
    counts = metrics.confusion(results.observed[some], results.predicted[some], classes)
    names = [str(name) for name in results.class_names]
    shown = [shorten(name, 40) for name in names]
    off = counts.copy()
    np.fill_diagonal(off, 0)
    worst = [divmod(int(i), classes) for i in np.argsort(-off.ravel(), kind="stable")[:MISTAKES] if off.ravel()[i] > 0]
    rows = [[data(names[i], 40), data(names[j], 40), count(off[i, j]),
             percent(off[i, j] / counts[i].sum())] for i, j in worst]  # fmt: skip
    how = "Recall: share of a class's rows that are found. Precision: share of its predictions that are right."
    if classes > CLASSES_SHOWN:
        how += f" The {CLASSES_SHOWN} classes with the lowest recall; a confusion matrix of all would not be legible."
    how += "" if rows else " No row was misclassified."
    head = ["true class", "predicted as", "rows", "of the true class"]
    listed = table(f"The most frequent mistakes, at most {MISTAKES} pairs", head, rows) if rows else ""
    tables = f'<div class="tables">{_recall(results, counts)}{listed}</div>'
    by_class = card("Scores by class", how, tables, wide=classes > CLASSES_SHOWN)  # then there is none beside it
    if classes > CLASSES_SHOWN:
        return [by_class]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    cells = [["" if n == 0 else str(n) if n < 100_000 else f"{n // 1000}k" for n in row] for row in counts.tolist()]
    tips = [
        [f"true {shown[i]}, predicted {shown[j]}: {count(counts[i, j])} rows, {percent(shares[i, j])}"
         for j in range(classes)] for i in range(classes)
    ]  # fmt: skip
    plot = svg.heat_map(
        shares, cells, names, tips, name="Confusion matrix: true class by row, predicted class by column"
    )
    matrix = table(
        "Rows by true class (down) and predicted class (across)",
        ["true", *(data(name, 20) for name in names)],
        [[data(names[i], 20), *(count(n) for n in counts[i])] for i in range(classes)],
    )
    how = "Rows are true classes, columns predicted ones; mistakes lie off the diagonal. Darker: more of the row."
    return [card("Confusion matrix", how, plot, numbers=matrix), by_class]


def _recall(results: ClassificationResults, counts: np.ndarray) -> str:
    """A table of the scores of each class, lowest recall first. counts shape: (true, predicted)"""
    true, said, right = counts.sum(1), counts.sum(0), counts.diagonal()
    recall = right / np.maximum(true, 1)
    some, rows = results.labelled, []
    areas, precisions = metrics.one_vs_rest(results.observed[some], results.probabilities[some])
    for i in [int(i) for i in np.argsort(recall, kind="stable") if true[i]][:CLASSES_SHOWN]:
        entropy = float(results.entropy[results.observed == i].mean())
        precision = percent(right[i] / said[i]) if said[i] else "–"
        ranked = [number(areas[i], 3), number(precisions[i], 3), number(entropy, 3)]
        rows.append([data(results.class_names[i], 40), count(true[i]), percent(recall[i]), precision, *ranked])
    head = ["class", "rows", "recall", "precision", "AUROC", "average precision", "mean entropy"]
    return table("Each class, lowest recall first", head, rows)


def _sets(results: ClassificationResults) -> str:
    """How large prediction sets are, and how many of each class's rows have their class in them."""
    if results.sets is None:
        return ""
    held, names = np.asarray(results.sets), results.class_names
    sizes = held.sum(1)
    most = int(sizes.max())
    counts = np.bincount(sizes, minlength=most + 1)
    frame = svg.Frame(-0.5, most + 0.5, 0, 1.05 * float(counts.max()))
    tips = [f"{size} classes: {count(n)} rows, {percent(n / len(sizes))}" for size, n in enumerate(counts)]
    plot = svg.figure(
        frame, svg.bars(frame, np.arange(most + 2) - 0.5, counts, "a", tips), name="Sizes of the prediction sets",
        x_label="classes in the set", y_label="rows", x_ticks=sorted({round(at) for at in np.linspace(0, most, 9)}),
    )  # fmt: skip
    nominal = f"{100 * results.level:g}\u00a0%"
    mean = number(float(sizes.mean()), 3)
    how = f"Sets that hold the true class with probability {nominal}; {mean} classes on average."
    some = results.labelled
    if not some.any():
        return card("Prediction sets", how, plot)
    labels = results.observed[some]
    covered = held[some][np.arange(len(labels)), labels]
    rows_of = np.bincount(labels, minlength=len(names))
    hits, total = (np.bincount(labels, weights=w, minlength=len(names)) for w in (covered, sizes[some]))
    share = hits / np.maximum(rows_of, 1)
    rows = [[data(names[i], 40), count(rows_of[i]), percent(share[i]), number(float(total[i] / rows_of[i]), 3)]
            for i in [int(i) for i in np.argsort(share, kind="stable") if rows_of[i]][:CLASSES_SHOWN]]  # fmt: skip
    how += (
        f" {percent(float(covered.mean()))} of the rows have their class in the set. That holds on average over rows, "
        "not for each class."
    )
    head = ["class", "rows", "coverage", "mean set size"]
    return card("Prediction sets", how, plot, numbers=table("Coverage by class, lowest first", head, rows))


def _row(results: ClassificationResults) -> dict[str, Cell]:
    """What an example says."""
    predicted = results.predicted

    def said(row: int) -> str:
        chosen = predicted[row]
        return f"{data(results.class_names[chosen], 30)} ({percent(float(results.probabilities[row, chosen]))})"

    columns: dict[str, Cell] = {"predicted": said}
    if results.labels is not None:
        labels = results.labels
        columns["true"] = lambda row: data(results.class_names[int(labels[row])], 30) if labels[row] >= 0 else "–"
    columns["entropy"] = lambda row: f"{number(float(results.entropy[row]), 3)} nats"
    columns["epistemic"] = lambda row: f"{number(float(results.epistemic_entropy[row]), 3)} nats"
    return columns


PAGE = Page(
    sections=sections,
    notes=lambda results: [
        "Entropies are in nats (natural logarithm). Total = aleatoric + epistemic, epistemic = distributional + model."
    ],
    observed="labels",
    needing_targets="likelihood, accuracy, calibration, ROC, risk–coverage and confusion matrix",
    verdict=verdict,
    hits="accuracy",
    baseline="a constant prediction, the class frequencies of this page",
    facts=lambda results: [("classes", str(len(results.class_names)))],
)
