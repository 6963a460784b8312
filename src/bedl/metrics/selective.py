"""Selective prediction: what remains wrong if the least certain rows are refused."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bedl.metrics._checks import Floats, MetricError, as_rows

__all__ = ["RiskCoverage", "aurc", "risk_coverage"]


class RiskCoverage(NamedTuple):
    """Share of rows that are answered, and the mean loss among these. shapes: (n,), coverage ascending"""

    coverage: Floats
    risk: Floats


def risk_coverage(loss: ArrayLike, uncertainty: ArrayLike) -> RiskCoverage:
    """Mean loss of the k most certain rows, for k = 1 … n. Rows that tie have the mean loss of their group.

    Args:
        loss: of every row: 0 or 1 for right or wrong, a squared error, … shape: (n,)
        uncertainty: the rows with the highest are refused first. shape: (n,)

    >>> risk_coverage([0, 0, 1, 1], [0.1, 0.2, 0.3, 0.4]).risk.round(3).tolist()
    [0.0, 0.0, 0.333, 0.5]
    """
    loss_, uncertainty_ = as_rows(loss=loss, uncertainty=uncertainty)
    if loss_.ndim != 1:
        raise MetricError(f"loss has shape {loss_.shape}: one number per row is needed, shape (n,)")
    _, group, size = np.unique(uncertainty_, return_inverse=True, return_counts=True)
    mean = np.bincount(group, loss_) / size
    kept = np.arange(1, len(loss_) + 1)
    return RiskCoverage(kept / len(loss_), np.cumsum(np.repeat(mean, size)) / kept)


def aurc(loss: ArrayLike, uncertainty: ArrayLike) -> float:
    """Area under the risk-coverage curve: its mean over all coverages. Lower is better. shapes: (n,)

    Y. Geifman et al., ICLR 2019.

    >>> round(aurc([0, 0, 1, 1], [0.1, 0.2, 0.3, 0.4]), 4)
    0.2083
    """
    return float(risk_coverage(loss, uncertainty).risk.mean())
