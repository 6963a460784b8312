"""`bedl evaluate`: a model and a table with targets → scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bedl.cli.console import print_json, print_scores, say, say_notes
from bedl.cli.options import Coverage, Data, Debug, Encoding, Extra, Foreign, Json, Model, Ood, Overwrite, Root, Unknown


def evaluate(
    model: Model,
    data: Data,
    ood: Ood = None,
    coverage: Coverage = 0.9,
    handle_unknown: Unknown = "warn",
    extra: Extra = "error",
    on_foreign_values: Foreign = "error",
    encoding: Encoding = None,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Score a model on a table that has the target.

    Numbers: negative log-likelihood, RMSE, CRPS, coverage of the intervals, calibration error. Classes: accuracy,
    negative log-likelihood, ECE, Brier score. With --ood: how well out-of-distribution rows are detected (AUROC,
    AUPR, FPR95). Score on rows that were not trained on.

    Examples:

      bedl evaluate houses-model test.csv

      bedl evaluate digits-model digits:test --ood digits:mirrored

      bedl evaluate model.onnx test.parquet --json
    """
    from bedl.cli.bars import Bars
    from bedl.estimators.tabular import load
    from bedl.evaluation.tasks import score

    opened = load(model)
    whole = opened.results(
        data, ood, coverage=coverage, handle_unknown=handle_unknown, extra=extra, on_foreign_values=on_foreign_values,
        encoding=encoding, root=root, callback=Bars(),
    )  # fmt: skip
    scores, rows = score(whole), int(whole.labelled.sum())
    if as_json:
        about = {"model": opened.name, "data": data, "ood": ood, "task": opened.task, "target": opened.encoder.target}
        print_json({**about, "rows": rows, "rows_without_target": len(whole) - rows, "scores": scores})
        return
    print_scores(scores, f"{opened.name} on {data}, {rows} rows" + (f", against {ood}" if ood else ""))
    say_notes(whole.notes)


# `bedl report`: a model and a table → one page to look at.


def report(
    model: Model,
    data: Data,
    ood: Ood = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page.")] = Path("report.html"),
    coverage: Coverage = 0.9,
    handle_unknown: Unknown = "warn",
    extra: Extra = "error",
    on_foreign_values: Foreign = "error",
    overwrite: Overwrite = False,
    encoding: Encoding = None,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write one HTML page: predictions, their uncertainty, calibration, errors, and the columns behind them.

    The page is a single file and works offline. It shows scores, calibration, uncertainty components, the most
    uncertain rows, and importance and drift of the columns. Without the target column it shows predictions only.

    Examples:

      bedl report houses-model test.csv

      bedl report digits-model digits:test --ood digits:mirrored --out digits.html
    """
    from bedl._utils.io import check_writable
    from bedl.cli.bars import Bars
    from bedl.estimators.tabular import load
    from bedl.evaluation.report import score, write_report

    check_writable(out, overwrite)
    whole = load(model).results(
        data, ood, coverage=coverage, handle_unknown=handle_unknown, extra=extra, on_foreign_values=on_foreign_values,
        encoding=encoding, root=root, need_target=False, examples=True,
        callback=Bars(),
    )  # fmt: skip
    written = write_report(whole, out, overwrite=overwrite)
    if as_json:
        print_json({"page": str(written.resolve()), "rows": len(whole), "scores": score(whole)})
    else:
        say(f"The page is {written.resolve()}")
