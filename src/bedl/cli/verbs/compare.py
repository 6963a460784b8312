"""`bedl compare`: a table → several methods on the same splits; `bedl bench`: the same of the benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bedl.cli.console import fit_command, names, numbers, print_json, say, stem, widths
from bedl.cli.options import Coverage, Data, Debug, Encoding, Json, Ood, Overwrite, Root, Target, with_reading
from bedl.cli.verbs.fit import targets_of


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


# `bedl bench`: the cells of a table → rows → figures beside the published ones.


def bench(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table, or 'page'; 'list' shows them.")],
    preset: Annotated[
        str, typer.Option("--preset", "-p", help="paper, authors, best, or both (paper and best): whose settings.")
    ] = "both",
    datasets: Annotated[
        str | None, typer.Option("--datasets", metavar="NAMES", help="With commas.", show_default="all of the table")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option("--methods", "-m", metavar="NAMES", help="With commas.", show_default="the table's own"),
    ] = None,
    splits: Annotated[
        str | None, typer.Option("--splits", metavar="NUMBERS", help="Such as 0-4 or 0,2,7.", show_default="all")
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", metavar="NUMBERS", help="Random seeds, such as 0-2.")] = "0",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes on this machine.")] = 1,
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", metavar="ADDRESS", help="A Dask scheduler, whose workers run the cells."),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run cells again that failed.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Run nothing, show what is there.")] = False,
    results: Annotated[
        Path, typer.Option("--results", metavar="FOLDER", help="Where rows are: FOLDER/TABLE.jsonl.")
    ] = Path("results"),
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page.")] = Path("bench.html"),
    overwrite: Overwrite = False,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", help="Where data sets are; $BEDL_DATA, else ~/.cache/bedl."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run the paper's tables, and show our figures beside the published ones.

    A finished cell, that is one method on one split of a data set, is a line of JSON in FOLDER/TABLE.jsonl: its
    settings, scores, seconds and versions, or the error. The same command resumes. The preset
    paper has the settings of the paper's text and names each deviation, authors those of its authors' public code, for
    BEDL and BEDL+Reg; best the default settings of each method. 'bedl bench
    page' makes one HTML page of all rows that are there. Where cells failed, the exit code is 1.

    Examples:

      bedl bench uci --preset paper --datasets boston,energy --methods bedl,bedl+reg --jobs 2

      bedl bench uci --show

      bedl bench gap --scheduler tcp://10.0.0.1:8786

      bedl bench page --out bench.html
    """
    from bedl import bench as room
    from bedl.bench.benchmark import KEY
    from bedl.cli.console import print_sheets, say_failures, watching

    if table == "list":
        _list(as_json)
        return
    if table == "page":
        _page(results, out, overwrite, as_json)
        return
    if scheduler is not None and jobs > 1:
        raise typer.BadParameter("a scheduler has workers of its own; leave one of both out", param_hint="--jobs")
    found, rows = room.get(table), room.row_file(results / f"{table}.jsonl")
    choice = room.Choice(
        _presets(preset),
        names(datasets),
        names(methods),
        numbers(splits, "--splits"),
        numbers(seeds, "--seeds") or (0,),
    )
    cells = list(found.cells(choice))
    if not cells:
        raise room.BenchError(f"table {table!r} has no such cells: no data set has these splits with these methods")
    if not show:
        if scheduler is None:
            found.check(choice, data)
        with watching(len([cell for cell in cells if not rows.has(cell.fields, failed=not retry)])) as watch:
            room.run(found, cells, rows, jobs=jobs, scheduler=scheduler, root=data, retry=retry, watch=watch)
    shown = [row for row in rows.rows() if choice.keeps(row)]
    made, failed = room.sheets(found, shown), [row for row in shown if row["failed"]]
    if as_json:
        lost = [{name: row[name] for name in (*KEY, "failed")} for row in failed]
        sheets = [sheet.to_dict() for sheet in made]
        print_json({"table": table, "rows": str(rows.path), "sheets": sheets, "failed": lost})
    else:
        print_sheets(found, made)
    say_failures(failed)
    if failed and not show:
        raise typer.Exit(1)


def _list(as_json: bool) -> None:
    from bedl import bench as room

    titles = {name: room.get(name).title for name in room.names()}
    if as_json:
        print_json(titles)
        return
    for name, title in titles.items():
        typer.echo(f"{name:<16}{title}")


def _page(results: Path, out: Path, overwrite: bool, as_json: bool) -> None:
    from bedl.bench.page import write_page

    written = write_page(results, out, overwrite=overwrite)
    if as_json:
        print_json({"page": str(written.resolve())})
    else:
        say(f"The page is {written.resolve()}")


def _presets(text: str) -> Any:
    from bedl.bench import BOTH, PRESETS

    if text not in (*PRESETS, "both"):
        raise typer.BadParameter(f"{text!r} is none of {', '.join(PRESETS)} and both", param_hint="--preset")
    return BOTH if text == "both" else (text,)
