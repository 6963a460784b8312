"""`bedl serve`: a model as an HTTP service."""

from __future__ import annotations

from typing import Annotated

import typer

from bedl.cli.console import say
from bedl.cli.options import Coverage, Debug, Extra, Foreign, Model, Root, Unknown


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
