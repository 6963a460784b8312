"""`bedl evaluate`: a model and a table with targets → scores."""

from __future__ import annotations

from bedl.cli.options import Coverage, Data, Debug, Encoding, Extra, Foreign, Json, Model, Ood, Root, Unseen
from bedl.terminal.screen import print_json, print_scores, say_notes

__all__ = ["evaluate"]


def evaluate(
    model: Model,
    data: Data,
    ood: Ood = None,
    coverage: Coverage = 0.9,
    unseen: Unseen = "error",
    extra: Extra = "error",
    on_foreign_values: Foreign = "error",
    encoding: Encoding = None,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Score a model on a table that has the target.

    Numbers: negative log-likelihood, RMSE, CRPS, coverage of the intervals, calibration error. Classes: accuracy,
    negative log-likelihood, ECE, Brier score. With --ood: how well foreign rows are told from familiar ones (AUROC,
    AUPR, FPR95). Score on rows that were not learned from.

    Examples:

      bedl evaluate houses-model test.csv

      bedl evaluate digits-model digits:test --ood digits:mirrored

      bedl evaluate model.onnx test.parquet --json
    """
    from bedl.tabular import load
    from bedl.tasks import score
    from bedl.terminal.bars import Bars

    opened = load(model)
    whole = opened.results(
        data, ood, coverage=coverage, unseen=unseen, extra=extra, on_foreign_values=on_foreign_values,
        encoding=encoding, root=root, watcher=Bars(),
    )  # fmt: skip
    scores, rows = score(whole), int(whole.labelled.sum())
    if as_json:
        about = {"model": opened.name, "data": data, "ood": ood, "task": opened.task, "target": opened.encoder.target}
        print_json({**about, "rows": rows, "rows_without_target": len(whole) - rows, "scores": scores})
        return
    print_scores(scores, f"{opened.name} on {data}, {rows} rows" + (f", against {ood}" if ood else ""))
    say_notes(whole.notes)
