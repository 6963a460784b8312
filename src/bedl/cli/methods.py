"""`bedl methods`: what `bedl fit --method` can train."""

from __future__ import annotations

import typer

from bedl.cli.options import Debug, Json
from bedl.terminal.screen import print_json

__all__ = ["methods"]


def methods(as_json: Json = False, debug: Debug = False) -> None:
    """List the methods that can be trained, with a line on each.

    Examples:

      bedl methods

      bedl fit houses.csv --target price --method bedl
    """
    from bedl.methods import registry

    found = {name: registry.get(name) for name in registry.names()}
    if as_json:
        rows = [{"name": name, "summary": entry.summary, "tasks": entry.tasks, "extra": entry.extra}
                for name, entry in found.items()]  # fmt: skip
        print_json({"methods": rows})
        return
    width = max(map(len, found))
    for name, entry in found.items():
        needs = f" (pip install 'bedl[{entry.extra}]')" if entry.extra else ""
        typer.echo(f"{name:<{width}}  {entry.summary}{needs}")
