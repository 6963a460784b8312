"""The model card: a page of Markdown in the model's folder for whoever finds it there. Programs read model.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bedl import tasks

if TYPE_CHECKING:
    from bedl.tabular.folder import ModelCard

__all__ = ["PAGE", "card_text"]

PAGE = "MODEL_CARD.md"
MOST = 60  # columns, classes or notes that are listed
LONGEST = 120  # letters of a text that comes from the data

_KINDS = {
    "number": lambda c: f"number{_range(c)}",
    "boolean": lambda c: "true or false",
    "date": lambda c: "date",
    "category": lambda c: f"{len(c['categories'])} categories" + (", and others" if c["has_other"] else ""),
}


def card_text(card: ModelCard) -> str:
    """What is known of a model, as Markdown. It says the same of the same model: no time, no place, no user."""
    return "\n".join(_lines(card)) + "\n"


def _lines(card: ModelCard) -> Iterator[str]:
    encoder, rows = card.encoder, card.rows
    yield f"# Model of {_quoted(card.target)}"
    yield ""
    yield f"Made by bedl {_quoted(card.versions.get('bedl', '?'))}. Predicts {_quoted(card.task)}, and how sure it is."
    yield "model.json holds all of this, and more, for programs; its checksums tell whether the files are whole."
    yield from _section("Data")
    yield f"Learned from {_quoted(card.data)}: {rows.get('training', 0)} rows; {rows.get('held_out', 0)} were held out."
    classes = encoder["target"]["classes"]
    if classes:
        yield f"Classes: {_listed(classes)}."
    yield ""
    yield "| column | what it holds |"
    yield "| --- | --- |"
    for column in encoder["columns"][:MOST]:
        missing = "; missing in places" if column["has_missing"] else ""
        yield f"| {_quoted(column['name'])} | {_KINDS.get(column['kind'], lambda c: c['kind'])(column)}{missing} |"
    if len(encoder["columns"]) > MOST:
        yield f"| … | and {len(encoder['columns']) - MOST} more |"
    if encoder["unused"]:
        yield ""
        yield f"Not used: {_listed(encoder['unused'])}."
    if card.scores:
        yield from _section(f"Scores of the {rows.get('held_out', 0)} rows held out")
        yield from _scores(card.scores)
    if card.notes:
        yield from _section("Notes")
        yield from (f"- {_quoted(note)}" for note in card.notes[:MOST])
        if len(card.notes) > MOST:
            yield f"- and {len(card.notes) - MOST} more, in model.json"
    yield from _section("Settings")
    yield from (f"- {_quoted(name)}: {_quoted(value)}" for name, value in card.settings.items())
    yield from _section("Versions")
    yield ", ".join(f"{_quoted(name)} {_quoted(value)}" for name, value in card.versions.items())
    yield from _section("Limits")
    yield "Scores are of rows like those it learned from. Far from them predictions mean little: look at epistemic_std"
    yield "or epistemic_entropy, which grow there, and at what the model's page (bedl report) says of your own rows."


def _section(title: str) -> list[str]:
    return ["", f"## {title}", ""]


def _scores(scores: dict[str, float | None]) -> Iterator[str]:
    known = tasks.meanings()
    yield "| score | value | meaning |"
    yield "| --- | --- | --- |"
    for name, value in scores.items():
        shown = "not finite" if value is None else f"{value:.4g}"
        meaning = known.get(name)
        yield f"| {meaning.label if meaning else _quoted(name)} | {shown} | {meaning.note if meaning else ''} |"


def _range(column: dict[str, Any]) -> str:
    if column.get("low") is None or column.get("high") is None:
        return ""
    return f", {column['low']:.6g} to {column['high']:.6g}, mean {column['mean']:.6g}"


def _listed(texts: list[str]) -> str:
    more = f" and {len(texts) - MOST} more" if len(texts) > MOST else ""
    return ", ".join(_quoted(text) for text in texts[:MOST]) + more


def _quoted(value: Any) -> str:
    """A text that may come from the data, as code: no markup, link or control character in it works.

    >>> _quoted("a|`b`<script>\\n\\x1b[2J")
    "`a¦'b'<script>\\\\n\\\\x1b[2J`"
    """
    text = str(value)
    text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return f"`{text.replace('`', chr(39)).replace('|', '¦') or ' '}`"
