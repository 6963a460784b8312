"""`bedl predict`: a model and a table → a table of predictions."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from bedl.cli.options import Coverage, Data, Debug, Extra, Json, Model, Overwrite, Root, Unseen
from bedl.cli.screen import bar, print_json, say

__all__ = ["predict"]


def predict(
    model: Model,
    data: Data,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="A .csv, .tsv, .parquet or .jsonl file.", show_default="CSV on stdout"
        ),
    ] = None,
    coverage: Coverage = 0.9,
    unseen: Unseen = "error",
    extra: Extra = "error",
    overwrite: Overwrite = False,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict each row of a table: value or class, how sure, and why not surer.

    Numbers: prediction, std, lower and upper end of the interval, aleatoric_std (noise) and epistemic_std (what the
    model does not know). Classes: prediction, entropy, aleatoric_entropy and epistemic_entropy in nats, and the
    probability of each class. Rows come in the order of the table and are read in batches. --json without --out prints
    one JSON object per line. An .onnx model runs without PyTorch.

    Examples:

      bedl predict houses-model new.csv --out predictions.csv

      bedl predict model.onnx new.parquet --out predictions.parquet --coverage 0.95

      bedl predict houses-model new.csv --unseen ignore | head
    """
    from bedl.cli.models import open_model
    from bedl.cli.predicting import predicted_columns
    from bedl.data import TableStream, TableWriter, open_table

    started = time.monotonic()
    opened, table = open_model(model), open_table(data, root)
    parts = predicted_columns(opened, table, coverage, unseen, extra)
    if out is None:
        stream = TableStream(sys.stdout.buffer, ".jsonl" if as_json else ".csv")
        for part in parts:
            stream.write(part)
        stream.finish()
        sys.stdout.buffer.flush()
        return
    with TableWriter(out, overwrite) as writer, bar("predicting", table.n_rows) as advance:
        for part in parts:
            writer.write(part)
            advance(len(next(iter(part.values()))))
        columns = list(part)
    if as_json:
        seconds = round(time.monotonic() - started, 3)
        print_json({"predictions": str(out), "rows": writer.rows, "columns": columns, "seconds": seconds})
    else:
        say(f"{writer.rows} predictions are in {out}.")
