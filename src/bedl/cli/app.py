"""The verbs put together, and what becomes of their errors."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bedl.cli import (
    Stopped,
    asked_to_stop,
    bench,
    check,
    compare,
    data,
    evaluate,
    exit_code,
    export,
    fit,
    methods,
    predict,
    report,
)
from bedl.cli.options import DEBUG
from bedl.cli.screen import say, say_error
from bedl.errors import BEDLError

__all__ = ["app"]

PIPE_CLOSED = 141  # 128 + SIGPIPE, what other tools end with when `head` has seen enough

_HELP = """Neural networks that say how sure they are.

Learn from a table, predict with intervals and with the two kinds of uncertainty, and look at the result on one page.

Exit codes: 0 all went well, 1 a problem with the data or the model (the message says what to do), 2 wrong usage,
130 stopped with Ctrl-C, 143 by SIGTERM.

Examples:

  bedl fit diabetes:train --out diabetes-model

  bedl evaluate diabetes-model diabetes:test

  bedl report diabetes-model diabetes:test --out report.html
"""


class Verbs(TyperGroup):
    """Errors that a user can mend become one or two lines on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, Stopped) as stop:
            say("Stopped.")
            raise typer.Exit(exit_code(stop)) from None
        except BrokenPipeError:
            # Nobody reads on. Python would complain once more when it flushes at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(PIPE_CLOSED) from None
        except Exception as error:
            if _usage(error) or ctx.meta.get(DEBUG):
                raise
            if (asked := asked_to_stop()) is not None:
                say("Stopped.")
                raise typer.Exit(exit_code(asked)) from None
            say_error(explained(error))
            raise typer.Exit(1) from None


def _usage(error: Exception) -> bool:
    """Whether Typer itself shall show it: wrong options, and the ends that verbs ask for."""
    return type(error).__module__.split(".")[0] in ("click", "typer")


_ROOM = "Free some room, or choose a folder on another disk; a fit that was under way goes on with --resume"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "The system allows no larger files here: choose a folder on another disk",
    errno.EROFS: "Choose a folder that can be written to",
    errno.EACCES: "Check the permissions, or choose another place",
    errno.EPERM: "Check the permissions, or choose another place",
    errno.ENOENT: "Was it removed meanwhile? Check the path",
    errno.EIO: "The disk cannot be read or written there: check it",
}


def explained(error: Exception) -> str:
    """An exception as a sentence for somebody who does not read Python."""
    if isinstance(error, BEDLError):
        return str(error)
    if isinstance(error, MemoryError):
        return "there is not enough memory for this. Close other programs, or take fewer columns (--ignore)"
    if isinstance(error, OSError) and error.strerror:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        return f"{what}. {_REMEDIES.get(error.errno or 0, 'Check the path and the disk')}"
    if isinstance(error, ImportError):
        missing = isinstance(error, ModuleNotFoundError) and error.name
        return f"{error.name} is not installed: pip install 'bedl[all]'" if missing else str(error)
    return f"{type(error).__name__}: {error}\n--debug shows where this comes from"


app = typer.Typer(
    name="bedl",
    cls=Verbs,
    help=_HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from bedl import __version__

        typer.echo(f"bedl {__version__}")
        raise typer.Exit


@app.callback()
def _bedl(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.command("fit")(fit.fit)
app.command("predict")(predict.predict)
app.command("evaluate")(evaluate.evaluate)
app.command("report")(report.report)
app.command("export")(export.export)
app.command("compare")(compare.compare)
app.command("bench")(bench.bench)
app.command("methods")(methods.methods)
app.command("check")(check.check)
app.add_typer(data.app, name="data")
