"""The figures of docs/results.md, drawn from the rows in results/.

python -m tools.figures.results
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from bedl.bench import sheets
from bedl.bench.runner import row_file
from bedl.bench.tables import get

ROOT = Path(__file__).parents[2]
INK, PALE, OURS, OTHER, THIRD = "#1c1c1e", "#d0d0d5", "#0b5cad", "#c4540a", "#1b6e3c"
WIDTH, HEIGHT, GAP = 210, 150, 46  # of a panel
SETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine")
LINES = (  # method, preset of ours, or None: published; text; colour; filled
    ("auto", "best", "bedl (default)", OURS, True),
    ("bedl+reg", "paper", "BEDL+Reg, ours", OURS, False),
    ("BEDL+Reg", None, "BEDL+Reg, published", OTHER, False),
    ("DVI", None, "DVI, published", INK, False),
    ("Sparse GP", None, "sparse GP, published", THIRD, False),
)


def uci() -> str:
    """A panel for each data set: a line for each method, its mean and twice its standard error to both sides."""
    rows = row_file(ROOT / "results" / "uci.jsonl").rows()
    sheet = next(sheet for sheet in sheets(get("uci"), rows) if sheet.title == "log-likelihood")
    panels = []
    for number, name in enumerate(SETS):
        column, found = sheet.head.index(name), []
        for place, (label, preset, text, colour, filled) in enumerate(LINES):
            own = next((line for line in sheet.lines if line.label == label and preset in (None, line.source)), None)
            entry = None if own is None else own.entries[column]
            if entry is not None:
                found.append((place, text, entry.mean, 2 * (entry.error or 0.0), colour, filled))
        panels.append(_placed(number, 4, _dots(name, found)))
    return _picture(panels, 4, [(text, colour, filled) for *_, text, colour, filled in LINES])


def _dots(title: str, found: list[tuple[int, str, float, float, str, bool]]) -> str:
    ends = [mean + side * reach for _, _, mean, reach, *_ in found for side in (-1, 1)]
    low, high = min(ends), max(ends)
    room = 0.06 * (high - low)
    across = _scale(low - room, high + room, 0, WIDTH)
    marks = [_axis(title, low - room, high + room, across)]
    for place, text, mean, reach, colour, filled in found:
        y, x = 16 + place * (HEIGHT - 24) / (len(LINES) - 1), across(mean)
        marks.append(
            f'<line x1="{across(mean - reach):.1f}" x2="{across(mean + reach):.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{colour}" stroke-width="2"/><circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" stroke="{colour}" '
            f'stroke-width="2" fill="{colour if filled else "#ffffff"}"><title>{escape(text)}: {mean:.2f}</title>'
            "</circle>"
        )
    return "".join(marks)


def labelling() -> str:
    """RMSE against the number of labels, both policies, with twice the standard error of their paired difference."""
    found: dict[tuple[str, str], dict[int, Any]] = defaultdict(dict)
    for text in (ROOT / "results" / "active.jsonl").read_text("utf-8").splitlines():
        row = json.loads(text)
        found[row["dataset"], row["method"]][row["split"]] = [row["metrics"][f"rmse_{k}"] for k in range(6)]
    panels = []
    for number, name in enumerate(("energy", "power", "concrete", "kin8nm")):
        both = [np.array([found[name, policy][k] for k in sorted(found[name, policy])]) for policy in POLICIES]
        panels.append(_placed(number, 4, _curves(name, both)))
    return _picture(panels, 4, [(text, colour, True) for text, colour in POLICIES.values()])


POLICIES = {"random": ("at random", OTHER), "epistemic": ("rows_to_label", OURS)}


def _curves(title: str, both: list[np.ndarray]) -> str:
    labels = 20 * np.arange(1, 7)
    means = [runs.mean(0) for runs in both]
    error = 2 * (both[0] - both[1]).std(0, ddof=1) / math.sqrt(len(both[0]))
    low, high = float(min(m.min() for m in means)), float(max(m.max() for m in means))
    across, up = _scale(20, 120, 0, WIDTH), _scale(low, high, HEIGHT - 6, 8)
    marks = [_axis(f"{title}, RMSE", 20, 120, across, "labels")]
    for value in _ticks(low, high, 3):
        marks.append(
            f'<line x1="0" x2="{WIDTH}" y1="{up(value):.1f}" y2="{up(value):.1f}" stroke="{PALE}"/>'
            f'<text x="{WIDTH - 2}" y="{up(value) - 3:.1f}" text-anchor="end" fill="#6b6b70" '
            f'style="paint-order:stroke" stroke="#ffffff" stroke-width="3">{_short(value)}</text>'
        )
    band = [(x, m + e) for x, m, e in zip(labels, means[1], error, strict=True)]
    band += [(x, m - e) for x, m, e in reversed(list(zip(labels, means[1], error, strict=True)))]
    points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in band)
    marks.append(f'<polygon points="{points}" fill="{OURS}" opacity="0.15"/>')
    for mean, (_, colour) in zip(means, POLICIES.values(), strict=True):
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in zip(labels, mean, strict=True))
        marks.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return "".join(marks)


def entropies() -> str:
    """distribution functions of the entropies of in-domain and of OOD images, a panel for each method."""
    panels = []
    for number, (title, curves) in enumerate(_shown("ood", IMAGES)):
        share = np.linspace(0, 1, len(curves["known"]))
        lines = [(np.asarray(curves[kind]), share, colour) for kind, (_, colour) in KINDS.items()]
        panels.append(_placed(number, 4, _lines(title, lines, (0, math.log(10)), "entropy, nats")))
    return _picture(panels, 4, [(text, colour, True) for text, colour in KINDS.values()])


def attacked() -> str:
    """Accuracy and entropy against the strength of an attack, a panel for each method."""
    panels = []
    for number, (title, curves) in enumerate(_shown("adversarial", IMAGES)):
        at = np.asarray(curves["strength"])
        lines = [(at, np.asarray(curves[kind]), colour) for kind, (_, colour) in SHARES.items()]
        panels.append(_placed(number, 4, _lines(title, lines, (0, float(at[-1])), "strength")))
    return _picture(panels, 4, [(text, colour, True) for text, colour in SHARES.values()])


KINDS = {"known": ("digits", OURS), "foreign": ("Fashion-MNIST", OTHER)}
SHARES = {
    "accuracy": ("accuracy", OURS), "entropy": ("entropy / log 10", OTHER), "sure_and_wrong": ("sure and wrong", INK),
}  # fmt: skip
IMAGES = {
    ("auto", "best"): "bedl (default)", ("bedl+reg", "paper"): "BEDL+Reg, paper", ("bedl", "paper"): "BEDL, paper",
    ("edl", "best"): "EDL", ("mc-dropout", "best"): "MC Dropout", ("dvi", "paper"): "DVI",
    ("prior-network", "paper"): "prior network", ("deterministic", "best"): "deterministic",
}  # fmt: skip


def _shown(table: str, wanted: dict[tuple[str, str], str]) -> list[tuple[str, dict[str, list[float]]]]:
    """Titles and curves of MNIST's rows, in the order of `wanted`."""
    rows = row_file(ROOT / "results" / f"{table}.jsonl").rows()
    found = {(row["method"], row["preset"]): row["curves"] for row in rows if row["dataset"] == "mnist"}
    return [(title, found[key]) for key, title in wanted.items() if key in found]


