"""All rows that are there → one HTML page: tables beside the published figures, curves, failures."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bedl._utils.io import Row, check_writable, write_atomically
from bedl.bench.benchmark import PRESETS, BenchError, ResultRow, ResultTable, Table, best_of, sheets, shown
from bedl.bench.runner import row_file
from bedl.bench.tables import get, names
from bedl.evaluation.report import svg
from bedl.evaluation.report.layout import card, count, data, legend, number, table, text
from bedl.evaluation.report.page import document


def write_page(results: str | os.PathLike[str], path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """One page of all tables of which there are rows, whole or not at all.

    Args:
        results: the folder of the rows, ``<table>.jsonl``.
        path: where the page goes.
        overwrite: whether a file there may be replaced.
    """
    target = Path(path)
    check_writable(target, overwrite)
    found = {name: row_file(Path(results, f"{name}.jsonl")).rows() for name in names()}
    if not any(found.values()):
        raise BenchError(f"there are no rows in {results}: run a table first, such as 'bedl bench uci'")
    write_atomically(target, render(found).encode("utf-8"), overwrite)
    return target


def render(found: dict[str, list[Row]]) -> str:
    """The page, as HTML.

    Args:
        found: rows by the name of their table.
    """
    there = {name: rows for name, rows in found.items() if rows}
    rows = [row for rows in there.values() for row in rows]
    failed = sum(bool(row["failed"]) for row in rows)
    facts = {"tables": ", ".join(there), "cells": count(len(rows)), "failed": count(failed)}
    about = "".join(f"<div><dt>{text(k)}</dt><dd>{data(v, 200)}</dd></div>" for k, v in facts.items())
    sections = "".join(_sections(get(name), own) for name, own in there.items())
    main = f'<div class="cards" id="content" tabindex="-1">{sections}</div>'
    return document("Benches: ours beside the published figures", about, main)


def _sections(bench: Table, rows: Sequence[Row]) -> str:
    good = [row for row in rows if not row["failed"]]
    parts = [_sheet(bench, sheet) for sheet in sheets(bench, good)]
    return "".join([*parts, *bench.sections(good), _how(bench, rows)])


def _sheet(bench: Table, sheet: ResultTable) -> str:
    """A sheet as a table; the best of ours in each column is bold."""
    title, best = f"{text(bench.title)}: {text(sheet.title)}", best_of(sheet)
    rows = []
    for line in sheet.lines:
        label = f"{data(line.label, 60)} <small>{data(line.source, 20)}</small>"
        rows.append([label, *(_entry(line, sheet, i, line in best[i]) for i in range(len(sheet.head)))])
    grid = table(f"{title}, {count(len(rows))} lines", ["method", *(data(name, 60) for name in sheet.head)], rows)
    notes = dict.fromkeys(
        f"<li>{data(line.label, 60)}: {data(line.note, 200)}</li>" for line in sheet.lines if line.note
    )
    below = f"<details><summary>Published where</summary><ul>{''.join(notes)}</ul></details>" if notes else ""
    how = f'<p class="how">{text(bench.about, 600)}</p>'
    return f'<section class="card wide"><h2>{title}</h2>{how}{grid}{below}</section>'


def _entry(line: ResultRow, sheet: ResultTable, number: int, best: bool) -> str:
    figure = text(shown(line.entries[number], sheet.columns[number]))
    if line.source not in PRESETS:
        return f"<small>{figure}</small>"
    return f"<strong>{figure}</strong>" if best else figure


def _how(bench: Table, rows: Sequence[Row]) -> str:
    """With which settings, where they are not the preset's, and what failed."""
    kinds: dict[tuple[str, str, str], None] = {}
    for row in rows:
        for sentence in row["settings"].get("deviations", ()):
            kinds[row["method"], row["preset"], sentence] = None
    deviations = "".join(f"<li>{data(m, 60)} <small>{data(p, 20)}</small>: {data(s, 300)}</li>" for m, p, s in kinds)
    failures = "".join(
        f"<li>{data(row['dataset'], 40)} {data(row['method'], 40)} {data(row['preset'], 20)}, split "
        f"{data(row['split'], 10)}: {data(row['failed'], 300)}</li>"
        for row in rows
        if row["failed"]
    )
    parts = [
        f"<details><summary>{title}</summary><ul>{items}</ul></details>"
        for title, items in (("Deviations from the preset", deviations), ("What failed", failures))
        if items
    ]
    if not parts:
        return ""
    return f'<section class="card wide"><h2>{text(bench.title)}: how it was run</h2>{"".join(parts)}</section>'


