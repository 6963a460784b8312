"""`bedl check`: which operations of a network have a rule. `bedl export`: a model folder → one ONNX file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bedl._utils.errors import BEDLError
from bedl.cli.console import print_json, sizes
from bedl.cli.options import Debug, Json, Model, Overwrite

if TYPE_CHECKING:
    from torch import nn


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

    from bedl.nn.check import check as check_network

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


# Networks by the place of their code: a module or a file, and what makes one in it.


class FactoryError(BEDLError, ValueError):
    """There is no network where one was said to be."""


def network_from(factory: str) -> nn.Module:
    """The network at ``MODULE:FACTORY``; runs the code there.

    Args:
        factory: a dotted module or a .py file, a colon, and the name of a network, or of what makes one without
            arguments.

    Example:
        >>> network_from("torch.nn:Identity")
        Identity()
    """
    from torch import nn

    place, colon, name = factory.rpartition(":")
    if not colon or not place or not name:
        raise SyntaxError(f"MODULE:FACTORY, such as my_networks:resnet, not {factory!r}")
    module = _module(place)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise FactoryError(f"{place} has no {name!r}. Check the name after the colon")
    if not isinstance(found, nn.Module) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise FactoryError(
                f"{factory}() raised {type(error).__name__}: {error}. It is called without arguments; --debug shows "
                "more"
            ) from error
    if not isinstance(found, nn.Module):
        raise FactoryError(f"{factory} gives a {type(found).__name__}, not a torch.nn.Module. Name what makes one")
    return found


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


# `bedl export`: a model folder → one ONNX file.


def export(
    model: Model,
    onnx: Annotated[Path, typer.Option("--onnx", metavar="FILE", help="The file to write.", show_default=False)],
    precision: Annotated[
        Literal["float32", "float16", "int8"], typer.Option("--precision", help="Of the stored weights.")
    ] = "float32",
    overwrite: Overwrite = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a model as one ONNX graph that runs without PyTorch, and compare the two.

    How to read a table (categories, dates, missing values) is stored in the file, so that 'bedl predict' takes the
    same raw tables. A lower precision makes the file smaller; what it costs is printed.

    Examples:

      bedl export houses-model --onnx houses.onnx

      bedl export houses-model --onnx small.onnx --precision int8

      bedl predict houses.onnx new.csv
    """
    from dataclasses import asdict

    from bedl._utils.io import check_writable
    from bedl.estimators.tabular import load

    if onnx.suffix.lower() != ".onnx":
        raise typer.BadParameter(f"let the name end in .onnx, not {onnx.name!r}", param_hint="--onnx")
    check_writable(onnx, overwrite)
    written = load(model).export(onnx, precision=precision, overwrite=overwrite)
    if as_json:
        print_json({**asdict(written), "path": str(written.path)})
    else:
        typer.echo(str(written))
