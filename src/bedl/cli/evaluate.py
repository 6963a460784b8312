"""`bedl evaluate`: a model and a table with targets → scores."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bedl.cli.options import Coverage, Data, Debug, Extra, Json, Model, Ood, Root, Unseen
from bedl.cli.screen import bar, print_json, print_scores, say_notes

if TYPE_CHECKING:
    from bedl.cli.models import TableModel
    from bedl.tasks import Results

__all__ = ["evaluate", "predicted"]


def evaluate(
    model: Model,
    data: Data,
    ood: Ood = None,
    coverage: Coverage = 0.9,
    unseen: Unseen = "error",
    extra: Extra = "error",
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
    from bedl.cli.models import open_model
    from bedl.tasks import score

    opened = open_model(model)
    whole = predicted(opened, data, ood, coverage, unseen, extra, root)
    scores = score(whole)
    if as_json:
        about = {"model": opened.name, "data": data, "ood": ood, "task": opened.encoder.task}
        print_json({**about, "target": opened.encoder.target, "rows": len(whole), "scores": scores})
        return
    print_scores(scores, f"{opened.name} on {data}, {len(whole)} rows" + (f", against {ood}" if ood else ""))
    say_notes(whole.notes)


def predicted(
    model: TableModel,
    data: str,
    ood: str | None,
    coverage: float,
    unseen: str,
    extra: str,
    root: Path | None,
    examples: bool = False,
    need_target: bool = True,
) -> Results:
    """The record of a table, with that of a foreign one inside."""
    from bedl.cli.predicting import results
    from bedl.data import open_table

    table, foreign = open_table(data, root), None if ood is None else open_table(ood, root)
    about = {"model": model.name, "data": table.name, **({} if foreign is None else {"out-of-domain": foreign.name})}
    with_target = need_target or model.encoder.has_target(table.columns)
    with bar("predicting", table.n_rows) as advance:
        whole = results(
            model, table, coverage, unseen, extra,
            with_target=with_target, about=about, examples=examples, progress=advance,
        )  # fmt: skip
    _refuse_unlabelled(whole, table.name, need_target)
    if foreign is not None:
        # These rows are foreign on purpose: what training did not see is taken as it comes.
        with bar("predicting out-of-domain", foreign.n_rows) as advance:
            other = results(
                model, foreign, coverage, "ignore", "ignore", with_target=False, examples=examples, progress=advance
            )
        whole = dataclasses.replace(whole, ood=other)
    return whole


def _refuse_unlabelled(whole: Any, name: str, need_target: bool) -> None:
    if need_target and not whole.labelled.any():
        from bedl.data import DataError

        raise DataError(f"no row of {name} has a target to compare with. Fill it in, or use 'bedl predict'")