# Plots of the benches' page, from the curves that rows hold.


Curves = Mapping[str, Sequence[float]]


def sweep_cards(title: str, curves: Sequence[Curves]) -> list[str]:
    """Data and epistemic part against the rows learned from, and against the noise, on logarithmic axes.

    Args:
        title: plain text.
        curves: of each split: ``rows``, ``noise``, and ``<part>_by_rows``, ``<part>_by_noise``.
    """
    return [_sweep_card(title, curves, *words) for words in _SWEPT]


def _sweep_card(title: str, curves: Sequence[Curves], what: str, label: str, wanted: str) -> str:
    """One of the two; nothing where some value is missing."""
    at = np.asarray(curves[0][what], dtype=float)
    means = {part: np.mean([_numbers(one[f"{part}_by_{what}"]) for one in curves], 0) for part in _SHOWN}
    if not np.isfinite(list(means.values())).all():
        return ""
    rows = [[number(float(x)), *(number(float(means[part][i])) for part in _SHOWN)] for i, x in enumerate(at)]
    draws = "One draw" if len(curves) == 1 else f"Means of {count(len(curves))} draws"
    return card(
        data(f"{title}, by {what}", 80),
        f"{draws} of the data. {wanted}",
        _log_lines(at, means, label, title),
        key=legend(("line a", "data"), ("line b", "epistemic")),
        numbers=table("Means of the parts", [label, *_SHOWN], rows),
    )


_SWEPT = (
    ("rows", "rows learned from", "Epistemic should fall, data should stay."),
    ("noise", "strength of the noise", "Data should rise, epistemic should stay."),
)
_SHOWN = ("data", "epistemic")


def _log_lines(at: np.ndarray, means: Mapping[str, np.ndarray], label: str, title: str) -> str:
    places = np.arange(len(at), dtype=float)  # each step of a sweep is a factor; a noise of 0 has no logarithm
    logs = {part: np.log10(np.maximum(values, 1e-12)) for part, values in means.items()}
    every = np.concatenate(list(logs.values()))
    room = 0.05 * (float(np.ptp(every)) or 1.0)
    frame = svg.Frame(0, len(at) - 1, float(every.min()) - room, float(every.max()) + room)
    marks = []
    for kind, (part, values) in zip("ab", logs.items(), strict=True):
        tips = [f"{part} at {number(float(x))}: {number(float(v))}" for x, v in zip(at, means[part], strict=True)]
        marks += [svg.line(frame, places, values, kind), svg.scatter(frame, places, values, f"{kind} solid", tips, 3.2)]
    powers = range(int(np.floor(frame.y_low)), int(np.ceil(frame.y_high)) + 1)
    ticks = [float(power) for power in powers if frame.y_low <= power <= frame.y_high] or None
    return svg.figure(
        frame, *marks, name=f"{title}: parts of the uncertainty by {label}", x_label=label, y_label="part",
        x_ticks=places.tolist(), x_format=lambda place: number(float(at[round(place)]), 3), y_ticks=ticks,
        y_format=lambda power: number(10.0**power, 2),
    )  # fmt: skip


