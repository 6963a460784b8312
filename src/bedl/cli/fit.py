"""`bedl fit`: a table → a model folder."""

from __future__ import annotations

import re
import shlex
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bedl.cli.options import Data, Debug, Json, Overwrite, Root
from bedl.cli.screen import INTERRUPTED, bar, print_json, print_scores, say, say_notes

if TYPE_CHECKING:
    from bedl.cli.fitting import FitSettings, Fitting
    from bedl.data import TableEncoder

__all__ = ["fit"]

_KINDS = {"number": "numbers", "category": "categories", "date": "dates", "boolean": "true or false"}


def _hidden(text: str) -> tuple[int, ...]:
    widths = tuple(int(part) for part in text.split(",")) if re.fullmatch(r"\d+(,\d+)*", text) else ()
    if not widths or min(widths) < 1:
        raise typer.BadParameter(f"widths of hidden layers such as 50 or 100,50, not {text!r}")
    return widths


def _holdout(share: float) -> float:
    if not 0 <= share < 1:
        raise typer.BadParameter(f"a share of the rows, at least 0 and below 1, not {share}")
    return share


def fit(
    data: Data,
    target: Annotated[
        str | None, typer.Option("--target", "-t", metavar="COLUMN", help="The column to predict.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Where the model goes.", show_default="named after DATA"),
    ] = None,
    task: Annotated[
        Literal["auto", "regression", "classification"], typer.Option("--task", help="What the target is.")
    ] = "auto",
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="COLUMN", help="Leave a column out; may be repeated.")
    ] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option("--categorical", metavar="COLUMN", help="Numbers that are labels; may be repeated."),
    ] = None,
    drop_missing_target: Annotated[
        bool, typer.Option("--drop-missing-target", help="Leave out rows without a target.")
    ] = False,
    holdout: Annotated[
        float,
        typer.Option("--holdout", callback=_holdout, help="Share of the rows kept aside and scored at the end."),
    ] = 0.1,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=1, help="How often each row is seen, at most.", show_default="from the data"),
    ] = None,
    ensemble: Annotated[int, typer.Option("--ensemble", min=1, max=1000, help="How many networks are mixed.")] = 1,
    hidden: Annotated[str, typer.Option("--hidden", metavar="WIDTHS", help="Hidden layers, such as 100,50.")] = "50",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of all random choices.")] = 0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, …")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a fit that was interrupted.")] = False,
    overwrite: Overwrite = False,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Learn from a table, and write a model folder.

    Categories, dates and missing values are taken care of, and what was done is said. Rows are read in batches: the
    table may be larger than memory. Training stops by itself. Ctrl-C keeps the last checkpoint; --resume goes on.

    Examples:

      bedl fit houses.csv --target price

      bedl fit patients.parquet --target outcome --ignore patient_id --ensemble 5 --out outcome-model

      bedl fit digits:train

      bedl fit houses.csv --target price --resume
    """
    from bedl.cli.fitting import FitSettings, Fitting
    from bedl.data import open_table

    widths, table = _hidden(hidden), open_table(data, root)
    goal = target or table.default_target
    if goal is None:
        from bedl.data.errors import listed

        raise typer.BadParameter(
            f"which column is to be predicted? {table.name} has {listed(table.columns, 20)}", param_hint="--target"
        )
    settings = FitSettings(
        data, goal, task, tuple(ignore or ()), tuple(categorical or ()), drop_missing_target, holdout, epochs, ensemble,
        widths, seed,
    )  # fmt: skip
    place = out or Path(f"{_stem(data)}-model")
    fitting = Fitting(table, settings, place, overwrite=overwrite, resume=resume)
    try:
        document = _run(fitting, device)
    except KeyboardInterrupt:
        if fitting.partial.exists():
            say(f"Stopped. What was done so far is kept in {fitting.partial}. Go on with:")
            say(f"  {_command(settings, place)} --resume")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(document)
    elif document["scores"]:
        print_scores(document["scores"], f"Scores of {document['rows']['held_out']} rows held out")
    say(f"The model is in {place}. To look at it: bedl report {shlex.quote(str(place))} DATA")


def _run(fitting: Fitting, device: str) -> dict:
    """All steps, with what is said meanwhile."""
    started, table = time.monotonic(), fitting.table
    with bar("reading", None) as advance:
        encoder = fitting.decide(advance)
    _say_columns(encoder)
    with bar("encoding", table.n_rows) as advance:
        rows = fitting.encode(advance)
    from bedl.cli.models import EstimatorModel
    from bedl.cli.predicting import scores_of_encoded
    from bedl.cli.watching import TimedCheckpoints, TrainingBar

    watcher = TrainingBar(fitting.settings.ensemble)
    counts = rows.counts
    say(f"Learning from {counts['training']} rows, {encoder.n_features} features; {counts['held_out']} rows held out.")
    try:
        estimator = fitting.train(rows, device, (watcher, TimedCheckpoints()))
    except Exception:
        fitting.discard()
        raise
    scores = {}
    if rows.held_x is not None and rows.held_y is not None:
        scores = scores_of_encoded(EstimatorModel(str(fitting.place), estimator, encoder), rows.held_x, rows.held_y)
    card = fitting.finish(estimator, rows, scores)
    seconds = time.monotonic() - started
    say(f"Done in {seconds:.1f} s, {watcher.epochs} epochs.")
    return {
        "model": str(fitting.place), "task": card.task, "target": card.target, "data": card.data, "rows": counts,
        "features": encoder.n_features, "classes": encoder.classes, "epochs": watcher.epochs,
        "seconds": round(seconds, 3), "scores": scores, "notes": card.notes,
    }  # fmt: skip


def _say_columns(encoder: TableEncoder) -> None:
    from bedl import tasks

    what = tasks.get(encoder.task).describe(encoder.names)
    kinds = Counter(column["kind"] for column in encoder.to_dict()["columns"])
    columns = ", ".join(f"{count} of {_KINDS.get(kind, kind)}" for kind, count in kinds.items())
    say(f"Target {encoder.target!r}: {what}. Columns: {columns}.")
    say_notes(encoder.notes)


def _stem(data: str) -> str:
    """The name of a table without folders and endings: `a/houses.csv.gz` → `houses`, `uci:yacht` → `uci-yacht`."""
    return re.sub(r"\.(csv|tsv|parquet|pq)(\.gz)?$", "", Path(data).name, flags=re.IGNORECASE).replace(":", "-")


def _command(settings: FitSettings, place: Path) -> str:
    """The command line that asks for these settings."""
    from dataclasses import fields

    words = ["bedl", "fit", settings.data, "--target", settings.target, "--out", str(place)]
    for field in fields(settings)[2:]:
        value, option = getattr(settings, field.name), "--" + field.name.replace("_", "-")
        if value == field.default:
            continue
        if field.name == "hidden":
            words += [option, ",".join(map(str, value))]
        elif isinstance(value, tuple):
            words += [word for name in value for word in (option, name)]
        else:
            words += [option] if value is True else [option, str(value)]
    return shlex.join(words)
