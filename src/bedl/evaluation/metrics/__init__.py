"""Scores of predictions: NumPy arrays in, numbers out. No model, no torch.

Rows with NaN, empty arrays and shapes that differ are refused with a `MetricError` (a ValueError) that says what to do.
"""

from bedl.evaluation.metrics._checks import MetricError
from bedl.evaluation.metrics.classification import (
    ReliabilityCurve,
    accuracy,
    balanced_accuracy,
    brier,
    confusion,
    ece,
    entropy,
    nll_categorical,
    one_vs_rest,
    reliability_curve,
)
from bedl.evaluation.metrics.counts import (
    negative_binomial_cdf,
    negative_binomial_log_pmf,
    negative_binomial_quantile,
    nll_negative_binomial,
    pit_negative_binomial,
)
from bedl.evaluation.metrics.ranking import (
    ECDF,
    RiskCoverage,
    ThresholdCurve,
    aupr,
    aurc,
    auroc,
    ecdf,
    ecdf_auc,
    fpr_at_tpr,
    risk_coverage,
    threshold_curve,
)
from bedl.evaluation.metrics.regression import (
    CalibrationCurve,
    calibration_curve,
    calibration_error,
    coverage,
    crps_mixture,
    crps_normal,
    interval_width,
    mae,
    nll_normal,
    pit_normal,
    r2,
    rmse,
)

__all__ = [
    # real targets
    "CalibrationCurve",
    "calibration_curve",
    "calibration_error",
    "coverage",
    "crps_mixture",
    "crps_normal",
    "interval_width",
    "mae",
    "nll_normal",
    "pit_normal",
    "r2",
    "rmse",
    # classes
    "ReliabilityCurve",
    "accuracy",
    "balanced_accuracy",
    "brier",
    "confusion",
    "ece",
    "entropy",
    "nll_categorical",
    "one_vs_rest",
    "reliability_curve",
    # counts
    "negative_binomial_cdf",
    "negative_binomial_log_pmf",
    "negative_binomial_quantile",
    "nll_negative_binomial",
    "pit_negative_binomial",
    # ranking, out-of-distribution detection
    "ECDF",
    "ThresholdCurve",
    "aupr",
    "auroc",
    "ecdf",
    "ecdf_auc",
    "fpr_at_tpr",
    "threshold_curve",
    # selective prediction
    "RiskCoverage",
    "aurc",
    "risk_coverage",
    # errors
    "MetricError",
]
