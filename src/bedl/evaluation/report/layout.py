"""Text and numbers as HTML. Text from data passes through `text` and nowhere else."""

from __future__ import annotations

import base64
import html
import math
import re
import struct
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bedl.evaluation.tasks import Results, meanings


def text(value: Any, limit: int = 80) -> str:
    """Any value as text that is safe inside HTML, SVG and attributes: escaped, without control characters, shortened.

    >>> text('<b>"a"&b</b>')
    '&lt;b&gt;&quot;a&quot;&amp;b&lt;/b&gt;'
    >>> text("x" * 100, limit=5)
    'xxxx…'
    """
    if isinstance(value, float):
        plain = number(value)
    else:
        # More than is ever shown need not be looked at; a value may be megabytes long.
        plain = "".join(_visible(c) for c in str(value)[: 4 * limit + 4])
        plain = " ".join(plain.split())
    return html.escape(shorten(plain, limit), quote=True)


def shorten(plain: str, limit: int) -> str:
    """The beginning of a text, of at most `limit` characters.

    >>> shorten("a long name", 7)
    'a long…'
    """
    return plain if len(plain) <= limit else plain[: limit - 1].rstrip() + "…"


def _visible(character: str) -> str:
    """Bidirectional overrides would reorder the text around them; surrogates cannot be written to a file."""
    kind = unicodedata.category(character)
    if kind == "Cc":
        return " "
    if kind == "Cs":
        return "\ufffd"
    return "" if kind == "Cf" and character not in "\u200c\u200d" else character  # joiners shape real words


def data(value: Any, limit: int = 80) -> str:
    """Text from data as an element of its own, so that its writing direction ends with it.

    >>> data("age")
    '<bdi>age</bdi>'
    """
    return f"<bdi>{text(value, limit)}</bdi>"


def number(value: float, digits: int = 4) -> str:
    """A number as people write it: four significant digits, thousands set apart, a true minus sign.

    >>> [number(x) for x in (0.123456, 1234567, -2.5, 1e-7, 0.0, 100.0)]
    ['0.1235', '1,234,567', '−2.5', '1e−7', '0', '100']
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    size = abs(value)
    if size and not 1e-4 <= size < 1e9:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        result = f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"
    elif size >= 10 ** (digits - 1):
        result = f"{value:,.0f}"
    else:
        places = digits - 1 - (math.floor(math.log10(size)) if size else 0)
        result = f"{value:.{max(places, 0)}f}"
        result = result.rstrip("0").rstrip(".") if "." in result else result
    return result.replace("-", "−")


def count(value: int) -> str:
    """A whole number in full.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{int(value):,}"


