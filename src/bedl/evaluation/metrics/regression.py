"""Scores of real-valued predictions. Every function is a mean over all rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bedl.evaluation.metrics._checks import Floats, MetricError, as_rows, as_table, normal_cdf

LEVELS = tuple(round(0.05 * i, 2) for i in range(1, 20))  # 5 % … 95 %


def rmse(y: ArrayLike, mean: ArrayLike) -> float:
    """Root mean squared error, sqrt(mean (y − mean)²), in the unit of the target. shapes: (n,)

    >>> rmse([0.0, 0.0], [3.0, 4.0]) == 12.5**0.5
    True
    """
    y_, mean_ = as_rows(y=y, mean=mean)
    return float(np.sqrt(np.mean((y_ - mean_) ** 2)))


def mae(y: ArrayLike, mean: ArrayLike) -> float:
    """Mean absolute error, mean |y − mean|, in the unit of the target. shapes: (n,)

    >>> mae([0.0, 0.0], [3.0, -4.0])
    3.5
    """
    y_, mean_ = as_rows(y=y, mean=mean)
    return float(np.mean(np.abs(y_ - mean_)))


def r2(y: ArrayLike, mean: ArrayLike) -> float:
    """Share of the variance explained, 1 − Σ(y − mean)² / Σ(y − ȳ)². shapes: (n,)

    Not defined for a constant target (a single row included), which is refused.

    >>> r2([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])
    0.5
    """
    y_, mean_ = as_rows(y=y, mean=mean)
    total = np.sum((y_ - y_.mean()) ** 2)
    if np.ptp(y_) == 0:
        raise MetricError("r2 is not defined for a constant target: there is no variance to explain")
    return float(1 - np.sum((y_ - mean_) ** 2) / total)


def nll_normal(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Negative log-density of the targets under N(mean, std²), in nats: ½((y − mean)/std)² + log std + ½ log 2π.

    shapes: (n,). A change of the target's unit by a factor a adds log a.

    >>> round(nll_normal([0.0], [0.0], [1.0]), 4)
    0.9189
    """
    y_, mean_, std_ = _with_std(y, mean, std)
    return float(np.mean(0.5 * ((y_ - mean_) / std_) ** 2 + np.log(std_)) + 0.5 * math.log(2 * math.pi))


