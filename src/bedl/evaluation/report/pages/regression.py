"""The plots and tables of a page on real targets."""

from __future__ import annotations

import numpy as np

from bedl.evaluation import metrics
from bedl.evaluation.report import svg
from bedl.evaluation.report.layout import (
    INTERVALS,
    Cell,
    Verdict,
    card,
    count,
    data,
    histogram_edges,
    legend,
    most_surprising,
    most_uncertain,
    number,
    percent,
    quantile_rows,
    shorten,
    subsample,
    table,
    text,
)
from bedl.evaluation.report.page import of_detection, of_targets
from bedl.evaluation.report.pages import Page
from bedl.evaluation.report.parts import KindWords, kinds, said_of_parts
from bedl.evaluation.tasks import get
from bedl.evaluation.tasks.regression import RegressionResults, pit

FAN = 40  # groups of rows whose mean interval is drawn

KINDS = KindWords("std", "std", "in the target's unit", squared=True)


def sections(results: RegressionResults, scores: dict[str, float]) -> list[str]:
    """Every section that the results allow, in the order of the page."""
    parts = [kinds(results, KINDS), _intervals(results)]
    if results.labelled.any():
        parts.append(_observed(results))
        if results.pit is not None or (results.std[results.labelled] > 0).all():
            parts += [_calibration(results), _pit(results)]
        parts.append(_residuals(results))
    if results.ood is not None:
        parts += [_out_of_domain(results, scores, "std"), _out_of_domain(results, scores, "epistemic_std")]
    parts.append(most_uncertain(results, "Most uncertain rows", _row(results)))
    how = "largest absolute residual in predicted standard deviations"
    missed = results.surprise
    if missed is not None:
        parts.append(
            most_surprising(results, "Most surprising rows", {**_row(results), "|residual| / std": _cells(missed)}, how)
        )
    if results.ood is not None:
        parts.append(most_uncertain(results.ood, "Most uncertain rows, OOD", _row(results.ood)))
    return [part for part in parts if part]


def verdict(results: RegressionResults, scores: dict[str, float]) -> list[Verdict]:
    """What the numbers come to."""
    said = of_targets(results, scores, get(results.task).baseline(results))
    return [*said, ("so", said_of_parts(results, KINDS)), *of_detection(scores)]


def notes(results: RegressionResults) -> list[str]:
    """Sentences on what the numbers of the page are."""
    said = [
        "Std is a standard deviation in the target's unit. Variances add up: total² = aleatoric² + epistemic², "
        "epistemic² = distributional² + model²."
    ]
    if results.pit is None:
        said.append("NLL, CRPS and calibration assume a normal distribution with the given mean and std.")
    return said


def _level(results: RegressionResults) -> str:
    return f"{100 * results.level:g}\u00a0%"


def _groups(values: np.ndarray, count: int) -> list[np.ndarray]:
    """Rows in groups of about equal size, by ascending value; no group is empty."""
    order = np.argsort(values, kind="stable")
    return [part for part in np.array_split(order, min(count, len(order))) if len(part)]


