"""What the estimators take from scikit-learn, without half of what importing it brings along."""

from bedl._utils.imports import deferred_import, gc_paused

with gc_paused(), deferred_import("pandas", "scipy.special", "scipy.stats"):  # half of its time, and hardly ever used
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.class_weight import compute_sample_weight
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import (
        _check_feature_names,
        _check_feature_names_in,
        _check_n_features,
        _check_sample_weight,
        _check_y,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )

__all__ = [
    "BaseEstimator", "ClassifierMixin", "RegressorMixin", "_check_feature_names", "_check_feature_names_in",
    "_check_n_features", "_check_sample_weight", "_check_y", "check_classification_targets", "check_consistent_length",
    "check_is_fitted", "column_or_1d", "compute_sample_weight", "type_of_target", "validate_data",
]  # fmt: skip
