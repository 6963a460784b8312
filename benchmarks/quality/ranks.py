"""Many tables in one line a method: mean rank of the log-likelihood, coverage, error relative to the best."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from scipy.stats import rankdata

from benchmarks.quality.rows import Cell

__all__ = ["ranked"]


def ranked(found: list[Cell], table: str, part: str) -> dict[str, dict[str, float]]:
    """For each method, means over the data sets of their means over splits; ranks count from 1, the best.

    Args:
        found: rows of a bench.
        table, part: which of them.
    """
    means: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    groups: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for row in found:
        if row["table"] == table and row["part"] == part and not row["failed"]:
            groups[row["dataset"], row["method"]].append(row["metrics"])
    for (dataset, method), metrics in groups.items():
        names = [name for name in metrics[0] if all(name in other for other in metrics)]
        means[dataset][method] = {name: float(np.mean([other[name] for other in metrics])) for name in names}
    methods = sorted({method for sets in means.values() for method in sets})
    whole = {name: sets for name, sets in means.items() if set(sets) == set(methods)}
    result: dict[str, dict[str, float]] = {method: {"tables": len(whole)} for method in methods}
    error = "rmse" if table == "targets" else "error"
    # a log-likelihood that is no number is the worst there can be
    losses = [[-np.nan_to_num(sets[m]["log_likelihood"], nan=-np.inf) for m in methods] for sets in whole.values()]
    ranks = np.array([rankdata(own) for own in losses])
    for number, method in enumerate(methods):
        own = [sets[method] for sets in whole.values()]
        best = [min(sets[m][error] for m in methods) for sets in whole.values()]
        result[method] |= {"rank": float(ranks[:, number].mean()), "first on": int((ranks[:, number] == 1).sum())}
        if table == "targets":
            result[method]["rmse over best"] = float(np.mean([o[error] / b for o, b in zip(own, best, strict=True)]))
            result[method] |= {key: float(np.mean([o[key] for o in own])) for key in ("coverage",)}
        else:
            result[method] |= {key: float(np.mean([o[key] for o in own])) for key in ("error", "ece", "brier")}
    return result
