"""A table of one's own: methods on made data, rows that outlive the process, figures with their errors.

`python examples/bench.py rows.jsonl` keeps the rows there; called again, it runs nothing that is there already.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from bedl import BEDLRegressor
from bedl.bench import Cell, Choice, Column, RunResult, Table, row_file, run, sheets, shown
from bedl.bench.regression import regression_scores

QUICK = "--quick" in sys.argv
GIVEN = [word for word in sys.argv[1:] if not word.startswith("-")]


def draw(n: int, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = rng.uniform(-3, 3, (n, 2))
    return x, np.sin(x[:, 0]) + noise * rng.normal(size=n)


class Sines(Table):
    """A data set is an amount of noise; a split is another draw."""

    name, title = "sines", "A sine under noise"
    datasets = ("quiet", "loud")
    methods = {"best": ("deterministic", "bedl+reg", "ensemble")}  # noqa: RUF012
    columns = (
        Column("log_likelihood", "log-likelihood", "higher"),
        Column("coverage", "coverage of 90 % intervals", "target", places=1, share=True, target=0.9),
    )

    def splits(self, dataset: str) -> int:
        return 2 if QUICK else 5

    def work(self, cell: Cell, root: object = None) -> RunResult:
        rng = np.random.default_rng(cell.split)
        noise = {"quiet": 0.1, "loud": 0.5}[cell.dataset]
        epochs = 5 if QUICK else "auto"
        model = BEDLRegressor(method=cell.method, epochs=epochs, random_state=cell.seed, device="cpu")
        model.fit(*draw(300, noise, rng))
        return RunResult(regression_scores(model, *draw(1000, noise, rng)), {"epochs": epochs, "noise": noise})


with tempfile.TemporaryDirectory() as folder:
    rows = row_file(GIVEN[0] if GIVEN else Path(folder, "sines.jsonl"))
    table = Sines()
    print("cells run:", run(table, table.cells(Choice(presets=["best"])), rows))
    print("and again:", run(table, table.cells(Choice(presets=["best"])), rows))
    for sheet in sheets(table, rows.rows()):
        print(f"{sheet.title}: {', '.join(sheet.head)}")
        for line in sheet.lines:
            figures = (shown(entry, column) for entry, column in zip(line.entries, sheet.columns, strict=True))
            print(f"  {line.label:14s}", "  ".join(figures))
