"""Scores that several tasks share, and what names of scores mean. A score that cannot be computed is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bedl import metrics

if TYPE_CHECKING:
    from bedl.tasks._results import Results

__all__ = ["DETECTION", "Meaning", "detection", "score"]


class Meaning(NamedTuple):
    """How a score is shown: its label, in what unit or range, and which way is better."""

    label: str
    note: str
    share: bool = False  # shown as a percentage


NLL = Meaning("NLL", "negative log-likelihood in nats, mean per row; lower is better")
DETECTION = {
    "ood_auroc": Meaning(
        "AUROC out-of-domain", "foreign against familiar rows by total uncertainty; 1 perfect, 0.5 chance"
    ),
    "ood_auroc_epistemic": Meaning("AUROC, epistemic", "the same by epistemic uncertainty alone"),
    "ood_aupr": Meaning("AUPR out-of-domain", "average precision of finding foreign rows by total uncertainty"),
    "ood_fpr95": Meaning("FPR95", "familiar rows refused when 95 % of the foreign are; lower is better", share=True),
}


def score(results: Results) -> dict[str, float]:
    """Every score that a record of predictions allows, from all rows; `meanings` says what the names mean.

    Regression scores take the predictions for normal, unless the record knows better (`pit`, `log_density`).

    Example:
        >>> import numpy as np
        >>> from bedl.tasks.regression import RegressionResults
        >>> one = np.ones(2)
        >>> scores = score(RegressionResults(mean=one, std=one, aleatoric_std=one, epistemic_std=0 * one,
        ...                                  lower=one - 1.645, upper=one + 1.645, y=np.array([0.0, 2.0])))
        >>> scores["rmse"], scores["coverage"]
        (1.0, 1.0)
    """
    from bedl.tasks._finding import get

    return get(results.task).scores(results)


def detection(results: Results) -> dict[str, float]:
    """How well the foreign rows of a record are told from its own; nothing without foreign rows."""
    if results.ood is None:
        return {}
    known, foreign = results.uncertainty, results.ood.uncertainty
    return {
        "ood_auroc": metrics.auroc(known, foreign),
        "ood_auroc_epistemic": metrics.auroc(results.epistemic, results.ood.epistemic),
        "ood_aupr": metrics.aupr(known, foreign),
        "ood_fpr95": metrics.fpr_at_tpr(known, foreign),
    }
