"""Text and numbers as HTML. Text from data passes through `text` and nowhere else."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["count", "data", "number", "percent", "shorten", "table", "text"]


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
