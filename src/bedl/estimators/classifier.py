"""Classification as scikit-learn knows it, with probabilities that know what they do not know."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from bedl.deploy.wrappers import Tempered
from bedl.estimators._sklearn import (
    ClassifierMixin,
    _check_y,
    check_classification_targets,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    compute_sample_weight,
    type_of_target,
    validate_data,
)
from bedl.estimators.base import PARTS, BEDLEstimator, device_of, parameters_of
from bedl.estimators.calibration import fitted_temperatures
from bedl.estimators.inputs import check_targets
from bedl.evaluation import tasks
from bedl.heads.predictive import Predictive
from bedl.nn import cached_weights
from bedl.training.data import Points

__all__ = ["BEDLClassifier"]


MAX_NUMERIC_CLASSES = 50  # classes that are numbers, with
MIN_ROWS_PER_CLASS = 10  # rows each, look like quantities


class BEDLClassifier(ClassifierMixin, BEDLEstimator):
    """Classification by a network with Gaussian weights; two classes or more, or several labels at once.

    Takes the parameters of `BEDLRegressor` but `likelihood`; a `net` of your own needs one output per class. Labels may
    be numbers or texts. A y of shape (n, n_labels) that holds 0 and 1 says which labels a point has: each is predicted
    with a probability of its own.

    Args:
        class_weight: as in scikit-learn: how much points of each class count, by label, or ``"balanced"``: all classes
            the same. Probabilities are then those of a world in which the classes are as frequent as they are weighted.

    Attributes:
        classes_: the labels, sorted; the order of the columns of `predict_proba`.
        temperatures_: of `calibrate`, or of images that were set aside (method ``"images"``): where there is evidence,
            and where there is none; None: as trained.
        method_, history_, n_features_in_, feature_names_in_: as in `BEDLRegressor`.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(-1, 1, 100)[:, None]
        >>> y = np.where(X[:, 0] > 0, "warm", "cold")
        >>> model = BEDLClassifier(epochs=40, random_state=0, device="cpu").fit(X, y)
        >>> model.predict([[-0.9], [0.9]])
        array(['cold', 'warm'], dtype='<U4')
        >>> model.predict_proba([[-0.9]]).argmax(1)
        array([0])
    """

    temperatures_: tuple[float, float] | None

    @parameters_of(BEDLEstimator.__init__)
    def __init__(self, *settings: Any, class_weight: Any = None, **more: Any):
        super().__init__(*settings, **more)
        self.class_weight = class_weight

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, X_var: Any = None, *, groups: Any = None, order: Any = None
    ) -> Any:
        return super().fit(X, y, self._weights(y, sample_weight), X_var, groups=groups, order=order)

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, X_var: Any = None
    ) -> BEDLClassifier:
        """Learn from some more points: one pass over them. The first call decides the scaling.

        Args:
            X, y, sample_weight, X_var: as in `fit`.
            classes: all labels there will be; needed by the first call, unless its y has them all.
        """
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs to see all points, and partial_fit sees some. Give a weight for each "
                "class: class_weight={label: weight, …}"
            )
        return self._partial_fit(X, y, self._weights(y, sample_weight), X_var, classes)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = "multilabel" in tasks.names()
        return tags

    def predict(self, X: Any, X_var: Any = None) -> np.ndarray:
        """The most probable class of each point, or which labels it has. shape: (n,) or (n, n_labels)"""
        labels = self.predict_dist(X, X_var).label.numpy()  # type: ignore[attr-defined]
        return labels if self._several_labels else self.classes_[labels]

    def predict_proba(self, X: Any, X_var: Any = None) -> np.ndarray:
        """Probabilities of the classes, in the order of `classes_`, or of each label. shape: (n, n_classes)"""
        values = np.exp(self.predict_log_proba(X, X_var).astype(np.float64))
        return values if self._several_labels else values / values.sum(1, keepdims=True)

    def predict_log_proba(self, X: Any, X_var: Any = None) -> np.ndarray:
        """Their logarithms, finite for all. shape: (n, n_classes)"""
        return self.predict_dist(X, X_var).log_probabilities.numpy()  # type: ignore[attr-defined]

    @property
    def chosen_(self) -> str:
        """What was chosen and learned, in one line."""
        if self.temperatures_ is None:
            return super().chosen_
        known, unknown = self.temperatures_
        return f"{super().chosen_}, temperature {known:.2f}, {unknown:.2f} without evidence"

    def calibrate(self, X: Any, y: Any, X_var: Any = None) -> BEDLClassifier:
        """Scale the temperature of probabilities with rows that were not trained on.

        The order of the classes and the shares of the uncertainty components do not change. Where there is no
        evidence, probabilities become more confident only if many of the rows without evidence are predicted rightly.

        Args:
            X: shape (n, n_features)
            y: as in `fit`.
            X_var: variance of the noise in X, as in `fit`.
        """
        check_is_fitted(self, "method_")
        if self._several_labels:
            raise ValueError("calibrate is for one label per row; there are several labels at once")
        before, self.temperatures_ = self.temperatures_, None
        try:
            prediction: Any = self.predict_dist(X, X_var)
            log_p, vacuity = (part.double().numpy() for part in (prediction.log_probabilities, prediction.vacuity))
            labels = self._class_numbers(self._check_y(y), None)
            check_consistent_length(log_p, labels)
            self.temperatures_ = fitted_temperatures(log_p, labels, vacuity=vacuity)
        except BaseException:
            self.temperatures_ = before
            raise
        return self

    def uncertainty(self, X: Any, X_var: Any = None) -> Any:
        """The components of the uncertainty, as a pandas frame in *nats*.

        ``total = aleatoric + epistemic``: the entropy of the probabilities, at most log(n_classes). In three parts,
        ``total = data + distributional + model``: overlap of the classes (aleatoric), lack of evidence, and uncertainty
        about the weights (both epistemic). With several labels at once the columns end in the label's name or number.
        """
        import pandas

        prediction = self.predict_dist(X, X_var)
        columns = {}
        for part in PARTS:
            values = getattr(prediction, part).numpy().astype(np.float64)
            if values.ndim == 1:
                columns[part] = values
                continue
            names = self.target_names_ or self.classes_
            columns.update({f"{part}_{name}": values[:, i] for i, name in enumerate(names)})
        return pandas.DataFrame(columns, index=getattr(X, "index", None))

    def _weights(self, y: Any, sample_weight: Any) -> Any:
        """The weight of each point, that of its class considered. shape: (n,), or None where all count the same"""
        if self.class_weight is None:
            return sample_weight
        if np.ndim(y) > 1 and np.shape(y)[1] > 1:
            raise ValueError("class_weight is for one label a point; with several give sample_weight to fit")
        own = compute_sample_weight(self.class_weight, column_or_1d(y))
        return own if sample_weight is None else own * np.asarray(sample_weight)

    # -- for the base class -----------------------------------------------------------------------
    def _calibrate(self, points: Points) -> None:
        place, chunks = device_of(self.method_), np.array_split(np.arange(points.n), -(-points.n // 500))
        said, lacking, labels, weights = [], [], [], []
        with cached_weights(self.method_):
            for x, y, weight in points.fetch(chunks):
                prediction: Any = self.method_.predict(x.to(place))
                said.append(prediction.log_probabilities.cpu().double().numpy())
                lacking.append(prediction.vacuity.cpu().double().numpy())
                labels.append(y.numpy())
                weights.append(np.ones(len(y)) if weight is None else weight.double().numpy())
        log_p, truth, counted, vacuity = (np.concatenate(some) for some in (said, labels, weights, lacking))
        self.temperatures_ = fitted_temperatures(log_p, truth, counted, doubt=4.0, vacuity=vacuity)

    def _calibrate_by(self, committee: Any, fresh: Points) -> None:
        self._calibrate(fresh)

    def _output_names(self) -> Sequence[Any] | None:
        return self.target_names_ if self._several_labels else list(self.classes_)

    def _in_units(self, prediction: Predictive) -> Predictive:
        if self.temperatures_ is None:
            return prediction
        return prediction.tempered(*self.temperatures_)  # type: ignore[attr-defined]

    def _as_predicted(self, method: nn.Module) -> nn.Module:
        return method if self.temperatures_ is None else Tempered(method, self.temperatures_)

    @property
    def _several_labels(self) -> bool:
        return self.task_ == "multilabel"

    def _check_arrays(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        X, y = validate_data(
            self, X, y, reset=reset, multi_output=_says_several(y), dtype=[np.float64, np.float32],
            allow_nd=self.net is not None,
        )  # fmt: skip
        check_classification_targets(y)
        return X, y

    def _check_y(self, y: Any) -> np.ndarray:
        y = _check_y(y, multi_output=_says_several(y), estimator=self)
        check_classification_targets(y)
        return y

    def _targets(self, y: np.ndarray, weight: np.ndarray | None, reset: bool, classes: Any) -> np.ndarray:
        if reset:
            self.temperatures_ = None
            self.task_ = "classification" if y.ndim == 1 else "multilabel"
            self.classes_ = np.arange(y.shape[1]) if y.ndim == 2 else np.unique(y if classes is None else classes)
            self.n_targets_ = len(self.classes_)
            if classes is None and y.ndim == 1:
                _warn_of_quantities(y, self.n_targets_)
        if (y.ndim == 2) != self._several_labels or (y.ndim == 2 and y.shape[1] != self.n_targets_):
            raise ValueError(f"y of shape {y.shape} is of another kind than that of the first call")
        return self._label_columns(y) if self._several_labels else self._class_numbers(y, classes)

    def _label_columns(self, y: np.ndarray) -> np.ndarray:
        check_targets(self.task_, y)
        return y.astype(np.int64)

    def _class_numbers(self, y: np.ndarray, classes: Any) -> np.ndarray:
        if len(self.classes_) < 2:
            raise ValueError(
                f"BEDLClassifier needs at least 2 classes; the data has one class only: {self.classes_[0]!r}"
            )
        if classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise ValueError(f"classes are not those of the first call: {list(self.classes_)}")
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(
                f"y holds labels that were not there before: {list(unknown[:5])}; name all in the first call, "
                "partial_fit(X, y, classes=[…]), or start anew with fit and warm_start=False"
            )
        return np.searchsorted(self.classes_, y).astype(np.int64)

    def _state(self) -> dict[str, Any]:
        if self.classes_.dtype.kind not in "biufUO" or not all(
            isinstance(label, (str, int, float, bool)) for label in self.classes_.tolist()
        ):
            raise TypeError(f"labels of type {self.classes_.dtype} cannot be saved; use texts or numbers")
        return {
            "classes": self.classes_.tolist(),
            "classes_dtype": self.classes_.dtype.str,
            "task": self.task_,
            "temperature": self.temperatures_,
        }

    def _set_state(self, state: dict[str, Any]) -> None:
        self.classes_ = np.asarray(state["classes"], dtype=np.dtype(state["classes_dtype"]))
        self.task_, self.n_targets_ = state["task"], len(self.classes_)
        stored = state.get("temperature")
        if isinstance(stored, float):  # before version 4 of the format: never bolder where there is no evidence
            stored = (stored, max(stored, 1.0))
        self.temperatures_ = None if stored is None else (float(stored[0]), float(stored[1]))
        if self.temperatures_ is not None and not all(0 < t < float("inf") for t in self.temperatures_):
            raise ValueError(f"the temperatures are {self.temperatures_}")

    def _names(self) -> dict[str, list[str] | None]:
        names = (self.target_names_ if self._several_labels else None) or [str(label) for label in self.classes_]
        return {f"{tasks.get(self.task_).named}_names": names}


def _warn_of_quantities(y: np.ndarray, classes: int) -> None:
    """Say so where labels look like quantities; where most are distinct, scikit-learn says it."""
    if (
        y.dtype.kind in "iuf"
        and MAX_NUMERIC_CLASSES < classes <= round(len(y) / 2)
        and len(y) < MIN_ROWS_PER_CLASS * classes
    ):
        warnings.warn(
            f"y holds {classes} distinct numbers in {len(y)} rows, each taken as a class of its own. If they are "
            "quantities, such as prices, use BEDLRegressor",
            stacklevel=5,
        )


def _says_several(y: Any) -> bool:
    """Whether y says of each point which of several labels it has."""
    table = np.asarray(y)
    return table.ndim == 2 and table.shape[1] > 1 and type_of_target(table) == "multilabel-indicator"