def _intervals(results: RegressionResults) -> str:
    level, target = _level(results), text(results.target_name, 24)
    rows = subsample(len(results), INTERVALS)
    rows = rows[np.argsort(results.mean[rows], kind="stable")]
    mean, lower, upper = results.mean[rows], results.lower[rows], results.upper[rows]
    rank = np.arange(1, len(rows) + 1)
    known = results.labelled[rows]
    y = results.observed[rows]
    frame = svg.Frame.around(np.r_[rank, 0, len(rows) + 1], np.r_[lower, upper, y[known]])
    inside = (lower <= y) & (y <= upper)
    tips = [
        f"row {r + 1}: predicted {number(m)} ± {number(s)}, {level} interval {number(a)} to {number(b)}"
        + (f", observed {number(o)}" if np.isfinite(o) else "")
        for r, m, s, a, b, o in zip(rows.tolist(), mean, results.std[rows], lower, upper, y, strict=True)
    ]
    marks = [svg.whiskers(frame, rank, lower, upper), svg.scatter(frame, rank, mean, "a solid", tips, size=1.6)]
    key = [("a whisker", f"{level} interval"), ("a", "predicted mean")]
    for some, kind, name in ((known & inside, "c", "observed, inside"), (known & ~inside, "b", "observed, outside")):
        if some.any():
            tip = [tips[i] for i in np.flatnonzero(some)]
            marks.append(svg.scatter(frame, rank[some], y[some], kind, tip))
            key.append((kind, name))
    plot = svg.figure(
        frame,
        *marks,
        name=f"Predictions of {results.target_name} with {level} intervals",
        x_label="rows, in the order of their prediction",
        y_label=shorten(results.target_name, 40),
        x_ticks=(),
    )
    how = f"Each vertical line is one row's {level} interval of {data(results.target_name, 24)}."
    if known.any():
        how += f" About {number(100 - 100 * results.level, 3)} in 100 observed values should lie outside."
    if len(rows) < len(results):
        how += f" Drawn: {len(rows)} of {count(len(results))} rows."
    return card(
        "Predictions with their intervals", how, plot, key=legend(*key), numbers=_by_prediction(results, target)
    )


def _by_prediction(results: RegressionResults, target: str) -> str:
    has_y = bool(results.labelled.any())
    head = ["group", "rows", "mean predicted", "mean std", "mean interval width"]
    rows = []
    for i, part in enumerate(_groups(results.mean, 10)):
        width = results.upper[part] - results.lower[part]
        row = [str(i + 1), count(len(part))]
        row += [number(float(np.mean(a, dtype=float))) for a in (results.mean[part], results.std[part], width)]
        known = part[results.labelled[part]]
        if has_y and len(known):
            y = results.observed[known]
            row += [number(float(y.mean())), percent(metrics.coverage(y, results.lower[known], results.upper[known]))]
        elif has_y:
            row += ["–", "–"]
        rows.append(row)
    if has_y:
        head += ["mean observed", "inside the interval"]
    return table(f"All rows in groups by predicted {target}, lowest first", head, rows)


def _observed(results: RegressionResults) -> str:
    all_rows = np.flatnonzero(results.labelled)
    rows = all_rows[subsample(len(all_rows))]
    y, mean, std = results.observed[rows], results.mean[rows], results.std[rows]
    both = np.r_[y, mean]
    frame = svg.Frame.around(both, both)
    ends = [frame.x_low, frame.x_high]
    tips = [
        f"row {r + 1}: observed {number(o)}, predicted {number(m)} ± {number(s)}"
        for r, o, m, s in zip(rows.tolist(), y, mean, std, strict=True)
    ]
    plot = svg.figure(
        frame,
        svg.line(frame, ends, ends, "ref"),
        svg.scatter(frame, mean, y, "a", tips),
        name=f"Observed against predicted {results.target_name}",
        x_label=f"predicted mean of {shorten(results.target_name, 26)}",
        y_label="observed",
    )
    y_all, mean_all = results.observed[all_rows], results.mean[all_rows]
    numbers = table(
        "Observed and predicted, all rows with a target",
        ["", "observed", "predicted mean", "observed − predicted"],
        quantile_rows([y_all, mean_all, y_all - mean_all]),
    )
    how = "The closer to the dashed diagonal, the better; ± in the tips is one standard deviation."
    return card("Observed against predicted", how, plot, numbers=numbers)


