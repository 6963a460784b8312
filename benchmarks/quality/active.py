"""What to label next: rows of which little is known, or rows drawn at random?

Rounds of labelling on UCI's sets. A policy's score is its RMSE on rows that are never labelled, averaged over the
rounds. Rows are chosen as `BEDLRegressor.rows_to_label` does, by their epistemic variances and how far they are apart.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bedl.bench.tables.uci import FOLDERS
from bedl.data import load_uci
from benchmarks.quality.rows import Cell

__all__ = ["cells", "work"]

SETS = ("concrete", "energy", "kin8nm", "power")
FIRST, MORE, ROUNDS, MAX_ROWS = 20, 20, 6, 2000


def cells(table: str, methods: list[str], part: str, splits: list[int], only: list[str]) -> Iterator[Cell]:
    """The cells: both policies from the same first rows."""
    for split in splits:
        for dataset in SETS:
            if only and dataset not in only:
                continue
            for method in ("random", "epistemic"):
                yield {"table": table, "dataset": dataset, "method": method, "part": part, "split": split}


def work(cell: Cell) -> dict[str, float]:
    """One run of labelling; `rmse_k` is that of round k."""
    from bedl import BEDLRegressor

    data = load_uci(FOLDERS[cell["dataset"]])
    rng = np.random.default_rng(cell["split"])
    order = rng.permutation(len(data.y))[:MAX_ROWS]
    pool, test = order[: len(order) // 2], order[len(order) // 2 :]
    labelled = list(pool[:FIRST])
    scores = {}
    for number in range(ROUNDS):
        x = data.x.astype(np.float32)
        model = BEDLRegressor(random_state=cell["split"]).fit(x[labelled], data.y[labelled])
        scores[f"rmse_{number}"] = float(np.sqrt(np.mean((model.predict(x[test]) - data.y[test]) ** 2)))
        rest = np.setdiff1d(pool, labelled)
        if cell["method"] == "epistemic":
            chosen = model.rows_to_label(x[rest], MORE)
        else:
            chosen = rng.permutation(len(rest))[:MORE]
        labelled += list(rest[chosen])
    return {"rmse": float(np.mean(list(scores.values())[1:])), **scores}
