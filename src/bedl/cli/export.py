"""`bedl export`: a model folder → one ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bedl.cli.options import Debug, Json, Model, Overwrite
from bedl.terminal.screen import print_json

__all__ = ["export"]


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

    from bedl.files import refuse_unwritable
    from bedl.tabular import load

    if onnx.suffix.lower() != ".onnx":
        raise typer.BadParameter(f"let the name end in .onnx, not {onnx.name!r}", param_hint="--onnx")
    refuse_unwritable(onnx, overwrite)
    written = load(model).export(onnx, precision=precision, overwrite=overwrite)
    if as_json:
        print_json({**asdict(written), "path": str(written.path)})
    else:
        typer.echo(str(written))
