"""What the words of options mean."""

from __future__ import annotations

import re

import typer

__all__ = ["names", "numbers", "sizes", "widths"]


def names(text: str | None) -> list[str] | None:
    """Words with commas between them."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def numbers(text: str | None, option: str) -> list[int] | None:
    """Numbers and ranges: "0-2,7" is 0, 1, 2, 7."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise typer.BadParameter(f"{text!r} is no list of numbers such as 0-4 or 0,2,7", param_hint=option)
        found += range(int(first), int(last or first) + 1)
    return found


def widths(text: str) -> tuple[int, ...] | None:
    """Of hidden layers; None for "auto"."""
    if text == "auto":
        return None
    found = tuple(int(part) for part in text.split(",")) if re.fullmatch(r"\d+(,\d+)*", text) else ()
    if not found or min(found) < 1:
        raise typer.BadParameter(f"widths of hidden layers such as 50 or 100,50, not {text!r}")
    return found


def sizes(text: str) -> tuple[int, ...]:
    """The shape of an input."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise typer.BadParameter(f"a shape such as 1,3,32,32, not {text!r}", param_hint="--input")
    return tuple(map(int, text.split(",")))
