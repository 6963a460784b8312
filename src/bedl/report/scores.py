"""The scores of results, by name, and what the names mean. A score that cannot be computed is left out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bedl import metrics
from bedl.report.results import ClassificationResults, RegressionResults

__all__ = ["MEANINGS", "Meaning", "pit", "score"]


class Meaning(NamedTuple):
    """How a score is shown: its label, in what unit or range, and which way is better."""

    label: str
    note: str
    share: bool = False  # shown as a percentage


MEANINGS = {
    # real targets
    "nll": Meaning("NLL", "negative log-likelihood in nats, mean per row; lower is better"),
    "rmse": Meaning("RMSE", "root mean squared error, in the target's unit; lower is better"),
    "mae": Meaning("MAE", "mean absolute error, in the target's unit; lower is better"),
    "r2": Meaning("R²", "share of the target's variance explained; 1 is perfect"),
    "crps": Meaning("CRPS", "continuous ranked probability score, in the target's unit; lower is better"),
    "coverage": Meaning("Coverage", "share of observed targets inside their interval", share=True),
    "width": Meaning("Width", "mean width of the intervals, in the target's unit"),
    "calibration_error": Meaning("Calibration error", "mean gap between nominal and observed coverage", share=True),
    "mean_std": Meaning("Mean std", "mean predicted standard deviation, in the target's unit"),
    # classes
    "accuracy": Meaning("Accuracy", "share of rows whose most probable class is right", share=True),
    "brier": Meaning("Brier score", "squared error of the probabilities, 0 to 2; lower is better"),
    "ece": Meaning("ECE", "expected calibration error, 15 bins: mean gap between confidence and accuracy", share=True),
    "aurc": Meaning("AURC", "area under the risk-coverage curve by entropy; lower is better"),
    "mean_entropy": Meaning("Mean entropy", "of the predicted probabilities, in nats"),
    "ecdf_auc": Meaning("ECDF-AUC in-domain", "log C − mean entropy in nats; high is sure"),
    # the out-of-domain set
    "ood_ecdf_auc": Meaning("ECDF-AUC out-of-domain", "log C − mean entropy in nats; low is unsure"),
    "ood_auroc": Meaning(
        "AUROC out-of-domain", "foreign against familiar rows by total uncertainty; 1 perfect, 0.5 chance"
    ),
    "ood_auroc_epistemic": Meaning("AUROC, epistemic", "the same by epistemic uncertainty alone"),
    "ood_aupr": Meaning("AUPR out-of-domain", "average precision of finding foreign rows by total uncertainty"),
    "ood_fpr95": Meaning("FPR95", "familiar rows refused when 95 % of the foreign are; lower is better", share=True),
}


def score(results: RegressionResults | ClassificationResults) -> dict[str, float]:
    """Every score that the results allow, by the names in `MEANINGS`, from all rows.

    Regression scores take the predictions for normal; where they are not, give `pit`, and exact scores of your own to
    `render`.

    >>> one = np.ones(2)
    >>> scores = score(RegressionResults(mean=one, std=one, aleatoric_std=one, epistemic_std=0 * one, lower=one - 1.645,
    ...                                  upper=one + 1.645, y=np.array([0.0, 2.0])))
    >>> scores["rmse"], scores["coverage"]
    (1.0, 1.0)
    """
    values = _regression(results) if isinstance(results, RegressionResults) else _classification(results)
    return {**values, **_detection(results)}


def pit(results: RegressionResults) -> np.ndarray:
    """Probability integral transform of the rows that have a target. shape: (labelled,)"""
    some = results.labelled
    if results.pit is not None:
        return np.asarray(results.pit, float)[some]
    return metrics.pit_normal(results.observed[some], results.mean[some], results.std[some])


def _regression(results: RegressionResults) -> dict[str, float]:
    values: dict[str, float] = {}
    some = results.labelled
    if some.any():
        y, mean, std = results.observed[some], results.mean[some], results.std[some]
        if (std > 0).all():
            values["nll"] = metrics.nll_normal(y, mean, std)
        values |= {
            "rmse": metrics.rmse(y, mean),
            "mae": metrics.mae(y, mean),
            "crps": metrics.crps_normal(y, mean, std),
        }
        if np.ptp(y) > 0:
            values["r2"] = metrics.r2(y, mean)
        values["coverage"] = metrics.coverage(y, results.lower[some], results.upper[some])
    values["width"] = metrics.interval_width(results.lower, results.upper)
    if some.any() and (results.pit is not None or (results.std[some] > 0).all()):
        values["calibration_error"] = metrics.calibration_error(pit(results))
    values["mean_std"] = float(np.mean(results.std, dtype=float))
    return values


def _classification(results: ClassificationResults) -> dict[str, float]:
    values: dict[str, float] = {}
    some = results.labelled
    if some.any():
        labels, table = results.observed[some], results.probabilities[some]
        if results.log_probabilities_of_labels is not None:
            logs = np.asarray(results.log_probabilities_of_labels, float)[some]
        else:
            with np.errstate(divide="ignore"):
                logs = np.log(table[np.arange(len(labels)), labels].astype(float))
        wrong = table.argmax(1) != labels
        values = {
            "accuracy": metrics.accuracy(labels, table),
            "nll": float(-logs.mean()),
            "ece": metrics.ece(labels, table),
            "brier": metrics.brier(labels, table),
            "aurc": metrics.aurc(wrong, results.entropy[some]),
        }
    values["mean_entropy"] = float(np.mean(results.entropy, dtype=float))
    values["ecdf_auc"] = metrics.ecdf_auc(results.entropy, len(results.class_names))
    return values


def _detection(results: Any) -> dict[str, float]:
    if results.ood is None:
        return {}
    known, foreign = results.uncertainty, results.ood.uncertainty
    part = "epistemic_std" if isinstance(results, RegressionResults) else "epistemic_entropy"
    values = {
        "ood_auroc": metrics.auroc(known, foreign),
        "ood_auroc_epistemic": metrics.auroc(getattr(results, part), getattr(results.ood, part)),
        "ood_aupr": metrics.aupr(known, foreign),
        "ood_fpr95": metrics.fpr_at_tpr(known, foreign),
    }
    if isinstance(results, ClassificationResults):
        values["ood_ecdf_auc"] = metrics.ecdf_auc(foreign, len(results.class_names))
    return values
