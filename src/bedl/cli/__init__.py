"""The command line `bedl`: verbs that read tables, train, predict, score, and write pages.

Every verb imports what it needs when it is called: `bedl predict model.onnx data.csv` runs without PyTorch.
"""

from __future__ import annotations

import sys

from bedl.cli.stopping import Stopped, exit_code, listen, stop_listening

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
