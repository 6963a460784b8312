"""Intervals as wide as rows that were held out ask for: NumPy alone, for models that run without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["held_out_factor", "with_intervals"]


def held_out_factor(scores: Any, mass: Any, coverage: float) -> np.ndarray:
    """How many spreads hold a new target with probability `coverage`: the ⌈coverage · (n + 1)⌉-th smallest score.

    V. Vovk, "Cross-conformal predictors", Annals of Mathematics and AI 2015. Where so few rows cannot say it, the
    largest score, and at least a normal's.

    Args:
        scores: by how many spreads rows that were held out were missed, ascending. shape: (n, targets)
        mass: how many rows there are up to each, itself included. shape: (n,) or (n, targets)
        coverage: the probability.

    Returns:
        shape (targets,)

    Example:
        >>> held_out_factor([[1.0], [2.0], [3.0], [4.0]], [1, 2, 3, 4], 0.6)
        array([3.])
    """
    from statistics import NormalDist

    scores, mass = np.asarray(scores, dtype=np.float64), np.asarray(mass, dtype=np.float64)
    mass = mass if mass.ndim == 2 else np.broadcast_to(mass[:, None], scores.shape)
    place = (mass < coverage * (mass[-1] + 1) * (1 - 1e-6)).sum(0)  # not one row more for rounding's sake
    few = np.maximum(scores[-1], NormalDist().inv_cdf(0.5 + coverage / 2))
    return np.array([
        scores[row, target] if row < len(scores) else few[target] for target, row in enumerate(place)
    ])  # fmt: skip


def with_intervals(
    outputs: Mapping[str, np.ndarray], intervals: Mapping[str, Sequence[Any]] | None, coverage: float
) -> dict[str, np.ndarray]:
    """The outputs of a model with ``lower`` and ``upper`` as rows held out ask for, where the model knows of such.

    Args:
        outputs: of the model, among them ``mean`` and ``spread``. shapes: (n, targets)
        intervals: ``scores`` and ``mass``, as for `held_out_factor`; None: nothing was held out.
        coverage: the probability.
    """
    found = dict(outputs)
    if intervals is None or "spread" not in outputs:
        return found
    reach = held_out_factor(intervals["scores"], intervals["mass"], coverage) * outputs["spread"]
    return {**found, "lower": outputs["mean"] - reach, "upper": outputs["mean"] + reach}
