"""Sections that pages of several tasks share: uncertainty components, columns, comparison, training, maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from bedl.evaluation.report import layout, svg
from bedl.evaluation.report.layout import (
    card,
    count,
    data,
    legend,
    number,
    percent,
    quantile_rows,
    shorten,
    table,
    text,
)
from bedl.evaluation.tasks import ColumnSummary, Maps, Results, Slice, meanings

BARS = 48  # in all
GAP = 0.06  # between the two sets of rows, of the width of one
THREE = (
    ("noise", "data", "data: noise, not explained by this model"),
    ("evidence", "distributional", "distributional: lack of evidence"),
    ("network", "model", "model: uncertain weights"),
)
TWO = (
    ("noise", "aleatoric", "aleatoric: not explained by this model"),
    ("evidence", "epistemic", "epistemic: reducible"),
)


class KindWords(NamedTuple):
    """What a task calls its uncertainty."""

    total: str  # the field of the record
    quantity: str  # what it is
    unit: str
    squared: bool  # whether squares of the parts add up, not the parts themselves


def domains(results: Any) -> list[tuple[str, str, Any]]:
    """The sets of rows that there are: (kind of the mark, name, results)."""
    return [("a", "in-domain", results)] + ([("b", "OOD", results.ood)] if results.ood is not None else [])


def _told_apart(results: Any) -> tuple[tuple[str, str, str], ...]:
    """The components that every set of rows has: three of them, or two."""
    return THREE if all(part.parts for _, _, part in domains(results)) else TWO


def _values(part: Any, named: tuple[tuple[str, str, str], ...], words: KindWords) -> list[np.ndarray]:
    """The parts of one set of rows. shapes: (n,)"""
    return [np.asarray(getattr(part, f"{name}_{words.quantity}"), float) for _, name, _ in named]


def _shares(values: list[np.ndarray], squared: bool) -> np.ndarray:
    """Of how much of the total each part is. shape: (parts, n)"""
    stacked = np.maximum(np.stack(values), 0.0) ** (2 if squared else 1)  # rounding may leave less than 0
    total = stacked.sum(0)
    return stacked / np.where(total > 0, total, 1.0)


def said_of_parts(results: Any, words: KindWords) -> str:
    """One sentence: the share of each component in all uncertainty."""
    values = _values(results, THREE if results.parts else TWO, words)
    sizes = [float((np.maximum(v, 0.0) ** (2 if words.squared else 1)).sum()) for v in values]
    if not sum(sizes):
        return "No row has any uncertainty."
    names = ("data (noise)", "distributional", "model") if len(sizes) == 3 else ("aleatoric", "epistemic")
    said = [f"{percent(size / sum(sizes), 0)} {name}" for size, name in zip(sizes, names, strict=True)]
    return f"Uncertainty components: {', '.join(said)}."


def kinds(results: Results, words: KindWords) -> str:
    """A card with the stacked view, and the quantiles of the parts."""
    sets, named = domains(results), _told_apart(results)
    top = max(float(np.max(getattr(part, words.total))) for _, _, part in sets)
    frame = svg.Frame(0, len(sets) + (len(sets) - 1) * GAP, 0, 1.05 * top if top > 0 else 1.0)
    marks: list[str] = []
    for i, (_, name, part) in enumerate(sets):
        marks += _stack(frame, part, name, words, i * (1 + GAP), BARS // len(sets), named)
    starts = [i * (1 + GAP) for i in range(len(sets))]
    plot = svg.figure(
        frame,
        *marks,
        name=f"{words.quantity.capitalize()} of the rows, from the most certain to the least, by component",
        x_label="rows, the most certain to the left",
        y_label=f"{words.quantity}, {words.unit}",
        x_ticks=[start + 0.5 for start in starts],
        x_format=lambda at: sets[int(at)][1] if len(sets) > 1 else "all rows",
    )
    head, columns = [words.quantity], []
    for _, name, part in sets:
        head += [f"{kind}, {name}" for _, kind, _ in named] + [f"total, {name}"]
        columns += [*_values(part, named, words), getattr(part, words.total)]
    numbers = table(f"{words.quantity.capitalize()} {words.unit}, all rows", head, quantile_rows(columns))
    how = f"A bar is a group of rows, its height their mean {words.quantity}, its colours the components"
    how += ", in proportion to their variances." if words.squared else "."
    key = legend(*((f"bar {kind}", said) for kind, _, said in named))
    return card("Uncertainty components", how, plot, key=key, numbers=numbers)


def _stack(
    frame: svg.Frame,
    part: Any,
    name: str,
    words: KindWords,
    start: float,
    bars: int,
    named: tuple[tuple[str, str, str], ...],
) -> list[str]:
    """The bars of one set of rows, a layer for each part."""
    total = np.asarray(getattr(part, words.total), float)
    shares = _shares(_values(part, named, words), words.squared)
    groups = [group for group in np.array_split(np.argsort(total, kind="stable"), min(bars, len(total))) if len(group)]
    edges = start + np.linspace(0, 1, len(groups) + 1)
    height = np.array([total[group].mean() for group in groups])
    layers = np.stack([(shares[:, group] * total[group]).mean(1) for group in groups], 1)  # shape: (parts, groups)
    begins = np.cumsum([0, *map(len, groups[:-1])]) / len(total)
    tips = [
        f"{name}, {percent(begin, 0)} to {percent(begin + len(group) / len(total), 0)} of the rows: "
        f"{words.quantity} {number(h, 3)}, of it "
        + ", ".join(f"{kind} {percent(v / h if h else 0.0, 0)}" for (_, kind, _), v in zip(named, column, strict=True))
        for begin, group, h, column in zip(begins, groups, height, layers.T, strict=True)
    ]
    base, drawn = np.zeros(len(groups)), []
    for (kind, _, _), layer in zip(named, layers, strict=True):
        drawn.append(svg.bars(frame, edges, layer, kind, tips, base=base))
        base = base + layer
    return drawn


# A section that compares methods: a line each, the best first.


CONSTANT = "constant baseline"
SHOWN = ("nll", "rmse", "accuracy", "coverage", "calibration_error", "ece", "ood_auroc")
TIMES = {"fit_seconds": "fit, s", "predict_seconds": "1,000 rows, s"}


def comparison_table(comparison: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, list[tuple[str, str]]]]]:
    """Heads of columns, and for each method its name and in each column a number and its standard error, as texts.

    Args:
        comparison: as for `comparison_section`.
    """
    summary, known = comparison["summary"], meanings()
    shown = [name for name in SHOWN if any(name in row for row in summary)]
    names = [*shown, *TIMES]
    if any("difference" in row for row in summary):
        names.insert(1, "difference")
    labels = {"difference": "NLL − best", **TIMES}
    head = ["method", *(labels.get(name) or known[name].label for name in names)]
    rows = [(row["method"], [_cell(row, name) for name in names]) for row in summary]
    if constant := comparison.get("constant"):
        rows.append((CONSTANT, [("", "") if name in labels else _cell(constant, name) for name in names]))
    return head, rows


def comparison_section(comparison: Mapping[str, Any]) -> str:
    """The comparison as a section of a page.

    Args:
        comparison: ``summary``, a row per method as `bedl.compare` has them, ``constant``, ``refused``.
    """
    summary, (head, methods) = comparison["summary"], comparison_table(comparison)
    rows = [[data(name, 40), *(f"{shown} <small>± {error}</small>" if error else shown for shown, error in cells)]
            for name, cells in methods]  # fmt: skip
    splits = max((row["splits"] for row in summary), default=0)
    how = (
        f"All methods were trained on the same {splits} splits; ± is the standard error of the mean. The best "
        "by negative log-likelihood comes first; this page shows its predictions."
    )
    if comparison.get("tied"):
        how += f" Tied with it, within a standard error of the difference: {data(', '.join(comparison['tied']), 200)}."
    notes = [
        f"<li>{data(row['method'], 40)} failed: {data(row['error'], 200)}</li>" for row in summary if "error" in row
    ]
    notes += [f"<li>{data(why, 300)}</li>" for why in comparison.get("refused", {}).values()]
    below = f"<details><summary>Not in the table</summary><ul>{''.join(notes)}</ul></details>" if notes else ""
    caption = f"{len(summary)} methods"
    return (
        f'<section class="card wide"><h2>Methods compared</h2><p class="how">{how}</p>'
        f"{table(caption, head, rows)}{below}</section>"
    )


def _cell(row: Mapping[str, Any], name: str) -> tuple[str, str]:
    value = row.get(name)
    if value is None or not math.isfinite(value):
        return "–", ""
    share = name in meanings() and meanings()[name].share
    shown = percent(value) if share else number(value, 3)
    error = row.get(f"{name}_se")
    if not error or name in TIMES:
        return shown, ""
    return shown, percent(error) if share else number(error, 2)


# A section on the training: what was chosen, the loss, the settings.


def learning_section(training: Mapping[str, Any]) -> str:
    """The section, or nothing where nothing is known.

    Args:
        training: ``chosen``, a sentence; ``loss``, of each epoch on points learned from; ``val_nll``, of each epoch on
            points held out, if some were; ``settings``, by name.
    """
    loss = np.asarray(training.get("loss", ()), dtype=np.float64)
    if not training or not np.isfinite(loss).all():
        return ""
    how = data(str(training.get("chosen", "")), 300)
    plot = _curve(loss, np.asarray(training.get("val_nll", ()), dtype=np.float64)) if len(loss) > 1 else ""
    rows = [[data(str(name), 40), data(str(value), 120)] for name, value in training.get("settings", {}).items()]
    numbers = table("Settings of the fit", ["setting", "value"], rows) if rows else ""
    return card("Training", how, plot, numbers=numbers, wide=True)


def _curve(loss: np.ndarray, held_out: np.ndarray) -> str:
    """The mean loss of the members after each epoch, and that of points held out."""
    held_out = held_out if len(held_out) == len(loss) and np.isfinite(held_out).all() else np.empty(0)
    both = np.concatenate([loss, held_out])
    # the first epochs would flatten all others
    high = float(max(np.quantile(both, 0.95), both[-1]))
    low = float(both.min())
    room = 0.05 * (high - low or 1.0)
    frame = svg.Frame(1, len(loss), low - room, high + room)
    epochs = np.arange(1, len(loss) + 1)
    marks = [svg.line(frame, epochs, loss.clip(max=high))]
    if len(held_out):
        marks.append(svg.line(frame, epochs, held_out.clip(max=high), "b"))
    at = np.unique(np.linspace(0, len(loss) - 1, 12).astype(int))
    tips = [f"epoch {count(epochs[i])}: loss {number(loss[i])}" for i in at]
    marks.append(svg.scatter(frame, epochs[at], loss[at].clip(max=high), "a solid", tips, size=3.2))
    return svg.figure(
        frame, *marks, name="Loss after each epoch of training", x_label="epoch", y_label="loss",
    )  # fmt: skip


# Images beside what was predicted for them, and the three parts of the uncertainty as maps.


SIZE = 128  # of a map on the page
# from none to much, as bright as it is large on any screen: dark blue, violet, orange, pale yellow
RAMP = np.array([[12, 16, 60], [88, 28, 120], [186, 60, 90], [246, 140, 40], [252, 240, 160]], float)
# told apart by those who see no red or green, too (Okabe and Ito)
CLASSES = np.array(
    [[40, 44, 52], [230, 159, 0], [86, 180, 233], [0, 158, 115], [240, 228, 66], [0, 114, 178], [213, 94, 0],
     [204, 121, 167], [160, 160, 160], [120, 80, 40]], np.uint8,
)  # fmt: skip
UNKNOWN = np.array([255, 255, 255], np.uint8)


def maps_section(maps: Maps | None) -> str:
    """A card with a line for each image; nothing where there are none."""
    if maps is None or not len(maps.predicted):
        return ""
    largest = {name: float(part.max()) or 1.0 for name, part in maps.parts.items()}
    heads = ["", "image", *(["true"] if maps.observed is not None else []), "predicted"]
    heads += [f"{text(name)}<br><small>0 – {number(most, 2)}</small>" for name, most in largest.items()]
    lines = "".join(_line(maps, i, largest) for i in range(len(maps.predicted)))
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    said = {name: why for _, name, why in THREE}
    how = "; ".join(f"<b>{text(name)}</b>: {text(said[name])}" for name in maps.parts if name in said)
    return (
        f'<section class="card wide"><h2>Images and maps of their uncertainty</h2><p class="how">The images with the '
        f"largest mean uncertainty, the most uncertain first. {how}.</p>{_legend(maps)}"
        f'<div class="scroll" tabindex="0" role="region" aria-label="maps"><table class="maps">'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div></section>"
    )


def _line(maps: Maps, i: int, largest: dict[str, float]) -> str:
    row = int(maps.index[i]) if len(maps.index) else i
    cells = [_picture(maps.images[i], f"image {row + 1}")]
    shown = [("true", maps.observed)] if maps.observed is not None else []
    for name, values in [*shown, ("predicted", maps.predicted)]:
        cells.append(_picture(_drawn(maps, values[i]), f"{name}, image {row + 1}"))
    for name, part in maps.parts.items():
        said = f"{name}, image {row + 1}: mean {number(float(part[i].mean()), 3)} {maps.unit}"
        cells.append(_picture(ramp(part[i] / largest[name]), said))
    return f'<tr><th scope="row">{count(row + 1)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _picture(image: np.ndarray, alt: str) -> str:
    return f'<img src="{layout.data_uri(image)}" alt="{text(alt)}" title="{text(alt)}" width="{SIZE}" height="{SIZE}">'


def _drawn(maps: Maps, values: np.ndarray) -> np.ndarray:
    """Classes in their colours, values as shades of what all maps have. shape: (H, W) -> (3, H, W)"""
    if maps.names is None:
        low, high = float(np.min(maps.predicted)), float(np.max(maps.predicted))
        return ramp((values - low) / ((high - low) or 1.0))
    colours = np.where((values < 0)[..., None], UNKNOWN, CLASSES[values.astype(int) % len(CLASSES)])
    return np.moveaxis(colours, -1, 0)


def ramp(share: np.ndarray) -> np.ndarray:
    """Numbers from 0 to 1 as colours. shape: (H, W) -> (3, H, W), uint8

    >>> ramp(np.array([[0.0, 1.0]]))[:, 0].T.tolist()
    [[12, 16, 60], [252, 240, 160]]
    """
    at = np.clip(np.nan_to_num(share), 0, 1) * (len(RAMP) - 1)
    channels = [np.interp(at, np.arange(len(RAMP)), RAMP[:, c]) for c in range(3)]
    return np.stack(channels).round().astype(np.uint8)


def _legend(maps: Maps) -> str:
    strip = (
        f'<img src="{layout.data_uri(ramp(np.linspace(0, 1, 96)[None].repeat(8, 0)))}" alt="" width="96" height="10">'
    )
    items = [f"<li>uncertainty, {text(maps.unit)}: none {strip} the most in its column</li>"]
    for i, name in enumerate(maps.names or ()):
        square = _square(CLASSES[i % len(CLASSES)])
        items.append(f'<li><img src="{square}" alt="" width="12" height="12">{data(name, 30)}</li>')
    if maps.names is not None and maps.observed is not None and (maps.observed < 0).any():
        items.append(f'<li><img src="{_square(UNKNOWN)}" alt="" width="12" height="12">not labelled</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _square(colour: np.ndarray) -> str:
    return layout.data_uri(colour[:, None, None].repeat(2, 1).repeat(2, 2))


# Sections on the columns of a table: importance and drift, and coverage or accuracy by slice.


IMPORTANCES = 10  # columns that are drawn
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
    shown = [c for c in columns if math.isfinite(c.importance)][:IMPORTANCES]
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