def _lines(
    title: str, lines: list[tuple[np.ndarray, np.ndarray, str]], ends: tuple[float, float], label: str
) -> str:  # fmt: skip
    """Shares, from 0 to 1, in a panel. lines: x, share, colour"""
    across, up = _scale(*ends, 0, WIDTH), _scale(0, 1, HEIGHT - 2, 4)
    marks = [_axis(title, *ends, across, label)]
    for share in (0.0, 0.5, 1.0):
        marks.append(f'<line x1="0" x2="{WIDTH}" y1="{up(share):.1f}" y2="{up(share):.1f}" stroke="{PALE}"/>')
    for x, shares, colour in lines:
        points = " ".join(f"{across(a):.1f},{up(b):.1f}" for a, b in zip(x, shares, strict=True))
        marks.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return "".join(marks)


# -- drawing -----------------------------------------------------------------------------------------
def _scale(low: float, high: float, start: float, stop: float) -> Any:
    return lambda value: start + (value - low) / ((high - low) or 1.0) * (stop - start)


def _ticks(low: float, high: float, count: int) -> list[float]:
    step = 10 ** math.floor(math.log10((high - low) / count))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= count + 1)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _short(value: float) -> str:
    return f"{value:.6g}".replace("-", "−")


def _axis(title: str, low: float, high: float, across: Any, label: str = "") -> str:
    marks = [f'<text y="-6" font-weight="600">{escape(title)}</text>']
    for value in _ticks(low, high, 4):
        x = across(value)
        marks.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT}" stroke="{PALE}"/>'
            f'<text x="{x:.1f}" y="{HEIGHT + 14}" text-anchor="middle" fill="#6b6b70">{_short(value)}</text>'
        )
    if label:
        marks.append(f'<text x="{WIDTH}" y="{HEIGHT + 28}" text-anchor="end" fill="#6b6b70">{label}</text>')
    return "".join(marks)


def _placed(number: int, columns: int, panel: str) -> str:
    left, top = 10 + number % columns * (WIDTH + 24), 26 + number // columns * (HEIGHT + GAP)
    return f'<g transform="translate({left},{top})">{panel}</g>'


def _picture(panels: list[str], columns: int, entries: list[tuple[str, str, bool]]) -> str:
    """Panels, and under them what their colours stand for: text, colour, filled."""
    lines = math.ceil(len(panels) / columns)
    width, body = 20 + columns * (WIDTH + 24), 26 + lines * (HEIGHT + GAP)
    key = "".join(
        f'<g transform="translate({10 + number * 190},{body + 10})"><circle cx="6" cy="-4" r="4.5" stroke="{colour}" '
        f'stroke-width="2" fill="{colour if filled else "#ffffff"}"/><text x="16">{escape(text)}</text></g>'
        for number, (text, colour, filled) in enumerate(entries)
    )
    size = f'viewBox="0 0 {width} {body + 24}" width="{width}" height="{body + 24}"'
    style = "font-family:sans-serif;font-size:12px;background:#ffffff"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}" role="img">{"".join(panels)}{key}</svg>\n'


if __name__ == "__main__":
    for name, make in {"uci": uci, "labelling": labelling, "entropies": entropies, "attacked": attacked}.items():
        (ROOT / "docs" / f"{name}.svg").write_text(make(), "utf-8")