def parts_card(title: str, how: str, curves: Curves, x_label: str, y_label: str) -> str:
    """The parts of the uncertainty along a line, on top of each other; nothing where some value is missing.

    Args:
        title, how: plain text.
        curves: ``x``, and the parts ``data``, ``distributional`` and ``model`` at each x, in units that add up.
        x_label, y_label: plain text.
    """
    x = np.asarray(curves["x"], dtype=float)
    parts = {name: _numbers(curves[name]) for name in ("data", "distributional", "model")}
    if not np.isfinite(list(parts.values())).all():
        return ""
    middles = (x[1:] + x[:-1]) / 2
    edges = np.concatenate([[2 * x[0] - middles[0]], middles, [2 * x[-1] - middles[-1]]])
    top = float(np.sum(list(parts.values()), axis=0).max())
    frame = svg.Frame(float(edges[0]), float(edges[-1]), 0.0, 1.05 * top if top > 0 else 1.0)
    tips = [
        f"{x_label} {number(float(x[i]), 3)}: "
        + ", ".join(f"{name} {number(float(v[i]), 3)}" for name, v in parts.items())
        for i in range(len(x))
    ]
    base, marks = np.zeros_like(x), []
    for (kind, _), values in zip(_KINDS, parts.values(), strict=True):
        marks.append(svg.bars(frame, edges, values, kind, tips, base=base))
        base = base + values
    plot = svg.figure(frame, *marks, name=title, x_label=x_label, y_label=y_label)
    return card(data(title, 80), data(how, 400), plot, key=legend(*((f"bar {kind}", said) for kind, said in _KINDS)))


def ecdf_card(title: str, curves: Curves) -> str:
    """Distribution functions of the entropies of in-domain and of OOD images.

    Args:
        title: plain text.
        curves: ``known`` and ``foreign``, entropies at evenly spaced shares from 0 to 1.
    """
    found = {name: _numbers(curves[name]) for name in ("known", "foreign") if name in curves}
    frame = svg.Frame(0.0, max(1e-3, *(float(values[-1]) for values in found.values())), 0.0, 1.0)
    marks = [
        svg.line(frame, values, np.linspace(0, 1, len(values)), kind)
        for kind, values in zip("ab", found.values(), strict=False)
    ]
    plot = svg.figure(frame, *marks, name=title, x_label="entropy, nats", y_label="share of images below")
    how = "Known images should rise at the left, foreign ones at the right."
    return card(data(title, 80), how, plot, key=legend(("line a", "known"), ("line b", "foreign")))


def strength_card(title: str, curves: Curves) -> str:
    """Accuracy, and entropy as a share of its greatest value, against the strength of an attack.

    Args:
        title: plain text.
        curves: ``strength``, ``accuracy`` and ``entropy``, the latter in shares of log C.
    """
    at = np.asarray(curves["strength"], dtype=float)
    frame = svg.Frame(float(at[0]), float(at[-1]), 0.0, 1.0)
    marks, rows = [], []
    for kind, name in zip("ab", ("accuracy", "entropy"), strict=True):
        values = _numbers(curves[name])
        tips = [f"{name} at {number(float(x))}: {number(float(v), 3)}" for x, v in zip(at, values, strict=True)]
        marks += [svg.line(frame, at, values, kind), svg.scatter(frame, at, values, f"{kind} solid", tips, 3.2)]
    for i, x in enumerate(at):
        rows.append([number(float(x)), *(number(float(_numbers(curves[n])[i]), 3) for n in ("accuracy", "entropy"))])
    plot = svg.figure(frame, *marks, name=title, x_label="strength of FGSM", y_label="share")
    return card(
        data(title, 80),
        "Where accuracy falls, entropy should rise: a network that is wrong should not be sure.",
        plot,
        key=legend(("line a", "accuracy"), ("line b", "entropy / log C")),
        numbers=table("Against the strength", ["strength", "accuracy", "entropy"], rows),
    )


_KINDS = (("noise", "data: noise"), ("evidence", "distributional: little evidence"), ("network", "model: the network"))


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    return np.asarray([np.nan if value is None else value for value in values], dtype=float)
