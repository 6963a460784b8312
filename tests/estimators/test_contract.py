"""scikit-learn's own checks of what an estimator is."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from bedl.estimators import BEDLClassifier, BEDLRegressor

# The checks fit some three hundred times; these learn enough in a moment.
QUICK: dict[str, Any] = {
    "method": "bedl", "hidden_layers": (16,), "epochs": 12, "batch_size": 64, "learning_rate": 0.03, "device": "cpu",
    "precision": "double",
}  # fmt: skip


def cannot_hold(estimator: Any) -> dict[str, str]:
    """Copies off the data and folds are drawn for each row: one of weight 2 is worth two on average only.

    And what `fit` has chosen for a table learns from all rows at once, so that `partial_fit` says so after it.
    """
    return {
        "check_sample_weight_equivalence_on_dense_data": "copies and folds are drawn for each row",
        "check_sample_weight_equivalence_on_sparse_data": "copies and folds are drawn for each row",
        "check_fit_score_takes_y": "after fit, a stack refuses partial_fit",
    }


@parametrize_with_checks([BEDLRegressor(**QUICK), BEDLClassifier(**QUICK)])
def test_contract(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*rows are too few to calibrate:UserWarning")
@parametrize_with_checks(
    [BEDLRegressor(device="cpu"), BEDLClassifier(device="cpu")], expected_failed_checks=cannot_hold
)
def test_contract_with_defaults(estimator: Any, check: Any) -> None:
    check(estimator)