def crps_normal(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Continuous ranked probability score of N(mean, std²), in the unit of the target. shapes: (n,)

    std·(z(2Φ(z) − 1) + 2φ(z) − 1/√π) with z = (y − mean)/std. T. Gneiting and A. Raftery, JASA 2007, eq. (21).
    As std → 0 it is the absolute error, which is what a std of 0 gives.

    >>> round(crps_normal([0.0], [0.0], [1.0]), 4), crps_normal([2.0], [0.0], [0.0])
    (0.2337, 2.0)
    """
    y_, mean_, std_ = _with_std(y, mean, std, zero=True)
    return float(np.mean(_expected_distance(y_ - mean_, std_) - std_ / math.sqrt(math.pi)))


def crps_mixture(y: ArrayLike, means: ArrayLike, stds: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Continuous ranked probability score of a mixture of normals, in the unit of the target.

    Σᵢ wᵢ E|y − Xᵢ| − ½ Σᵢⱼ wᵢ wⱼ E|Xᵢ − Xⱼ|, each expectation in closed form. E. Grimit et al., QJRMS 2006.

    Args:
        y: shape: (n,)
        means: of the M members. shape: (n, M)
        stds: of the members. shape: (n, M)
        weights: of the members, with sum 1; equal if left out. shape: (M,)

    >>> round(crps_mixture([0.0], [[0.0, 0.0]], [[1.0, 1.0]]), 4)  # two members that agree are one
    0.2337
    """
    (y_,) = as_rows(y=y)
    if y_.ndim != 1:
        raise MetricError(f"y has shape {y_.shape}: one target per row is needed, shape (n,)")
    m, s = as_table("means", means, len(y_)), as_table("stds", stds, len(y_))
    as_rows(means=m, stds=s)
    if (s < 0).any():
        raise MetricError("stds has negative values")
    w = np.full(m.shape[1], 1 / m.shape[1]) if weights is None else as_rows(weights=weights)[0]
    if w.shape != (m.shape[1],) or (w < 0).any() or not math.isclose(w.sum(), 1, rel_tol=1e-6):
        raise MetricError(f"weights must be {m.shape[1]} numbers, none negative, with sum 1")
    score = _expected_distance(y_[:, None] - m, s) @ w
    for i in range(m.shape[1]):  # a loop over members keeps the memory at n × M
        score -= 0.5 * w[i] * (_expected_distance(m - m[:, i : i + 1], np.hypot(s, s[:, i : i + 1])) @ w)
    return float(score.mean())


def coverage(y: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> float:
    """Share of targets inside their interval, ends included; for a calibrated 90 % interval, 0.9. shapes: (n,)

    >>> coverage([0.0, 1.0, 5.0], [-1.0, -1.0, -1.0], [1.0, 1.0, 1.0])
    0.6666666666666666
    """
    y_, lower_, upper_ = as_rows(y=y, lower=lower, upper=upper)
    _ordered(lower_, upper_)
    return float(np.mean((lower_ <= y_) & (y_ <= upper_)))


def interval_width(lower: ArrayLike, upper: ArrayLike) -> float:
    """Mean width of the intervals, in the unit of the target. shapes: (n,)

    >>> interval_width([0.0, 0.0], [1.0, 2.0])
    1.5
    """
    lower_, upper_ = as_rows(lower=lower, upper=upper)
    _ordered(lower_, upper_)
    return float(np.mean(upper_ - lower_))


def pit_normal(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> Floats:
    """Probability integral transform, Φ((y − mean)/std): uniform on [0, 1] if the predictions are calibrated.

    shapes: (n,) -> (n,)

    >>> pit_normal([0.0, 1.0], [0.0, 1.0], [1.0, 2.0])
    array([0.5, 0.5])
    """
    y_, mean_, std_ = _with_std(y, mean, std)
    return normal_cdf((y_ - mean_) / std_)


class CalibrationCurve(NamedTuple):
    """Nominal levels of central intervals, and the share of targets found inside. shapes: (levels,)"""

    nominal: Floats
    observed: Floats


def calibration_curve(pit: ArrayLike, levels: ArrayLike = LEVELS) -> CalibrationCurve:
    """Observed coverage of the central interval of each nominal level.

    A target lies inside the central interval of level p if its probability integral transform (`pit_normal`, or the
    cdf of any other prediction at the target) is at most p/2 away from 1/2.

    >>> calibration_curve([0.5, 0.4, 0.1, 0.95], levels=[0.5, 0.9]).observed
    array([0.5, 1. ])
    """
    (pit_,), (nominal,) = as_rows(pit=pit), as_rows(levels=levels)
    if pit_.min() < 0 or pit_.max() > 1:
        raise MetricError("pit must lie between 0 and 1: it is the predicted cdf at the target (see pit_normal)")
    if nominal.ndim != 1 or nominal.min() < 0 or nominal.max() > 1:
        raise MetricError("levels must be a list of numbers between 0 and 1")
    distance = np.sort(np.abs(2 * pit_.ravel() - 1))
    inside = np.searchsorted(distance, nominal + 1e-12, side="right")  # a target on the end of its interval is inside
    return CalibrationCurve(nominal, inside / distance.size)


def calibration_error(pit: ArrayLike, levels: ArrayLike = LEVELS) -> float:
    """Mean over the levels of |observed − nominal| coverage; 0 is perfect. See `calibration_curve`.

    >>> round(calibration_error([0.5, 0.5], levels=[0.5, 0.9]), 4)  # always inside: far too wide
    0.3
    """
    nominal, observed = calibration_curve(pit, levels)
    return float(np.mean(np.abs(observed - nominal)))


def _expected_distance(difference: Floats, std: Floats) -> Floats:
    """E|X| of X ~ N(difference, std²): 2·std·φ(z) + difference·(2Φ(z) − 1), z = difference/std."""
    z = np.divide(difference, std, out=np.zeros_like(difference), where=std > 0)
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    smooth = 2 * std * density + difference * (2 * normal_cdf(z) - 1)
    return np.where(std > 0, smooth, np.abs(difference))


def _with_std(y: ArrayLike, mean: ArrayLike, std: ArrayLike, *, zero: bool = False) -> list[Floats]:
    arrays = as_rows(y=y, mean=mean, std=std)
    if (arrays[2] < 0).any() or (not zero and (arrays[2] == 0).any()):
        raise MetricError(
            f"std has values {'below 0' if zero else 'that are not positive'}: it is a standard deviation"
        )
    return arrays


def _ordered(lower: Floats, upper: Floats) -> None:
    if (lower > upper).any():
        raise MetricError(f"lower lies above upper in {int((lower > upper).sum())} rows: were they exchanged?")