def _calibration(results: RegressionResults) -> str:
    nominal, observed = metrics.calibration_curve(pit(results))
    count = int(results.labelled.sum())
    frame = svg.Frame(0, 1, 0, 1)
    grid = np.linspace(0, 1, 51)
    noise = 1.645 * np.sqrt(grid * (1 - grid) / count)
    tips = [
        f"{percent(p)} intervals contain {percent(o)} of the targets" for p, o in zip(nominal, observed, strict=True)
    ]
    plot = svg.figure(
        frame,
        svg.band(frame, grid, np.maximum(grid - noise, 0), np.minimum(grid + noise, 1), "ref"),
        svg.line(frame, [0, 1], [0, 1], "ref"),
        svg.line(frame, np.r_[0, nominal, 1], np.r_[0, observed, 1]),
        svg.scatter(frame, nominal, observed, "a solid", tips, size=3.2),
        name="Calibration: observed against nominal coverage",
        x_label="nominal coverage of central intervals",
        y_label="observed coverage",
        x_format=lambda v: f"{100 * v:g} %",
        y_format=lambda v: f"{100 * v:g} %",
    )
    rows = [[percent(p), percent(o), percent(o - p).replace("-", "−")] for p, o in zip(nominal, observed, strict=True)]
    how = (
        "On the diagonal, central intervals have their nominal coverage; below it they are too narrow, above it too "
        "wide. Grey: pointwise 90\u00a0% band of a calibrated model."
    )
    numbers = table("Coverage of central intervals", ["nominal", "observed", "observed − nominal"], rows)
    return card("Calibration", how, plot, numbers=numbers)


def _pit(results: RegressionResults) -> str:
    values = pit(results)
    edges = np.linspace(0, 1, 11)
    share = np.histogram(values, edges)[0] / len(values)
    frame = svg.Frame(0, 1, 0, 1.15 * max(float(share.max()), 0.1))
    tips = [
        f"{percent(s)} of targets lie between the {100 * a:.0f} % and the {100 * b:.0f} % quantile of their prediction"
        for s, a, b in zip(share, edges[:-1], edges[1:], strict=True)
    ]
    plot = svg.figure(
        frame,
        svg.bars(frame, edges, share, "a", tips),
        svg.line(frame, [0, 1], [0.1, 0.1], "ref"),
        name="Where the targets lie in their predicted distribution",
        x_label="predicted probability of a lower value (PIT)",
        y_label="share of rows",
        x_format=lambda v: f"{100 * v:g} %",
        y_format=lambda v: f"{100 * v:g} %",
    )
    rows = [[f"{percent(a)} – {percent(b)}", percent(s)] for s, a, b in zip(share, edges[:-1], edges[1:], strict=True)]
    how = (
        "Flat at the dashed line: calibrated. High at both ends: overconfident; high in the middle: underconfident; "
        "sloping: biased."
    )
    numbers = table("Probability integral transform, 10 bins", ["predicted probability of a lower value", "rows"], rows)
    return card("PIT histogram", how, plot, numbers=numbers)


def _residuals(results: RegressionResults) -> str:
    all_rows = np.flatnonzero(results.labelled)
    rows = all_rows[subsample(len(all_rows))]
    residual, std = results.observed[rows] - results.mean[rows], results.std[rows]
    frame = svg.Frame.around(std, residual)
    fan, low, high = _fan(results, all_rows)
    tips = [
        f"row {r + 1}: std {number(s)}, observed − predicted {number(e)}"
        for r, s, e in zip(rows.tolist(), std, residual, strict=True)
    ]
    plot = svg.figure(
        frame,
        svg.band(frame, fan, low.clip(frame.y_low, frame.y_high), high.clip(frame.y_low, frame.y_high), "a"),
        svg.line(frame, [frame.x_low, frame.x_high], [0, 0], "ref"),
        svg.scatter(frame, std, residual, "a", tips),
        name="Residual against predicted standard deviation",
        x_label="predicted std (in the target's unit)",
        y_label="observed − predicted",
    )
    all_residual = results.observed[all_rows] - results.mean[all_rows]
    all_std = results.std[all_rows]
    cells = []
    for i, part in enumerate(_groups(all_std, 5)):
        said, found = float(np.sqrt(np.mean(all_std[part] ** 2))), float(np.sqrt(np.mean(all_residual[part] ** 2)))
        ratio = number(found / said, 3) if said > 0 else "–"
        cells.append([str(i + 1), count(len(part)), number(said), number(found), ratio])
    numbers = table(
        "Rows in groups by predicted std, smallest first",
        ["group", "rows", "predicted std (root mean square)", "RMSE", "RMSE / std"],
        cells,
    )
    how = (
        f"Residuals should grow with the predicted std. Shaded: the mean {_level(results)} interval of rows with such "
        "a std; it should contain that share of the residuals."
    )
    return card("Residuals against predicted std", how, plot, numbers=numbers)


