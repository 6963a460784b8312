"""scikit-learn's own checks of what an estimator is."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from bedl.estimators import BEDLClassifier, BEDLRegressor

# The checks fit some three hundred times; these learn enough in a moment.
QUICK = {"hidden_layers": (16,), "epochs": 12, "batch_size": 64, "learning_rate": 0.03, "device": "cpu"}


def cannot_hold(estimator: Any) -> dict[str, str]:
    """Copies off the data are drawn for each row: one of weight 2 is worth two on average, not to the last digit."""
    if isinstance(estimator, BEDLClassifier):
        return {}
    return {"check_sample_weight_equivalence_on_dense_data": "copies are drawn for each row"}


@parametrize_with_checks([BEDLRegressor(**QUICK), BEDLClassifier(**QUICK)], expected_failed_checks=cannot_hold)
def test_contract(estimator: Any, check: Any) -> None:
    check(estimator)


def test_weights_count_to_the_last_digit_where_nothing_is_drawn() -> None:
    name = "check_sample_weight_equivalence_on_dense_data"
    estimator = BEDLRegressor(method="bedl+reg", **QUICK)
    checks = {getattr(check, "func", check).__name__: check for _, check in estimator_checks_generator(estimator)}
    checks[name](estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [BEDLRegressor(device="cpu"), BEDLClassifier(device="cpu")], expected_failed_checks=cannot_hold
)
def test_contract_with_defaults(estimator: Any, check: Any) -> None:
    check(estimator)
