"""`bedl check`: which operations of a network have a rule."""

from __future__ import annotations

from typing import Annotated

import typer

from bedl.cli.options import Debug, Json
from bedl.terminal.screen import print_json
from bedl.terminal.words import sizes

__all__ = ["check"]


def check(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY",
            help="A dotted module or a .py file, and in it a function or class without arguments that makes the "
            "network, or the network itself.",
            show_default=False,
        ),
    ],
    shape: Annotated[
        str | None,
        typer.Option("--input", metavar="SHAPE", help="Of an input, such as 1,3,32,32.", show_default="guessed"),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the operations of a network: exact, approximate, or without a rule.

    This runs your own code: the module is imported and the factory called. Nothing is computed, only shapes are. Exit
    code 1 if an operation has no rule.

    Examples:

      bedl check my_package.networks:resnet --input 1,3,32,32

      bedl check ./network.py:Net
    """
    import torch

    from bedl.checks import check as check_network
    from bedl.nn.factory import network_from

    inputs = () if shape is None else (torch.zeros(sizes(shape), device="meta"),)
    try:
        network = network_from(factory)
    except SyntaxError as error:
        raise typer.BadParameter(str(error)) from None
    found = check_network(network, *inputs)
    if as_json:
        rows = [{"path": o.path, "function": o.function, "answer": o.answer, "supported": o.supported}
                for o in found.operations]  # fmt: skip
        kept = [{"name": name, "type": kind} for name, kind in found.kept]
        print_json(
            {
                "ok": found.ok,
                "verdict": found.verdict,
                "operations": rows,
                "kept_deterministic": kept,
                "failure": found.failure,
            }
        )
    else:
        typer.echo(str(found))
    if not found.ok:
        raise typer.Exit(1)
