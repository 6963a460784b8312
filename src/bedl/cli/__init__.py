"""The command line `bedl`: verbs that read tables, train, predict, score, and write pages.

Every verb imports what it needs when it is called: `bedl predict model.onnx data.csv` runs without PyTorch.
"""

from __future__ import annotations

import signal
import sys

__all__ = ["main"]


def main() -> None:
    """The entry point of the script `bedl`."""
    listen()
    try:
        _main()
    except (KeyboardInterrupt, Stopped) as stop:  # while modules are imported; later `Verbs` takes care of it
        print("Stopped.", file=sys.stderr)
        sys.exit(exit_code(stop))
    except SystemExit as end:
        if not end.code:
            stop_listening()
        raise


def _main() -> None:
    try:
        import typer  # noqa: F401
    except ModuleNotFoundError:
        sys.exit("Error: the command line needs typer and rich: pip install 'bedl[cli]'")
    from bedl.cli.app import app

    _show_warnings()
    if sys.argv[1:2] in (["predict"], ["evaluate"]):
        from bedl._utils.imports import block_pandas_import

        block_pandas_import()
    app(prog_name="bedl")


def _show_warnings() -> None:
    """Warnings as lines for somebody who does not read Python."""
    import warnings

    from bedl.cli.console import say

    def show(message: Warning | str, *_: object, **__: object) -> None:
        say(f"Warning: {message}")

    warnings.showwarning = show


# How a command ends early: by Ctrl-C and SIGTERM. A command can be stopped while it imports, so nothing is imported.


class Stopped(BaseException):
    """SIGTERM or Ctrl-C. No KeyboardInterrupt: Typer would end the process at some of those without a word.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int = signal.SIGINT):
        super().__init__(number)
        self.number = number


def exit_code(stop: BaseException) -> int:
    """What a process that was stopped ends with: 128 and the number of the signal."""
    return 128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)


def listen() -> None:
    """Make signals that end the process exceptions, so that what is under way is put away first."""
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started us wants it ignored
        signal.signal(signal.SIGINT, _stop)


def stop_listening() -> None:
    """All is done, and what is left is Python's own end, which would let a signal look like a failure."""
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is _stop:
            signal.signal(number, signal.SIG_IGN)


_asked: list[int] = []


def asked_to_stop() -> Stopped | None:
    """The stop that was asked for, if one was: libraries may swallow the exception, and fail by it later."""
    return Stopped(_asked[0]) if _asked else None


def _stop(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
    _asked.append(number)
    raise Stopped(number)
