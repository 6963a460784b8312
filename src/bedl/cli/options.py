"""Options that several verbs share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

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
    "Target",
    "Unknown",
    "with_reading",
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
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")]
Coverage = Annotated[float, typer.Option("--coverage", min=0.01, max=0.999, help="Nominal coverage of the intervals.")]
Unknown = Annotated[
    Literal["warn", "ignore", "error"],
    typer.Option("--handle-unknown", help="Categories or missing values that are not in the training table."),
]
Target = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        "-t",
        metavar="COLUMN",
        show_default=False,
        help="The column to predict; several columns of 0 and 1, or yes and no, with commas or repeated.",
    ),
]
Extra = Annotated[
    Literal["error", "ignore"], typer.Option("--extra", help="Columns that are not in the training table.")
]
Foreign = Annotated[
    Literal["error", "clip", "keep"],
    typer.Option("--on-foreign-values", help="Numbers a million ranges away from those of training."),
]
Encoding = Annotated[
    str | None,
    typer.Option(
        "--encoding", metavar="NAME", help="Encoding of a text file, such as latin-1 or utf-16.", show_default="utf-8"
    ),
]
Ood = Annotated[
    str | None,
    typer.Option("--ood", metavar="DATA", help="A table of out-of-distribution rows."),
]
Root = Annotated[
    Path | None,
    typer.Option("--root", metavar="FOLDER", help="Where data sets are; $BEDL_DATA, else ~/.cache/bedl, by default."),
]


# How a table is read: what `fit` and `compare` share, and hand on as one.


def _task(name: str) -> str:
    from bedl.evaluation import tasks

    known = ["auto", *tasks.names()]
    if name not in known:
        raise typer.BadParameter(f"one of {', '.join(known)}, not {name!r}")
    return name


def _reading(
    task: Annotated[
        str, typer.Option("--task", callback=_task, help="What the target is: auto, regression, classification, …")
    ] = "auto",
    likelihood: Annotated[
        Literal["normal", "log-normal", "logit-normal", "count"] | None,
        typer.Option("--likelihood", help="Likelihood of a numeric target.", show_default="chosen out of fold"),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="COLUMN", help="Leave a column out; may be repeated.")
    ] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option("--categorical", metavar="COLUMN", help="Numbers that are labels; may be repeated."),
    ] = None,
    decimal: Annotated[
        Literal["auto", ".", ","],
        typer.Option("--decimal", help="Decimal separator; auto detects it, with an error if ambiguous."),
    ] = "auto",
    date_order: Annotated[
        Literal["auto", "dmy", "mdy"],
        typer.Option(
            "--date-order", help="Whether day or month comes first; auto detects it, with an error if ambiguous."
        ),
    ] = "auto",
    na_values: Annotated[
        list[str] | None,
        typer.Option("--na-values", metavar="VALUE", help="A marker of missing values, such as -999; may be repeated."),
    ] = None,
    drop_missing_target: Annotated[
        bool, typer.Option("--drop-missing-target", help="Leave out rows without a target.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", metavar="COLUMN", help="Group of a row, such as a patient; groups are held out as a whole."
        ),
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="COLUMN", help="Time of a row; the latest rows are held out.")
    ] = None,
    weight: Annotated[str | None, typer.Option("--weight", metavar="COLUMN", help="Sample weights.")] = None,
) -> None:
    pass


def with_reading(verb: Callable[..., None]) -> Callable[..., None]:
    """Decorator: a verb's parameter ``reading`` becomes the options that say how a table is read, one for each."""
    shared = inspect.signature(_reading, eval_str=True).parameters
    own = inspect.signature(verb, eval_str=True).parameters

    @functools.wraps(verb)
    def called(**given: Any) -> None:
        reading = {name: given.pop(name) for name in shared}
        repeated = ("ignore", "categorical", "na_values")
        verb(**given, reading={name: (value or ()) if name in repeated else value for name, value in reading.items()})

    parameters = [p for name in own for p in (shared.values() if name == "reading" else [own[name]])]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called
