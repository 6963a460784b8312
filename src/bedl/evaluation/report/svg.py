"""Plots as SVG text: a frame that maps data to pixels, marks drawn in it, axes around it. Pure functions.

Colours are classes that the style sheet fills, `a` and `b` for two sets of rows, so that a plot follows the theme. The
tip of a mark is shown on hover, on touch, and by the arrow keys once the plot has the focus.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from unicodedata import east_asian_width

import numpy as np
from numpy.typing import ArrayLike

from bedl.evaluation.report.layout import number, shorten, text
from bedl.evaluation.tasks import ResultsError

Format = Callable[[float], str]

WIDTH, HEIGHT = 420, 300
LABEL = 27.0  # width of a label, in units of its font size, where that is largest: on a phone
LEFT, RIGHT, TOP, BOTTOM = 58, 24, 30, 46


@dataclasses.dataclass(frozen=True)
class Frame:
    """The rectangle of data that a plot shows, and where it lies on the picture.

    >>> frame = Frame(0, 10, 0, 1)
    >>> frame.x([0, 10]).tolist(), frame.y([0, 1]).tolist()
    ([58.0, 396.0], [254.0, 30.0])
    """

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM

    def __post_init__(self) -> None:
        spans = (self.x_high - self.x_low, self.y_high - self.y_low)
        if not all(math.isfinite(span) and span > 0 for span in spans):
            raise ResultsError(
                f"values from {self.x_low:g} to {self.x_high:g} and {self.y_low:g} to {self.y_high:g}: no plot"
            )

    @classmethod
    def around(cls, x: ArrayLike, y: ArrayLike, *, x_zero: bool = False, y_zero: bool = False) -> Frame:
        """A frame with a little room around the values; with `zero`, from 0 on."""
        return cls(*_room(np.asarray(x, float), x_zero), *_room(np.asarray(y, float), y_zero))

    def x(self, values: ArrayLike) -> np.ndarray:
        share = (np.asarray(values, float) - self.x_low) / (self.x_high - self.x_low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, values: ArrayLike) -> np.ndarray:
        share = (np.asarray(values, float) - self.y_low) / (self.y_high - self.y_low)
        return self.bottom - share * (self.bottom - self.top)


def _room(values: np.ndarray, zero: bool) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if zero:
        return 0.0, high * 1.05 if high > 0 else 1.0
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) between low and high, about `count` of them.

    >>> ticks(0, 1), ticks(-3.2, 17)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 5.0, 10.0, 15.0])
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((factor * power for factor in (1, 2, 2.5, 5, 10)), key=lambda s: abs(math.log(s / rough)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def _labels(at: Sequence[float], form: Format | None) -> list[str]:
    return tick_labels(at) if form is None else [form(value) for value in at]


def tick_labels(at: Sequence[float]) -> list[str]:
    """Ticks as text, all with the decimals that their distance needs; long ones in thousands or millions.

    >>> tick_labels([0, 0.5, 1]), tick_labels([52.01, 52.02]), tick_labels([0, 250_000])
    (['0.0', '0.5', '1.0'], ['52.01', '52.02'], ['0', '250k'])
    """
    step = at[1] - at[0] if len(at) > 1 else (at[0] if at else 1.0)
    places = next((d for d in range(8) if math.isclose(round(step, d), step, rel_tol=1e-6)), 8)
    labels = [f"{value:.{places}f}".replace("-", "−") for value in at]
    top = max(map(abs, at), default=0.0)
    if top < 1e5 and max(map(len, labels), default=0) <= 6:
        return labels
    unit, suffix = (1e6, "M") if 1e6 <= top < 1e9 else (1e3, "k") if 1e4 <= top < 1e6 else (1.0, "")
    return [number(value / unit) + (suffix if value else "") for value in at]


def figure(
    frame: Frame,
    *marks: str,
    name: str,
    x_label: str,
    y_label: str,
    x_format: Format | None = None,
    y_format: Format | None = None,
    x_ticks: Sequence[float] | None = None,
    y_ticks: Sequence[float] | None = None,
) -> str:
    """The marks with axes, as an svg element. Labels and name are plain text and are escaped here."""
    axes = grid_lines(frame, ticks(frame.y_low, frame.y_high) if y_ticks is None else y_ticks, y_format)
    axes += f'<path class="axis" d="M{LEFT} {frame.bottom:.1f}H{WIDTH - RIGHT}"/>'
    labels = (
        f'<text class="label" x="2" y="14">{text(_fitted(y_label, LABEL))}</text>'
        f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{text(_fitted(x_label, LABEL))}</text>"
    )
    return _svg(name, axes + _x_axis(frame, x_format, x_ticks) + "".join(marks) + labels, WIDTH, HEIGHT)


def grid_lines(frame: Frame, at: Sequence[float], y_format: Format | None = None) -> str:
    """Horizontal lines at these values, and the values to their left."""
    lines = "".join(f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}" for y in frame.y(at))
    values = "".join(
        f'<text x="{LEFT - 6}" y="{y:.1f}" dy=".35em" text-anchor="end">{text(label)}</text>'
        for label, y in zip(_labels(at, y_format), frame.y(at), strict=True)
    )
    return f'<path class="grid" d="{lines}"/>{values}'


def _x_axis(frame: Frame, x_format: Format | None, at: Sequence[float] | None) -> str:
    at = ticks(frame.x_low, frame.x_high) if at is None else at
    if sum(map(len, _labels(at, x_format))) > 28:  # long numbers would touch each other on a phone
        at = at[::2]
    return "".join(
        f'<path class="axis" d="M{x:.1f} {frame.bottom:.1f}v4"/>'
        f'<text x="{x:.1f}" y="{frame.bottom + 8:.1f}" dy=".8em" text-anchor="middle">{text(label)}</text>'
        for label, x in zip(_labels(at, x_format), frame.x(at), strict=True)
    )


def _width(label: str) -> float:
    """How wide a text is about, in units of its font size."""
    wide = sum(c in "mwMW@%…→" or east_asian_width(c) in "WF" for c in label)
    narrow = sum(c in " fijlrtI.,:;!|'()[]" for c in label)
    return wide + 0.38 * narrow + 0.64 * (len(label) - wide - narrow)


def _fitted(label: str, width: float) -> str:
    """As much of the text as there is room for."""
    shown = label
    while _width(shown) > width:
        shown = shown[:-2] + "…"
    return shown


def _svg(name: str, content: str, width: float, height: float) -> str:
    # A group, not an image: an image's contents are hidden from assistive technology.
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" tabindex="0" role="group" aria-roledescription="plot" '
        f'aria-label="{text(name, 200)}. Arrow keys go through its marks.">{content}</svg>'
    )


def _tip(tips: Sequence[str] | None, i: int) -> str:
    return "" if tips is None else f' data-tip="{text(tips[i], 300)}"'


def scatter(
    frame: Frame, x: ArrayLike, y: ArrayLike, kind: str = "a", tips: Sequence[str] | None = None, size: float = 2.6
) -> str:
    """Points, from left to right: circles, or diamonds for kind `b`: colour must not be all that differs."""
    px, py = frame.x(x), frame.y(y)
    radius = size * 1.3
    marks = []
    for i in np.argsort(px, kind="stable").tolist():
        if kind.startswith("b"):
            shape = (
                f'<path d="M{px[i]:.1f} {py[i] - radius:.1f}l{radius} {radius}l{-radius} {radius}l{-radius} {-radius}z"'
            )
        else:
            shape = f'<circle cx="{px[i]:.1f}" cy="{py[i]:.1f}" r="{size}"'
        marks.append(f"{shape}{_tip(tips, i)}/>")
    return f'<g class="point {kind}">{"".join(marks)}</g>'


def line(frame: Frame, x: ArrayLike, y: ArrayLike, kind: str = "a") -> str:
    """Straight lines from point to point."""
    points = "L".join(f"{px:.1f} {py:.1f}" for px, py in zip(frame.x(x), frame.y(y), strict=True))
    return f'<path class="line {kind}" d="M{points}"/>'


def steps(frame: Frame, x: ArrayLike, y: ArrayLike, kind: str = "a") -> str:
    """A staircase: level until the next x, then up or down to its y."""
    px, py = frame.x(x), frame.y(y)
    path = "".join(f"H{a:.1f}V{b:.1f}" for a, b in zip(px[1:], py[1:], strict=True))
    return f'<path class="line {kind}" d="M{px[0]:.1f} {py[0]:.1f}{path}"/>'


def band(frame: Frame, x: ArrayLike, lower: ArrayLike, upper: ArrayLike, kind: str = "a") -> str:
    """The area between two curves."""
    px = frame.x(x)
    there = [f"{a:.1f} {b:.1f}" for a, b in zip(px, frame.y(upper), strict=True)]
    back = [f"{a:.1f} {b:.1f}" for a, b in zip(px[::-1], frame.y(lower)[::-1], strict=True)]
    return f'<path class="band {kind}" d="M{"L".join(there + back)}z"/>'


def whiskers(frame: Frame, x: ArrayLike, lower: ArrayLike, upper: ArrayLike, kind: str = "a") -> str:
    """A vertical line from lower to upper at each x."""
    ends = zip(frame.x(x), frame.y(lower), frame.y(upper), strict=True)
    return f'<path class="whisker {kind}" d="{"".join(f"M{a:.1f} {b:.1f}V{c:.1f}" for a, b, c in ends)}"/>'


def bars(
    frame: Frame,
    edges: ArrayLike,
    heights: ArrayLike,
    kind: str = "a",
    tips: Sequence[str] | None = None,
    base: ArrayLike = 0.0,
) -> str:
    """A bar between each two edges, from the base, or from the bottom of the frame if that is higher: a histogram."""
    low = np.broadcast_to(np.asarray(base, float), np.shape(heights))
    at, top, foot = frame.x(edges), frame.y(low + heights), frame.y(np.maximum(low, frame.y_low))
    boxes = (
        f'<rect x="{at[i] + 0.5:.1f}" y="{top[i]:.1f}" width="{max(at[i + 1] - at[i] - 1, 0.5):.1f}" '
        f'height="{max(foot[i] - top[i], 0):.1f}"{_tip(tips, i)}/>'
        for i in range(len(top))
    )
    return f'<g class="bar {kind}">{"".join(boxes)}</g>'


def heat_map(
    shares: np.ndarray,
    cells: Sequence[Sequence[str]],
    names: Sequence[str],
    tips: Sequence[Sequence[str]],
    *,
    name: str,
) -> str:
    """A square table of cells, darker for a higher share (0 … 1), with the rows' and columns' names.

    Names and cells are plain text; a cell with the text "" stays empty.
    """
    count = len(names)
    short = [text(_fitted(shorten(label, 20), 5.3)) for label in names]
    upright = 14.5 * max(map(_width, names)) < (WIDTH - 66) / count
    left, top = (64, 44) if upright else (86, 96)
    side = (WIDTH - left - 2) / count
    height = top + side * count + 4
    font = min(13.0, 0.42 * side)
    parts = [
        f'<text class="label" x="{left if upright else 2}" y="14">predicted →</text>'
        f'<text class="label" x="2" y="{top - 8}">true ↓</text>'
    ]
    for i, label in enumerate(short):
        middle = left + (i + 0.5) * side
        turn = ' text-anchor="middle"' if upright else f' dy=".35em" transform="rotate(-90 {middle:.1f} {top - 8})"'
        parts.append(f'<text x="{middle:.1f}" y="{top - 8}"{turn}>{label}</text>')
        parts.append(
            f'<text x="{left - 6}" y="{top + (i + 0.5) * side:.1f}" dy=".35em" text-anchor="end">{label}</text>'
        )
        for j in range(count):
            x, y = left + j * side, top + i * side
            share = float(shares[i, j])
            # The square root shows the rare mistakes, which are what one looks for.
            parts.append(
                f'<rect class="cell" x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{side - 1:.1f}" height="{side - 1:.1f}"'
                f' fill-opacity="{math.sqrt(share):.3f}" data-tip="{text(tips[i][j], 300)}"/>'
            )
            if cells[i][j]:
                shade = "on-dark" if share > 0.35 else "on-light"
                parts.append(
                    f'<text class="{shade}" x="{x + side / 2:.1f}" y="{y + side / 2:.1f}" dy=".35em" '
                    f'text-anchor="middle" style="font-size:{font:.1f}px">{text(cells[i][j], 7)}</text>'
                )
    return _svg(name, "".join(parts), WIDTH, height)
