"""`bedl check`: which operations of a network have a rule."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from bedl.cli.options import Debug, Json
from bedl.cli.screen import print_json
from bedl.errors import BEDLError

__all__ = ["check"]


class FactoryError(BEDLError, ValueError):
    """There is no network where one was said to be."""


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
    from torch import nn

    from bedl.checks import check as check_network

    inputs = () if shape is None else (torch.zeros(_sizes(shape), device="meta"),)
    network = _made(factory)
    if not isinstance(network, nn.Module):
        raise FactoryError(f"{factory} gives a {type(network).__name__}, not a torch.nn.Module. Name what makes one")
    found = check_network(network, *inputs)
    if as_json:
        rows = [{"path": o.path, "function": o.function, "answer": o.answer, "supported": o.supported}
                for o in found.operations]  # fmt: skip
        kept = [{"name": name, "type": kind} for name, kind in found.kept]
        print_json({"ok": found.ok, "operations": rows, "kept_deterministic": kept, "failure": found.failure})
    else:
        typer.echo(str(found))
    if not found.ok:
        raise typer.Exit(1)


def _sizes(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise typer.BadParameter(f"a shape such as 1,3,32,32, not {text!r}", param_hint="--input")
    return tuple(map(int, text.split(",")))


def _made(factory: str) -> Any:
    place, colon, name = factory.rpartition(":")
    if not colon or not place or not name:
        raise typer.BadParameter(f"MODULE:FACTORY, such as my_networks:resnet, not {factory!r}")
    module = _module(place)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise FactoryError(f"{place} has no {name!r}. Check the name after the colon")
    from torch import nn

    if isinstance(found, nn.Module) or not callable(found):
        return found
    try:
        return found()
    except Exception as error:
        raise FactoryError(
            f"{factory}() raised {type(error).__name__}: {error}. It is called without arguments; --debug shows more"
        ) from error


def _module(place: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
            return importlib.import_module(place)
        path = Path(place)
        if not path.is_file():
            raise FactoryError(f"there is no file {path}. Check the path")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        sys.path.insert(0, str(path.parent.resolve()))
        spec.loader.exec_module(module)
        return module
    except FactoryError:
        raise
    except ModuleNotFoundError as error:
        raise FactoryError(f"{place} cannot be imported: there is no module {error.name!r}") from error
    except Exception as error:  # whatever the user's code raises
        raise FactoryError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
