"""The command line, called in this process, and what may come of it."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from tools.campaign.ledger import Fault

__all__ = ["Said", "check_words", "said"]

LONGEST = 3000  # letters of a message that somebody still reads

# What a message asks for: it has to name something that can be done.
REMEDY = re.compile(
    r"\b(add|avoid|call|change|check|choose|close|combine|copy|correct|create|did you mean|download|export|fill|free|"
    r"give|go on|hold|install|leave|let|lower|make|mark|merge|move|name|needs?|pass|pip|put|read|remove|rename|replace|"
    r"save|say|set|shorten|start|store|take|train|try|upgrade|use|wait|write|nothing to predict|is it|was a|"
    r"--[a-z-]+)\b",
    re.I,
)


@dataclass(frozen=True)
class Said:
    """How a call ended, and what it printed."""

    code: int
    out: str
    err: str


def said(*words: object) -> Said:
    """`bedl` with these words in this process; a Fault unless it ends well or with a line that helps."""
    import typer.testing

    from bedl.cli.app import app

    typer.testing._get_command = _command
    result: Any = typer.testing.CliRunner().invoke(app, [str(word) for word in words], prog_name="bedl")
    found = Said(result.exit_code, result.stdout, result.stderr)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise Fault(f"{words[0]} raised {result.exception!r}")
    check_words(found, str(words[0]))
    return found


@functools.cache
def _command(app: Any) -> Any:
    """What Typer makes of the verbs, once: the same each time, and half of the time of a try."""
    import typer.main

    return typer.main.get_command(app)


def check_words(found: Said, verb: str) -> None:
    """A Fault unless a call ended well, or with a line that says what to do."""
    if found.code not in (0, 1, 2, 130, 143):
        raise Fault(f"{verb} ended with exit code {found.code}: {found.err[-300:]}")
    for what in ("Traceback", "--debug shows where"):
        if what in found.err:
            raise Fault(f"{verb}: {found.err[-400:]}")
    if found.code == 1:
        if "Error: " not in found.err:
            raise Fault(f"{verb} ended with exit code 1 and no message: {found.err[-300:]!r}")
        message = found.err.split("Error: ", 1)[1]
        if not REMEDY.search(message):
            raise Fault(f"{verb} says no remedy: {message[:300]}")
        if len(message) > LONGEST:
            raise Fault(f"{verb} says {len(message)} letters: {message[:100]} …")
