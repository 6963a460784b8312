"""README's three pictures, each for a light and a dark page: python -m tools.figures

- band: a prediction with its 90 % band over a gap in the data, and the three parts of its variance below;
- plane: total uncertainty and its three parts around two moons;
- report: a screenshot of the page that `bedl report` writes, where Chromium and chromedriver are installed.
"""

from __future__ import annotations

import argparse
import tempfile
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tools.figures.plane import PARTS, SIDE, image_of, moons, points_of

from bedl import BEDLClassifier, BEDLRegressor
from bedl.estimators import tabular

ROOT = Path(__file__).parents[2]
FONT = "font-family:system-ui,-apple-system,'Segoe UI',sans-serif;font-size:13px"


class Theme(NamedTuple):
    """Colours of a page."""

    name: str
    back: str
    text: str
    dim: str
    line: str
    mean: str
    band: str
    parts: tuple[str, str, str]


THEMES = (
    Theme("light", "#ffffff", "#1c2430", "#5b6675", "#d5dae1", "#1b5fc1", "#bcd6f7", ("#9aa5b4", "#e08a1e", "#1b5fc1")),
    Theme("dark", "#0d1117", "#e6eaf0", "#9aa5b4", "#333c48", "#82b4ff", "#26436d", ("#6d7889", "#f0a040", "#82b4ff")),
)


# -- the band ---------------------------------------------------------------------------------------------
def band_data() -> dict[str, np.ndarray]:
    """Two stretches of a sine with noise, and what one network says of them, of the gap and beyond."""
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(-4, -1, 150), rng.uniform(1.2, 4, 150)])
    y = np.sin(1.6 * x) + (0.08 + 0.12 * (x > 0)) * rng.normal(size=len(x))
    model = BEDLRegressor(random_state=0, device="cpu").fit(x[:, None], y)
    grid = np.linspace(-6.5, 6.5, 261)
    lower, upper = model.predict_interval(grid[:, None], 0.9)
    parts = model.uncertainty(grid[:, None])
    found = {"x": x, "y": y, "grid": grid, "mean": model.predict(grid[:, None]), "lower": lower, "upper": upper}
    return {**found, **{name: parts[name].to_numpy() for name in ("data", "distributional", "model")}}


def band(found: dict[str, np.ndarray], theme: Theme) -> str:
    """The picture of `band_data`."""
    width, height, left, right, foot = 760, 430, 46, 744, 400
    grid = found["grid"]
    across = lambda x: left + (right - left) * (x - grid[0]) / (grid[-1] - grid[0])  # noqa: E731
    low, high = -3.2, 3.2
    up = lambda y: 20 + 230 * (high - np.clip(y, low, high)) / (high - low)  # noqa: E731
    text = f'fill="{theme.text}"'
    marks = [
        f'<path d="{_area(across(grid), up(found["upper"]), up(found["lower"]))}" fill="{theme.band}"/>',
        f'<path d="{_line(across(grid), up(found["mean"]))}" fill="none" stroke="{theme.mean}" stroke-width="2"/>',
        *(
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="1.8" fill="{theme.text}" fill-opacity="0.7"/>'
            for a, b in zip(across(found["x"]), up(found["y"]), strict=True)
        ),
        f'<text x="{left}" y="14" {text}>prediction, 90 % interval, data; below: parts of the variance</text>',
    ]
    total = sum(found[name] for name in ("data", "distributional", "model"))
    top = 290
    tall = lambda v: foot - (foot - top) * v / total.max()  # noqa: E731
    below = np.zeros_like(grid)
    names = ("noise (data)", "lack of evidence (distributional)", "model uncertainty (model)")
    place = left
    for part, label, colour in zip(("data", "distributional", "model"), names, theme.parts, strict=True):
        area = _area(across(grid), tall(below + found[part]), tall(below))
        marks.append(f'<path d="{area}" fill="{colour}"/>')
        below = below + found[part]
        marks.append(
            f'<rect x="{place}" y="{top - 22}" width="11" height="11" fill="{colour}"/>'
            f'<text x="{place + 16}" y="{top - 12}" {text}>{escape(label)}</text>'
        )
        place += 30 + 7 * len(label)
    for y in (250, foot):
        marks.append(f'<line x1="{left}" x2="{right}" y1="{y}" y2="{y}" stroke="{theme.line}"/>')
    for value in range(-6, 7, 2):
        marks.append(
            f'<text x="{across(value):.0f}" y="{foot + 16}" text-anchor="middle" fill="{theme.dim}">{value}</text>'
        )
    return _svg(width, height, theme, "".join(marks), "A prediction whose band widens in a gap of the data and beyond")


def _line(x: np.ndarray, y: np.ndarray) -> str:
    return "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))


def _area(x: np.ndarray, upper: np.ndarray, lower: np.ndarray) -> str:
    return _line(np.r_[x, x[::-1]], np.r_[upper, lower[::-1]]) + "Z"


def _svg(width: float, height: float, theme: Theme, content: str, label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(label)}" style="{FONT};background:{theme.back}">{content}</svg>\n'
    )


# -- the plane --------------------------------------------------------------------------------------------
def planes() -> dict[str, str]:
    """Uncertainty of a classifier around two moons, by theme."""
    x, y = moons(400)
    model = BEDLClassifier(random_state=0, device="cpu").fit(x, y)
    maps = image_of(model, x, y)
    names = ("total uncertainty", "noise (data)", "lack of evidence", "model uncertainty")
    pictures = {}
    for theme in THEMES:
        marks = [f'<defs><g id="dots">{points_of(x, y)}</g></defs>']
        for number, (part, name) in enumerate(zip(PARTS, names, strict=True)):
            marks.append(
                f'<g transform="translate({4 + number * (SIDE + 12)},26)"><text x="{SIDE / 2}" y="-8" '
                f'text-anchor="middle" fill="{theme.text}">{name}</text>'
                f'<image width="{SIDE}" height="{SIDE}" href="{maps[part]}"/><use href="#dots"/></g>'
            )
        label = "Uncertainty of a classifier around two moons: every component grows away from the data"
        pictures[theme.name] = _svg(4 * SIDE + 44, SIDE + 32, theme, "".join(marks), label)
    return pictures


# -- the report -------------------------------------------------------------------------------------------
def report(out: Path) -> None:
    """Screenshots of the beginning of a report on held-out rows."""
    from tests.report import browser

    if browser.MISSING:
        print(f"no screenshot of the report: {browser.MISSING} not found")
        return
    with tempfile.TemporaryDirectory() as folder:
        model = tabular.fit("diabetes:train", device="cpu", seed=0)
        page = model.report("diabetes:test", Path(folder) / "report.html")
        window = browser.Browser(Path(folder) / "profile")
        try:
            for theme in THEMES:
                window.open(page, width=1100, dark=theme.name == "dark")
                (out / f"report-{theme.name}.png").write_bytes(window.screenshot(height=900))
        finally:
            window.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--only", choices=("band", "plane", "report"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.only in (None, "band"):
        found = band_data()
        for theme in THEMES:
            (options.out / f"band-{theme.name}.svg").write_text(band(found, theme), "utf-8")
    if options.only in (None, "plane"):
        for name, picture in planes().items():
            (options.out / f"plane-{name}.svg").write_text(picture, "utf-8")
    if options.only in (None, "report"):
        report(options.out)


if __name__ == "__main__":
    main()
