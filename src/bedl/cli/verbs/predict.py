"""`bedl predict`: a model and a table → a table of predictions; `bedl serve`: a model → an HTTP service."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from bedl.cli.console import print_json, say
from bedl.cli.options import Coverage, Data, Debug, Encoding, Extra, Foreign, Json, Model, Overwrite, Root, Unknown


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
    handle_unknown: Unknown = "warn",
    extra: Extra = "error",
    on_foreign_values: Foreign = "error",
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="COLUMN", help="A column to pass through to the predictions; may be repeated."),
    ] = None,
    row_numbers: Annotated[
        bool, typer.Option("--row-numbers", help="Add a first column with row numbers, from 1.")
    ] = False,
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", metavar="ADDRESS", help="A Dask scheduler, whose workers predict the files."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes, for several files.")] = 1,
    overwrite: Overwrite = False,
    encoding: Encoding = None,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict each row of a table: value or class, uncertainty, and its components.

    Numbers: prediction, std, lower and upper end of the interval, aleatoric_std (noise, not explained by this model)
    and epistemic_std. Classes: prediction, entropy, aleatoric_entropy and epistemic_entropy in nats, and the
    probability of each class. Then the three components: data_… is noise, distributional_… lack of evidence, model_…
    uncertainty about the weights; the latter two make up epistemic_…. Variances (squared stds) add up, and so do
    entropies. Rows keep the order of the table and are read in batches. --json without --out prints one JSON object
    per line. An .onnx model runs without PyTorch.

    A pattern in quotes, such as 'part-*.parquet', stands for several files: --out is then a folder that gets a file of
    predictions for each. With --scheduler the workers of a Dask cluster predict them, from an .onnx model; all of them
    need access to files, model and folder. The same command resumes, and predicts changed files again.

    Examples:

      bedl predict houses-model new.csv --out predictions.csv

      bedl predict model.onnx new.parquet --out predictions.parquet --coverage 0.95

      bedl predict houses-model new.csv --handle-unknown error | head

      bedl predict model.onnx 'part-*.parquet' --out predictions --scheduler tcp://10.0.0.1:8786

      zcat new.csv.gz | bedl predict houses-model - --keep house_id > predictions.csv
    """
    from bedl.cli.bars import Bars
    from bedl.data import TableStream
    from bedl.estimators.tabular import load
    from bedl.estimators.tabular.many_files import is_pattern

    started = time.monotonic()
    options: dict[str, Any] = {
        "coverage": coverage, "handle_unknown": handle_unknown, "extra": extra, "on_foreign_values": on_foreign_values,
        "keep": keep or (), "row_numbers": row_numbers, "encoding": encoding, "root": root,
    }  # fmt: skip
    if is_pattern(data):
        _predict_parts(model, data, out, as_json, scheduler=scheduler, jobs=jobs, overwrite=overwrite, **options)
        return
    if scheduler is not None or jobs > 1:
        raise typer.BadParameter("several files are needed, such as 'part-*.parquet'", param_hint="DATA")
    opened = load(model)
    if out is None:
        stream = TableStream(sys.stdout.buffer, ".jsonl" if as_json else ".csv")
        for part in opened.stream(data, **options):
            stream.write(part)
        stream.finish()
        sys.stdout.buffer.flush()
        return
    written: Any = opened.predict(data, out, overwrite=overwrite, callback=Bars(), **options)
    if as_json:
        seconds = round(time.monotonic() - started, 3)
        print_json({"predictions": str(out), "rows": written.rows, "columns": written.columns, "seconds": seconds})
    else:
        say(f"{written.rows} predictions are in {out}.")


def _predict_parts(model: Path, pattern: str, out: Path | None, as_json: bool, **options: Any) -> None:
    """Files that a pattern stands for, each by itself."""
    from bedl._utils.errors import listed
    from bedl.cli.bars import Bars
    from bedl.estimators.tabular.many_files import predict_parts

    if out is None:
        raise typer.BadParameter("several files need a folder for their predictions", param_hint="--out")
    found = predict_parts(model, pattern, out, callback=Bars("files"), **options)
    rows = sum(part.rows for part in found.written)
    if as_json:
        counts = {"files": len(found.written), "rows": rows, "skipped": found.skipped, "changed": len(found.changed)}
        print_json({"predictions": str(out), **counts})
    else:
        before = f" {found.skipped} files were done before." if found.skipped else ""
        names = listed([part.name for part in found.changed])
        again = f" Changed since, and predicted anew: {names}." if found.changed else ""
        say(f"{rows} predictions of {len(found.written)} files are in {out}.{before}{again}")


# `bedl serve`: a model as an HTTP service.


def serve(
    model: Model,
    host: Annotated[str, typer.Option("--host", help="Address to listen at; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=1, max=65535, help="Port to listen at.")] = 8000,
    coverage: Coverage = 0.9,
    handle_unknown: Unknown = "warn",
    extra: Extra = "error",
    on_foreign_values: Foreign = "error",
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference", metavar="DATA", help="Rows whose epistemic share is the reference of the drift gauge."
        ),
    ] = None,
    max_rows: Annotated[int, typer.Option("--max-rows", min=1, help="Rows of one request.")] = 10_000,
    max_megabytes: Annotated[float, typer.Option("--max-megabytes", min=0.001, help="Size of one request.")] = 16.0,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds until a request is given up.")] = 30.0,
    root: Root = None,
    debug: Debug = False,
) -> None:
    """Serve a model over HTTP: predictions with intervals and uncertainty components, until Ctrl-C.

    POST /predict takes rows as JSON, CSV or Arrow, and answers in the format of the Accept header. The address itself
    is a page where a CSV file can be dropped. /openapi.json describes rows and predictions, /health says that the
    service is up, and /metrics is for Prometheus; there, bedl_epistemic_share rises when rows drift away from those of
    training. There is no authentication: put the service behind a proxy that has it.

    Examples:

      bedl serve houses-model --port 8000

      curl -H 'Content-Type: text/csv' --data-binary @new.csv http://127.0.0.1:8000/predict

      bedl serve model.onnx --host 0.0.0.0 --reference held-out.csv
    """
    from bedl.data import open_table
    from bedl.deploy.serve import ServeOptions
    from bedl.deploy.serve import serve as run
    from bedl.estimators.tabular import load

    table = {"handle_unknown": handle_unknown, "extra": extra, "on_foreign_values": on_foreign_values}
    options = ServeOptions(coverage, table, max_rows, int(max_megabytes * 2**20), timeout)
    opened = load(model)
    rows = None if reference is None else open_table(reference, root)
    say(f"Serving {model} at http://{host}:{port} (Ctrl-C stops it).")
    run(opened, options, host=host, port=port, reference=rows)
