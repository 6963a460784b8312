"""`bedl report`: a model and a table → one page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bedl.cli.options import Coverage, Data, Debug, Encoding, Extra, Foreign, Json, Model, Ood, Overwrite, Root, Unseen
from bedl.terminal.screen import print_json, say

__all__ = ["report"]


def report(
    model: Model,
    data: Data,
    ood: Ood = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page.")] = Path("report.html"),
    coverage: Coverage = 0.9,
    unseen: Unseen = "error",
    extra: Extra = "error",
    on_foreign_values: Foreign = "error",
    overwrite: Overwrite = False,
    encoding: Encoding = None,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write one HTML page that shows what the model says, how sure it is, and whether it is right to be.

    The page is a single file, works offline, and shows scores, calibration, both kinds of uncertainty and the most
    uncertain rows; images as images. Without the target column it shows predictions only.

    Examples:

      bedl report houses-model test.csv

      bedl report digits-model digits:test --ood digits:mirrored --out digits.html
    """
    from bedl.files import refuse_unwritable
    from bedl.report import score, write_report
    from bedl.tabular import load
    from bedl.terminal.bars import Bars

    refuse_unwritable(out, overwrite)
    whole = load(model).results(
        data, ood, coverage=coverage, unseen=unseen, extra=extra, on_foreign_values=on_foreign_values,
        encoding=encoding, root=root, need_target=False, examples=True,
        watcher=Bars(),
    )  # fmt: skip
    written = write_report(whole, out, overwrite=overwrite)
    if as_json:
        print_json({"page": str(written.resolve()), "rows": len(whole), "scores": score(whole)})
    else:
        say(f"The page is {written.resolve()}")
