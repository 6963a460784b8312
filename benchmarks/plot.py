"""Curves on logarithmic axes, as one SVG picture for the docs."""

from __future__ import annotations

import math
from html import escape

__all__ = ["small_multiples"]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360, 260, 56, 16, 34, 34


def small_multiples(curves: dict[str, dict[int, float]], unit: str) -> str:
    """A plot for each curve, two in a row; the dashed line is proportional to what is on the x-axis."""
    rows = -(-len(curves) // 2)
    plots = [
        f'<g transform="translate({number % 2 * WIDTH},{number // 2 * HEIGHT})">{_plot(title, curve, unit)}</g>'
        for number, (title, curve) in enumerate(curves.items())
    ]
    size = f'viewBox="0 0 {2 * WIDTH} {rows * HEIGHT}" width="{2 * WIDTH}" height="{rows * HEIGHT}"'
    style = "font-family:sans-serif;font-size:12px;background:#ffffff"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}" role="img">{"".join(plots)}</svg>\n'


def _plot(title: str, curve: dict[int, float], unit: str) -> str:
    xs, ys = list(curve), list(curve.values())
    proportional = [ys[0] * x / xs[0] for x in xs]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)) + 1e-9)
    high += low == high

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - math.log10(xs[0])) / (math.log10(xs[-1]) - math.log10(xs[0]))
        up = (math.log10(y) - low) / (high - low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def path(values: list[float], extra: str) -> str:
        points = [at(x, y) for x, y in zip(xs, values, strict=True) if y <= 10**high]
        return f'<polyline fill="none" {extra} points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'

    grid = "".join(
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at(xs[0], 10**k)[1]:.1f}" y2="{at(xs[0], 10**k)[1]:.1f}" '
        f'stroke="#dde2e8"/><text x="{LEFT - 6}" y="{at(xs[0], 10**k)[1] + 4:.1f}" text-anchor="end">{10**k:g}</text>'
        for k in range(low, high + 1)
    )
    labels = "".join(
        f'<text x="{at(x, ys[0])[0]:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:,}</text>'
        for x in (xs[0], xs[len(xs) // 2], xs[-1])
    )
    dots = "".join(
        '<circle cx="{:.1f}" cy="{:.1f}" r="3.5" fill="#0067a3"/>'.format(*at(x, y)) for x, y in curve.items()
    )
    head = f'<text x="{LEFT}" y="20" font-weight="bold">{escape(title)}, {escape(unit)}</text>'
    dashes = path(proportional, 'stroke="#7a8594" stroke-dasharray="4 4"')
    return head + grid + labels + dashes + path(ys, 'stroke="#0067a3" stroke-width="2"') + dots
