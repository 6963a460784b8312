"""Images beside what was predicted for them, and the three parts of the uncertainty as maps."""

from __future__ import annotations

import numpy as np

from bedl.report import png
from bedl.report.kinds import THREE
from bedl.report.text import count, data, number, text
from bedl.tasks import Maps

__all__ = ["maps_section"]

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
    return f'<img src="{png.data_uri(image)}" alt="{text(alt)}" title="{text(alt)}" width="{SIZE}" height="{SIZE}">'


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
    strip = f'<img src="{png.data_uri(ramp(np.linspace(0, 1, 96)[None].repeat(8, 0)))}" alt="" width="96" height="10">'
    items = [f"<li>uncertainty, {text(maps.unit)}: none {strip} the most in its column</li>"]
    for i, name in enumerate(maps.names or ()):
        square = _square(CLASSES[i % len(CLASSES)])
        items.append(f'<li><img src="{square}" alt="" width="12" height="12">{data(name, 30)}</li>')
    if maps.names is not None and maps.observed is not None and (maps.observed < 0).any():
        items.append(f'<li><img src="{_square(UNKNOWN)}" alt="" width="12" height="12">not labelled</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _square(colour: np.ndarray) -> str:
    return png.data_uri(colour[:, None, None].repeat(2, 1).repeat(2, 2))
