"""docs/plane.svg: total uncertainty and its three parts over the plane, for two moons and three blobs of classes.

python -m tools.figures.plane > docs/plane.svg
"""

from __future__ import annotations

import base64
import math
import sys
from html import escape

import numpy as np
from sklearn.datasets import make_moons

from bedl import BEDLClassifier
from bedl.evaluation.report import layout

SIDE, GAP, LEFT, TOP = 180, 14, 70, 34
CELLS = 90  # along a side of a map
PARTS = ("total", "data", "distributional", "model")
COLOURS = ("#0b3c8c", "#b3261e", "#1b6e3c")  # of the classes


def moons(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Two half circles, one in the other. shapes: (n, 2), (n,)"""
    x, y = make_moons(n, noise=0.1, random_state=0)
    return 2 * x.astype(np.float32), y


def blobs(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes, each around a place of its own. shapes: (n, 2), (n,)"""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    centre = np.array([[-2.0, -1.5], [2.0, -1.5], [0.0, 2.0]])
    return (centre[y] + 0.6 * rng.normal(size=(n, 2))).astype(np.float32), y


def main() -> None:
    """The picture, on standard output."""
    rows = {"two moons": moons(400), "three blobs": blobs(400)}
    maps = []
    for number, (name, (x, y)) in enumerate(rows.items()):
        model = BEDLClassifier(method="evidence", random_state=0, device="cpu").fit(x, y)
        top = TOP + number * (SIDE + GAP + 22)
        maps.append(_row(name, model, x, y, top))
    width, height = LEFT + 4 * (SIDE + GAP), TOP + len(rows) * (SIDE + GAP + 22)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    style = "font-family:sans-serif;font-size:13px;background:#ffffff"
    sys.stdout.write(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}" role="img">{"".join(maps)}</svg>\n'
    )


def _row(name: str, model: BEDLClassifier, x: np.ndarray, y: np.ndarray, top: int) -> str:
    dots = name.replace(" ", "-")
    texts = [f'<defs><g id="{dots}">{points_of(x, y)}</g></defs>']
    texts += [
        f'<text transform="translate(20,{top + SIDE / 2}) rotate(-90)" text-anchor="middle">{escape(name)}</text>'
    ]
    largest = _values(model, x)
    for number, (part, image) in enumerate(image_of(model, x, y).items()):
        left = LEFT + number * (SIDE + GAP)
        title = f"{part}, at most {largest[part].max():.2f}"
        texts.append(
            f'<g transform="translate({left},{top})"><text x="{SIDE / 2}" y="-7" text-anchor="middle">{title}</text>'
            f'<image width="{SIDE}" height="{SIDE}" href="{image}"/><use href="#{dots}"/></g>'
        )
    return "".join(texts)


def _reach(x: np.ndarray) -> float:
    return 1.9 * float(np.abs(x - x.mean(0)).max())


def _values(model: BEDLClassifier, x: np.ndarray) -> dict[str, np.ndarray]:
    across = np.linspace(-_reach(x), _reach(x), CELLS, dtype=np.float32)
    parts = model.uncertainty(np.stack(np.meshgrid(across, -across), -1).reshape(-1, 2) + x.mean(0))
    return {part: parts[part].to_numpy().reshape(CELLS, CELLS) for part in PARTS}


def image_of(model: BEDLClassifier, x: np.ndarray, y: np.ndarray) -> dict[str, str]:
    """Maps of the uncertainty around the data and of its parts, as data URIs; x shape: (n, 2), y shape: (n,)"""
    most = math.log(len(np.unique(y)))
    return {part: _map(values / most) for part, values in _values(model, x).items()}


def _map(values: np.ndarray) -> str:
    """White for nothing, dark orange for all that there can be. values: shape (h, w), from 0 to 1"""
    stops = np.array([[255, 255, 255], [254, 217, 142], [217, 95, 14], [102, 37, 6]])
    place = np.sqrt(values.clip(0, 1))  # so that small parts are seen, too
    image = np.stack([np.interp(place, np.linspace(0, 1, len(stops)), stops[:, channel]) for channel in range(3)])
    return "data:image/png;base64," + base64.b64encode(layout.encode(image.round().astype(np.uint8))).decode("ascii")


def points_of(x: np.ndarray, y: np.ndarray) -> str:
    """Every other point of the data, as a dot on the map. x shape: (n, 2), y shape: (n,)"""
    places = SIDE * (0.5 + 0.5 * (x - x.mean(0)) * np.array([1, -1]) / _reach(x))
    dots = [
        f'<circle cx="{a:.1f}" cy="{b:.1f}" r="1.3" fill="{COLOURS[label]}" fill-opacity="0.6"/>'
        for (a, b), label in zip(places[::2], y[::2], strict=True)
    ]
    return "".join(dots)


if __name__ == "__main__":
    main()