def percent(share: float, places: int = 1) -> str:
    r"""A share as a percentage.

    >>> percent(0.1234).replace("\u00a0", " "), percent(0.1234, 0).replace("\u00a0", " ")
    ('12.3 %', '12 %')
    """
    return f"{100 * share:.{places}f}\u00a0%" if math.isfinite(share) else "–"


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names its rows. The cells are HTML already: pass `text(…)`, `data(…)`, `number(…)`."""
    columns = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>\n' for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
        f"<table><caption>{caption}</caption><thead><tr>{columns}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


# Small images as data URIs.


SIDE = 128  # larger images are thinned out: they are shown small


def encode(image: NDArray[np.uint8]) -> bytes:
    """An image as a PNG file. shape: (H, W), (1, H, W) or (3, H, W)

    >>> encode(np.zeros((2, 2), np.uint8))[:4]
    b'\\x89PNG'
    """
    pixels = image[0] if image.ndim == 3 and len(image) == 1 else image
    colour = pixels.ndim == 3
    lines = np.moveaxis(pixels, 0, -1) if colour else pixels
    height, width = lines.shape[:2]
    filtered = np.zeros((height, 1 + lines[0].size), np.uint8)  # each line starts with its filter type, 0 is none
    filtered[:, 1:] = lines.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if colour else 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def data_uri(image: NDArray[np.uint8]) -> str:
    """The image inline, for the src of an img; of large ones, every k-th pixel. shape: as for `encode`"""
    step = max(1, -(-max(image.shape[-2:]) // SIDE))
    return "data:image/png;base64," + base64.b64encode(encode(image[..., ::step, ::step])).decode("ascii")


# Pieces that the pages of all tasks are put together from.


Cell = Callable[[int], str]
Verdict = tuple[Literal["good", "bad", "so"], str]
"""A sentence, HTML, and whether it is good news, bad news or neither."""

POINTS = 1_000  # in a scatter plot; more only hide each other
INTERVALS = 120  # in the plot of predictions with their intervals
EXAMPLES = 20  # rows of a table
LONG = r"[+-]?\d{0,12}\.\d{4,}([eE][+-]?\d{1,3})?"  # numbers with many decimals, as programs write them
PICTURES = 18  # whole lines, on a wide screen and on a phone


def subsample(count: int, limit: int = POINTS) -> np.ndarray:
    """At most `limit` of the rows 0 … count − 1, in order, the same ones every time.

    >>> subsample(3).tolist(), len(subsample(10_000)), bool((subsample(10_000) == subsample(10_000)).all())
    ([0, 1, 2], 1000, True)
    """
    if count <= limit:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, limit, replace=False))


def histogram_edges(*arrays: np.ndarray, bins: int = 24) -> np.ndarray:
    """Edges of equal width from 0 to the largest value of all arrays. shape: (bins + 1,)"""
    high = max(float(array.max()) for array in arrays)
    return np.linspace(0, high if high > 0 else 1.0, bins + 1)


def legend(*entries: tuple[str, str]) -> str:
    """What the colours and shapes of a plot are: (kind, text) pairs, as the classes of the style sheet name them."""
    items = "".join(
        f'<li><span class="swatch {kind}" aria-hidden="true"></span>{text(name)}</li>' for kind, name in entries
    )
    return f'<ul class="legend">{items}</ul>'


def card(title: str, how: str, plot: str, *, key: str = "", numbers: str = "", wide: bool = False) -> str:
    """A plot with its title, a sentence on how to read it, its legend, and its numbers, folded. All HTML already.

    Cards stand in pairs; a `wide` one has a line of the page for itself.
    """
    details = f"<details><summary>Numbers</summary>{numbers}</details>" if numbers else ""
    kind = "card wide" if wide else "card"
    return f'<section class="{kind}"><h2>{title}</h2><p class="how">{how}</p>{key}{plot}{details}</section>'


def verdict(sentences: Sequence[Verdict]) -> str:
    """What the numbers come to, in words."""
    items = "".join(f'<li class="{kind}">{said}</li>' for kind, said in sentences)
    return f'<ul class="verdict">{items}</ul>' if items else ""


def headline(
    scores: Mapping[str, Any], level: float | None = None, baselines: Mapping[str, Mapping[str, float]] | None = None
) -> str:
    """The scores as a list of terms; names that no task knows are shown as they are.

    Args:
        scores: the scores by name.
        level: the level of the intervals, which belongs to their coverage and width.
        baselines: what some of the scores would be otherwise, such as for one answer to all rows, by name.
    """
    known, items = meanings(), []
    for name, value in scores.items():
        meaning = known.get(name)
        if isinstance(value, (int, float, np.number)):
            shown = percent(float(value)) if meaning and meaning.share else number(float(value))
        else:
            shown = data(value, 40)
        label, note = (text(meaning.label), text(meaning.note, 200)) if meaning else (data(name, 40), "")
        if name in ("coverage", "width") and level is not None:
            label += f" of {100 * level:g}\u00a0% intervals"
        for other, plain in list((baselines or {}).items())[::-1]:
            if name in plain:
                value = percent(plain[name]) if meaning and meaning.share else number(plain[name])
                note = f'<span class="baseline">{text(other)} {value}</span> · {note}'
        items.append(f"<div><dt>{label}</dt><dd><strong>{shown}</strong><small>{note}</small></dd></div>")
    return f'<dl class="scores">{"".join(items)}</dl>'


def quantile_rows(columns: Iterable[np.ndarray]) -> list[list[str]]:
    """Rows of a table: mean and quantiles of each array, a column each."""
    arrays = [np.asarray(column, float) for column in columns]
    rows = [["mean", *(number(float(a.mean())) for a in arrays)]]
    for name, q in (("minimum", 0.0), ("5 %", 0.05), ("median", 0.5), ("95 %", 0.95), ("maximum", 1.0)):
        rows.append([name, *(number(float(np.quantile(a, q))) for a in arrays)])
    return rows


def most_uncertain(results: Results, title: str, columns: Mapping[str, Cell]) -> str:
    """The most uncertain rows that have examples, as pictures or as a table.

    Args:
        results: with examples.
        title: the title of the section, HTML.
        columns: heading → what the row of that number says there, HTML; asked for the rows that are shown only.
    """
    return _examples(results, results.uncertainty, title, columns, "largest total uncertainty, the most uncertain")


def most_surprising(results: Results, title: str, columns: Mapping[str, Cell], how: str) -> str:
    """The rows with the least likely targets; arguments as for `most_uncertain`.

    Args:
        results: with examples and targets.
        title: the title of the section, HTML.
        columns: as for `most_uncertain`.
        how: what is largest in these rows.
    """
    surprise = results.surprise
    if surprise is None:
        return ""
    return _examples(results, surprise, title, columns, f"{how}, the most surprising")


def _examples(results: Results, by: np.ndarray, title: str, columns: Mapping[str, Cell], largest: str) -> str:
    ranks = by[results.examples.index]
    order = np.argsort(-ranks, kind="stable")[: EXAMPLES if results.examples.images is None else PICTURES]
    shown = results.examples.take(order[np.isfinite(ranks[order])])
    if not len(shown):
        return ""
    if shown.images is not None:
        return _pictures(shown.images, shown.index, title, columns, largest)
    head = ["row", *columns, *(data(name, 40) for name in shown.columns)]
    rows = [
        [count(int(row) + 1), *(cell(int(row)) for cell in columns.values())]
        + [_shown(values[i]) for values in shown.columns.values()]
        for i, row in enumerate(shown.index)
    ]
    caption = f"{title}: {count(len(rows))} of {count(len(results))}"
    how = f"The rows with the {largest} first; rows are counted from 1."
    return f'<section class="card wide"><h2>{title}</h2><p class="how">{how}</p>{table(caption, head, rows)}</section>'


def _shown(value: Any) -> str:
    """A value of the table; numbers in text files have more decimals than anybody reads."""
    if isinstance(value, str) and re.fullmatch(LONG, value.strip()):
        value = float(value)
    return data(value, 60)


def _pictures(images: np.ndarray, index: np.ndarray, title: str, columns: Mapping[str, Cell], largest: str) -> str:
    figures = []
    for image, row in zip(images, index.tolist(), strict=True):
        facts = "".join(f"<div><dt>{name}</dt><dd>{cell(row)}</dd></div>" for name, cell in columns.items())
        figures.append(
            f'<figure><img src="{data_uri(image)}" alt="row {row + 1}" width="96" height="96">'
            f'<figcaption><span class="row">row {count(row + 1)}</span><dl>{facts}</dl></figcaption></figure>'
        )
    how = f"The images with the {largest} first."
    return (
        f'<section class="card wide"><h2>{title}</h2><p class="how">{how}</p>'
        f'<div class="pictures">{"".join(figures)}</div></section>'
    )