def _fan(results: RegressionResults, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standard deviations, ascending, and the mean ends of such rows' intervals about their prediction."""
    groups = [rows[part] for part in _groups(results.std[rows], FAN)]
    about = results.lower - results.mean, results.upper - results.mean
    every = (results.std, *about)
    std, low, high = (np.array([float(np.mean(values[part], dtype=float)) for part in groups]) for values in every)
    ends = [float(results.std[rows].min()), float(results.std[rows].max())]
    return np.r_[ends[0], std, ends[1]], np.r_[low[0], low, low[-1]], np.r_[high[0], high, high[-1]]


def _out_of_domain(results: RegressionResults, scores: dict[str, float], field: str) -> str:
    assert results.ood is not None
    known, foreign = getattr(results, field), getattr(results.ood, field)
    edges = histogram_edges(known, foreign)
    shares = [np.histogram(values, edges)[0] / len(values) for values in (known, foreign)]
    frame = svg.Frame(0, float(edges[-1]), 0, 1.05 * max(float(share.max()) for share in shares))
    names = ("in-domain", "OOD")
    what = "epistemic std" if field == "epistemic_std" else "total std"
    marks = [
        svg.bars(frame, edges, share, kind, [
            f"{name}: {percent(s)} of rows have {what} {number(a)} to {number(b)}"
            for s, a, b in zip(share, edges[:-1], edges[1:], strict=True)
        ])
        for kind, name, share in zip("ab", names, shares, strict=True)
    ]  # fmt: skip
    plot = svg.figure(
        frame,
        *marks,
        name=f"{what}, in-domain and OOD",
        x_label=f"{what} (in the target's unit)",
        y_label="share of rows",
        y_format=lambda v: f"{100 * v:g} %",
    )
    auroc = scores["ood_auroc_epistemic" if field == "epistemic_std" else "ood_auroc"]
    how = f"OOD rows should have a larger {what}: AUROC {number(auroc)} (1 is perfect, 0.5 is chance)."
    numbers = table(f"{what.capitalize()}, all rows", [what, *names], quantile_rows([known, foreign]))
    title = f"{what[0].upper()}{what[1:]}, in-domain and OOD"
    return card(title, how, plot, key=legend(("a bar", names[0]), ("b bar", names[1])), numbers=numbers)


def _cells(values: np.ndarray) -> Cell:
    return lambda row: number(float(values[row]))


def _row(results: RegressionResults) -> dict[str, Cell]:
    """What a row of predictions says."""
    fields = {"predicted": results.mean, "total std": results.std, "aleatoric std": results.aleatoric_std}
    fields |= {"epistemic std": results.epistemic_std, f"{_level(results)} from": results.lower, "to": results.upper}
    if results.y is not None:
        fields["observed"] = results.y
    return {name: _cells(values) for name, values in fields.items()}


PAGE = Page(
    sections=sections,
    notes=notes,
    observed="observed targets",
    needing_targets="likelihood, errors, CRPS, coverage, calibration and residuals",
    drawn=f" ({INTERVALS} in the plot of intervals)",
    verdict=verdict,
    baseline="a constant prediction, a normal with mean and std of the targets of this page",
)
