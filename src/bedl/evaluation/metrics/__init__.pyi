"""The names of bedl.evaluation.metrics and where each comes from; bedl._utils.imports reads them, too."""

# real targets
from bedl.evaluation.metrics.regression import CalibrationCurve as CalibrationCurve
from bedl.evaluation.metrics.regression import calibration_curve as calibration_curve
from bedl.evaluation.metrics.regression import calibration_error as calibration_error
from bedl.evaluation.metrics.regression import coverage as coverage
from bedl.evaluation.metrics.regression import crps_mixture as crps_mixture
from bedl.evaluation.metrics.regression import crps_normal as crps_normal
from bedl.evaluation.metrics.regression import interval_width as interval_width
from bedl.evaluation.metrics.regression import mae as mae
from bedl.evaluation.metrics.regression import nll_normal as nll_normal
from bedl.evaluation.metrics.regression import pit_normal as pit_normal
from bedl.evaluation.metrics.regression import r2 as r2
from bedl.evaluation.metrics.regression import rmse as rmse

# classes
from bedl.evaluation.metrics.classification import ReliabilityCurve as ReliabilityCurve
from bedl.evaluation.metrics.classification import accuracy as accuracy
from bedl.evaluation.metrics.classification import balanced_accuracy as balanced_accuracy
from bedl.evaluation.metrics.classification import brier as brier
from bedl.evaluation.metrics.classification import confusion as confusion
from bedl.evaluation.metrics.classification import ece as ece
from bedl.evaluation.metrics.classification import entropy as entropy
from bedl.evaluation.metrics.classification import nll_categorical as nll_categorical
from bedl.evaluation.metrics.classification import one_vs_rest as one_vs_rest
from bedl.evaluation.metrics.classification import reliability_curve as reliability_curve

# counts
from bedl.evaluation.metrics.counts import negative_binomial_cdf as negative_binomial_cdf
from bedl.evaluation.metrics.counts import negative_binomial_log_pmf as negative_binomial_log_pmf
from bedl.evaluation.metrics.counts import negative_binomial_quantile as negative_binomial_quantile
from bedl.evaluation.metrics.counts import nll_negative_binomial as nll_negative_binomial
from bedl.evaluation.metrics.counts import pit_negative_binomial as pit_negative_binomial

# ranking, out-of-distribution detection
from bedl.evaluation.metrics.ranking import ECDF as ECDF
from bedl.evaluation.metrics.ranking import ThresholdCurve as ThresholdCurve
from bedl.evaluation.metrics.ranking import aupr as aupr
from bedl.evaluation.metrics.ranking import auroc as auroc
from bedl.evaluation.metrics.ranking import ecdf as ecdf
from bedl.evaluation.metrics.ranking import ecdf_auc as ecdf_auc
from bedl.evaluation.metrics.ranking import fpr_at_tpr as fpr_at_tpr
from bedl.evaluation.metrics.ranking import threshold_curve as threshold_curve

# selective prediction
from bedl.evaluation.metrics.ranking import RiskCoverage as RiskCoverage
from bedl.evaluation.metrics.ranking import aurc as aurc
from bedl.evaluation.metrics.ranking import risk_coverage as risk_coverage

# errors
from bedl.evaluation.metrics._checks import MetricError as MetricError
