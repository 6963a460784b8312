"""`bedl fit`: a table → a model folder."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bedl.cli import Stopped, exit_code
from bedl.cli.console import print_json, print_scores, say, widths
from bedl.cli.options import Data, Debug, Encoding, Json, Overwrite, Root, Target, with_reading

if TYPE_CHECKING:
    from bedl.data import Table


def _holdout(share: float) -> float:
    if not 0 <= share < 1:
        raise typer.BadParameter(f"a share of the rows, at least 0 and below 1, not {share}")
    return share


@with_reading
def fit(
    data: Data,
    target: Target = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Where the model goes.", show_default="named after DATA"),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", metavar="NAME", help="The method; 'bedl methods' lists them.")
    ] = "auto",
    holdout: Annotated[
        float,
        typer.Option("--holdout", callback=_holdout, help="Share of the rows that are held out and scored at the end."),
    ] = 0.1,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=1, help="Passes over the rows, at most.", show_default="from the data"),
    ] = None,
    ensemble: Annotated[
        int, typer.Option("--ensemble", min=1, max=1000, help="Number of networks in an ensemble.")
    ] = 1,
    hidden: Annotated[str, typer.Option("--hidden", metavar="WIDTHS", help="Hidden layers, such as 100,50.")] = "auto",
    class_weight: Annotated[
        Literal["balanced"] | None,
        typer.Option("--class-weight", help="balanced: all classes have the same weight."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed.")] = 0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, …")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted fit.")] = False,
    overwrite: Overwrite = False,
    encoding: Encoding = None,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
    *,
    reading: dict[str, Any],
) -> None:
    """Train a model on a table, and write a model folder.

    Categories, dates and missing values are encoded, with a note on each. Rows are read in batches: the table may be
    larger than memory. Training stops early. Ctrl-C keeps the last checkpoint; --resume continues.

    Examples:

      bedl fit houses.csv --target price

      bedl fit patients.parquet --target outcome --ignore patient_id --ensemble 5 --out outcome-model

      bedl fit digits:train

      bedl fit houses.csv --target price --resume
    """
    from bedl.cli.console import fit_command, stem
    from bedl.cli.progress import ConsoleCallback
    from bedl.data import open_table
    from bedl.estimators.tabular import fit as learn
    from bedl.estimators.tabular.folder import partial_of

    started, place, callback = time.monotonic(), out or Path(f"{stem(data)}-model"), ConsoleCallback(ensemble)
    layers, table = widths(hidden), open_table(data, root, encoding)
    options: dict[str, Any] = {
        "target": targets_of(table, target), **reading, "method": method, "holdout": holdout, "epochs": epochs,
        "ensemble": ensemble, "hidden": layers, "class_weight": class_weight, "seed": seed,
    }  # fmt: skip
    try:
        model = learn(table, out=place, device=device, resume=resume, overwrite=overwrite, callback=callback, **options)
    except (KeyboardInterrupt, Stopped) as stop:
        if partial_of(place).exists():
            say(f"Stopped. What was done so far is kept in {partial_of(place)}. Go on with:")
            say(f"  {fit_command(data, place, {**options, 'encoding': encoding})} --resume")
        else:
            say("Stopped.")
        raise typer.Exit(exit_code(stop)) from None
    card, seconds = model.card, time.monotonic() - started
    assert card is not None
    say(f"Done in {seconds:.1f} s, {callback.training.epochs} epochs.")
    if as_json:
        print_json({
            "model": str(place), "task": card.task, "target": card.target, "data": card.data, "rows": card.rows,
            "features": model.encoder.n_features, "classes": model.encoder.classes,
            "epochs": callback.training.epochs, "seconds": round(seconds, 3), "scores": card.scores,
            "notes": card.notes,
        })  # fmt: skip
    elif card.scores:
        print_scores(card.scores, f"Scores of {card.rows['held_out']} rows held out")
    say(f"The model is in {place}. To look at it: bedl report {shlex.quote(str(place))} DATA")


def targets_of(table: Table, named: list[str] | None) -> tuple[str, ...]:
    """The target columns: each --target is one, or several with commas between them, unless a column is called that."""
    from bedl._utils.errors import listed

    found = [part for name in named or () for part in ([name] if name in table.columns else name.split(","))]
    if not found and table.default_target is None:
        raise typer.BadParameter(
            f"which column is to be predicted? {table.name} has {listed(table.columns, 20)}", param_hint="--target"
        )
    return tuple(found or [str(table.default_target)])
