"""An impossible row in a real table: a diamond whose lengths are all zero. Is it noticed?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.quality import tables
from benchmarks.quality.rows import Cell

__all__ = ["cells", "work"]


def cells(table: str, methods: list[str], part: str, splits: list[int], only: list[str]) -> Iterator[Cell]:
    """One cell for each split."""
    for split in splits:
        yield {"table": table, "dataset": "diamonds", "method": "auto", "part": part, "split": split}


def work(cell: Cell) -> dict[str, float]:
    """The share of rows not learned from whose epistemic variance is as large as the impossible row's."""
    from bedl import BEDLRegressor

    source = next(s for s in tables.TARGETS if s.name == "diamonds")
    X, y = tables.load(source._replace(most=3000))
    X, y = X[(X[["x", "y", "z"]] > 0).all(axis=1)], y[(X[["x", "y", "z"]] > 0).all(axis=1)]
    order = np.random.default_rng(cell["split"]).permutation(len(y))
    learned, fresh = order[:1500], order[1500:]
    model = BEDLRegressor(random_state=cell["split"]).fit(X.iloc[learned], y[learned])
    impossible = X.iloc[fresh[:20]].assign(x=0.0, y=0.0, z=0.0)
    usual = model.uncertainty(X.iloc[fresh]).epistemic.to_numpy()
    odd = model.uncertainty(impossible).epistemic.to_numpy()
    shares = [(usual >= value).mean() for value in odd]
    return {"share_as_unknown": float(np.mean(shares)), "largest_share": float(np.max(shares))}
