"""The verbs put together, and what becomes of their errors."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bedl.cli import Stopped, asked_to_stop, exit_code
from bedl.cli.console import explained, say, say_error
from bedl.cli.options import DEBUG
from bedl.cli.verbs import compare, data, evaluate, fit, networks, predict

PIPE_CLOSED = 141  # 128 + SIGPIPE, what other tools end with when `head` has seen enough

_HELP = """Neural networks with calibrated uncertainty.

Train on a table, predict with calibrated intervals and uncertainty components, and report the result on one page.

Exit codes: 0 all went well, 1 a problem with the data or the model (the message says what to do), 2 wrong usage,
130 stopped with Ctrl-C, 143 by SIGTERM.

Examples:

  bedl fit diabetes:train --out diabetes-model

  bedl evaluate diabetes-model diabetes:test

  bedl report diabetes-model diabetes:test --out report.html
"""


class Verbs(TyperGroup):
    """Errors that a user can fix become one or two lines on stderr and an exit code."""

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
app.command("report")(evaluate.report)
app.command("export")(networks.export)
app.command("serve")(predict.serve)
app.command("compare")(compare.compare)
app.command("bench")(compare.bench)
app.command("methods")(compare.methods)
app.command("check")(networks.check)
app.add_typer(data.app, name="data")
