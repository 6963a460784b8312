"""`bedl data`: standard data sets on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from bedl.cli.console import print_json, say
from bedl.cli.options import Debug, Json, Overwrite, Root

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Standard data sets: list them, download them, check them.\n\nExamples:\n\n  bedl data list\n\n"
    "  bedl data fetch mnist --root ~/data",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="mnist, fashion_mnist, cifar10 or uci.", show_default=False)]


@app.command("list")
def list_(root: Root = None, as_json: Json = False, debug: Debug = False) -> None:
    """List data sets that can be downloaded, and what is there. The others, such as digits, come with scikit-learn.

    Examples:

      bedl data list

      bedl data list --root ~/data --json
    """
    from bedl.data import BUILTIN_NAMES, list_datasets

    found = list_datasets(root)
    downloads = {entry.name for entry in found}
    bundled = [name for name in BUILTIN_NAMES if name not in downloads]
    if as_json:
        rows = [{"name": e.name, "present": e.present, "bytes": e.size, "source": e.source, "folder": str(e.folder)}
                for e in found]  # fmt: skip
        print_json({"bundled": bundled, "downloads": rows})
        return
    for name in bundled:
        typer.echo(f"{name:<14} comes with scikit-learn")
    for entry in found:
        state = (
            f"{entry.size / 1e6:,.1f} MB in {entry.folder}"
            if entry.present
            else f"not here: bedl data fetch {entry.name}"
        )
        typer.echo(f"{entry.name:<14} {state}")


@app.command()
def fetch(
    name: Name,
    base_url: Annotated[
        str | None, typer.Option("--base-url", metavar="URL", help="Another address that has the same files.")
    ] = None,
    overwrite: Overwrite = False,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Download a data set from where it is published; tried again where it breaks off, checked by SHA-256.

    Examples:

      bedl data fetch mnist

      bedl data fetch uci --root ~/data
    """
    from bedl.cli.bars import download_bar
    from bedl.data import fetch as download

    with download_bar() as progress:
        folder = download(name, root, base_url, progress, overwrite)
    if as_json:
        print_json({"name": name, "folder": str(folder)})
    else:
        say(f"{name} is in {folder}.")


@app.command()
def verify(name: Name, root: Root = None, as_json: Json = False, debug: Debug = False) -> None:
    """Compare the files of a data set with what was published. Exit code 1 if any is missing or differs.

    Examples:

      bedl data verify mnist
    """
    from bedl.data import verify as compare

    checks = compare(name, root)
    good = all(part.status == "ok" for part in checks)
    if as_json:
        print_json({"ok": good, "files": [{"path": str(part.path), "status": part.status} for part in checks]})
    else:
        for part in checks:
            typer.echo(f"{part.status:<8} {part.path}")
    if not good:
        raise typer.Exit(1)
