"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = [
    "DEBUG",
    "Coverage",
    "Data",
    "Debug",
    "Encoding",
    "Extra",
    "Foreign",
    "Json",
    "Model",
    "Ood",
    "Overwrite",
    "Root",
    "Unknown",
]


DEBUG = "bedl.debug"  # in the context that all verbs share


def _remember_debug(ctx: typer.Context, wanted: bool) -> bool:
    if wanted:
        ctx.meta[DEBUG] = True
    return wanted


Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A .csv, .tsv (also .gz), .parquet or .xlsx file, - for standard input, or a name: digits, diabetes, "
        "breast_cancer, iris, wine (each also with :train or :test), uci:NAME, mnist, fashion_mnist, cifar10.",
        show_default=False,
    ),
]
Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="A folder made by 'bedl fit', or an .onnx file made by 'bedl export'.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, for programs.")]
Debug = Annotated[bool, typer.Option("--debug", callback=_remember_debug, help="Show the traceback of an error.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
Coverage = Annotated[
    float, typer.Option("--coverage", min=0.01, max=0.999, help="Share of the targets that intervals are to hold.")
]
Unknown = Annotated[
    Literal["warn", "ignore", "error"],
    typer.Option("--handle-unknown", help="Categories, or missing values, that training did not see."),
]
Extra = Annotated[Literal["error", "ignore"], typer.Option("--extra", help="Columns that training did not have.")]
Foreign = Annotated[
    Literal["error", "clip", "keep"],
    typer.Option("--on-foreign-values", help="Numbers absurdly far from those of training."),
]
Encoding = Annotated[
    str | None,
    typer.Option("--encoding", metavar="NAME", help="Of a text file, such as latin-1 or utf-16.", show_default="utf-8"),
]
Ood = Annotated[
    str | None,
    typer.Option("--ood", metavar="DATA", help="A table of foreign rows, that the model should be unsure of."),
]
Root = Annotated[
    Path | None,
    typer.Option("--root", metavar="FOLDER", help="Where data sets are; $BEDL_DATA, else ~/.cache/bedl, by default."),
]
