"""`bedl compare`: a table → several methods on the same splits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bedl.cli.console import fit_command, names, print_json, say, stem, widths
from bedl.cli.options import Coverage, Data, Debug, Encoding, Json, Ood, Overwrite, Root, Target, with_reading
from bedl.cli.verbs.fit import targets_of

__all__ = ["compare", "methods"]


@with_reading
def compare(
    data: Data,
    target: Target = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            "-m",
            metavar="NAMES",
            help="Names with commas between them; all: what 'bedl methods' lists.",
            show_default="auto, ensemble, bedl, linear, extra-trees, boosting",
        ),
    ] = None,
    splits: Annotated[int, typer.Option("--splits", min=1, max=1000, help="Number of random splits.")] = 5,
    holdout: Annotated[
        float, typer.Option("--holdout", min=0.01, max=0.9, help="Share of the rows that are held out.")
    ] = 0.2,
    ood: Ood = None,
    leave_out: Annotated[
        str | None,
        typer.Option("--leave-out", metavar="CLASS", help="A class to leave out of training: its rows are OOD."),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=1, help="Passes over the rows.", show_default="that of each method"),
    ] = None,
    hidden: Annotated[
        str,
        typer.Option("--hidden", metavar="WIDTHS", help="Hidden layers, such as 100,50; auto: that of each method."),
    ] = "auto",
    coverage: Coverage = 0.9,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Folder for results; the same command resumes from it."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="An HTML page of the best, with the comparison.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed of splits and training.")] = 0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, …")] = "auto",
    overwrite: Overwrite = False,
    encoding: Encoding = None,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
    *,
    reading: dict[str, Any],
) -> None:
    """Compare methods: train them on the same splits, and score them on the held-out rows.

    By default: bedl's default, an ensemble, a single BEDL network, and scikit-learn's linear model, extremely
    randomised trees and boosting, with noise or temperature from out-of-fold predictions. --methods all: every method.

    Numbers: negative log-likelihood, RMSE, coverage of the intervals, calibration error. Classes: accuracy, negative
    log-likelihood, ECE. With --ood or --leave-out: how well OOD rows are detected. For all: seconds to train, and to
    predict 1,000 rows. Differences to the best have a standard error over the splits; within it two methods are tied.
    With --out, finished runs are kept: the same command resumes, and can add methods or splits.

    Examples:

      bedl compare houses.csv --target price

      bedl compare digits --leave-out 9 --methods auto,edl,mc-dropout,ensemble --out digits-compared

      bedl compare diabetes --page diabetes.html --json
    """
    from bedl._utils.io import check_writable
    from bedl.cli.bars import Bars
    from bedl.cli.console import print_comparison
    from bedl.data import open_table
    from bedl.estimators.tabular import compare as compared

    if page is not None:
        check_writable(page, overwrite)
    table = open_table(data, root, encoding)
    targets = targets_of(table, target)
    chosen = names(methods)
    found = compared(
        table, targets, "all" if chosen == ["all"] else chosen, splits=splits, holdout=holdout, ood=ood,
        leave_out=leave_out, coverage=coverage, epochs=epochs, hidden=widths(hidden) or "auto", out=out,
        overwrite=overwrite, seed=seed, device=device, root=root, callback=Bars("fits"), **reading,
    )  # fmt: skip
    if as_json:
        print_json(found.to_dict())
    else:
        print_comparison(found)
        if found.to_fit is not None:
            options = {"target": targets, **reading, "method": found.to_fit, "encoding": encoding}
            say(f"To train {found.to_fit}:")
            say(f"  {fit_command(data, Path(f'{stem(data)}-model'), options)}")
    if page is not None and found.record is not None:
        say(f"The page is {found.write_page(page, overwrite=overwrite)}.")


# `bedl methods`: what `bedl fit --method` can train.


def methods(as_json: Json = False, debug: Debug = False) -> None:
    """List the methods that can be trained, with a line on each.

    Examples:

      bedl methods

      bedl fit houses.csv --target price --method bedl
    """
    from bedl.methods import registry

    found = {name: registry.get(name) for name in registry.names()}
    if as_json:
        rows = [{"name": name, "summary": entry.summary, "tasks": entry.tasks, "extra": entry.extra}
                for name, entry in found.items()]  # fmt: skip
        print_json({"methods": rows})
        return
    width = max(map(len, found))
    for name, entry in found.items():
        needs = f" (pip install 'bedl[{entry.extra}]')" if entry.extra else ""
        typer.echo(f"{name:<{width}}  {entry.summary}{needs}")
