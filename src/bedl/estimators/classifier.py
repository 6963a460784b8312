"""Classification as scikit-learn knows it, with probabilities that know what they do not know."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Real
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
from bedl.estimators.calibration import (
    abstention_threshold,
    checked_label_scores,
    fitted_temperatures,
    held_out_labels,
    tempered,
)
from bedl.estimators.inputs import check_targets
from bedl.evaluation import tasks
from bedl.evaluation.tasks import LabelScores, prediction_sets, set_threshold, set_thresholds_by_class
from bedl.heads.predictive import Predictive
from bedl.methods import registry
from bedl.nn import cached_weights
from bedl.training.data import Points

MAX_NUMERIC_CLASSES = 50  # classes that are numbers, with
MIN_ROWS_PER_CLASS = 10  # rows each, look like quantities
DOUBT = 4.0  # of a temperature, in rows


class BEDLClassifier(ClassifierMixin, BEDLEstimator):
    """Classification by a network with Gaussian weights; two classes or more, or several labels at once.

    Takes the parameters of `BEDLRegressor` but `likelihood`; a `net` of your own needs one output per class. Labels may
    be numbers or texts. A y of shape (n, n_labels) that holds 0 and 1 says which labels a point has: each is predicted
    with a probability of its own.

    Args:
        class_weight: as in scikit-learn: how much points of each class count, by label, or ``"balanced"``: all classes
            the same. Probabilities are then those of a world in which the classes are as frequent as they are weighted.
        temperature_scaling: whether points are held out to fit a temperature of the probabilities (Guo et al. 2017);
            they also decide when to stop, if that is asked for. ``"auto"``: with the methods that need it, ``"images"``
            and ``"bedl+reg"``.

    Attributes:
        classes_: the labels, sorted; the order of the columns of `predict_proba`.
        temperatures_: of `calibrate`, or of `temperature_scaling`: where there is evidence, and where there is none;
            None: as trained.
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
    def __init__(self, *settings: Any, class_weight: Any = None, temperature_scaling: bool | str = "auto", **more: Any):
        super().__init__(*settings, **more)
        self.class_weight = class_weight
        self.temperature_scaling = temperature_scaling

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

    def predict(
        self, X: Any, X_var: Any = None, *, max_risk: float | None = None, confidence: float = 0.95
    ) -> np.ndarray:
        """The most probable class of each point, or which labels it has. shape: (n,) or (n, n_labels)

        Args:
            X: shape (n, n_features)
            X_var: variance of the noise in X, as in `fit`.
            max_risk: abstain on as few points as keep the share of wrong labels among the others at or below this; the
                result is then a masked array, in which the points abstained on are masked.
            confidence: the probability with which that holds, over the rows that were held out to find the limit: those
                of `calibrate`, else those that `fit` predicted out of fold (`estimators.calibration`). They are
                taken to be independent.

        Example:
            >>> import numpy as np
            >>> X = np.random.default_rng(0).normal(size=(400, 1))
            >>> y = (X[:, 0] + 0.3 * np.random.default_rng(1).normal(size=400) > 0).astype(int)
            >>> model = BEDLClassifier(random_state=0, device="cpu").fit(X, y)
            >>> model.predict([[-2.0], [0.0], [2.0]], max_risk=0.05)
            masked_array(data=[0, --, 1],
                         mask=[False,  True, False],
                   fill_value=999999)
        """
        prediction: Any = self.predict_dist(X, X_var)
        if self._several_labels:
            if max_risk is not None:
                raise ValueError("max_risk is for one label per row; there are several labels at once")
            return prediction.label.numpy()
        labels = self.classes_[prediction.label.numpy()]
        if max_risk is None:
            return labels
        for name, value in (("max_risk", max_risk), ("confidence", confidence)):
            if not isinstance(value, Real) or not 0 < value < 1:
                raise ValueError(f"{name} must lie between 0 and 1, not {value!r}")
        limit = abstention_threshold(self._held("max_risk"), float(max_risk), float(confidence))
        top = prediction.log_probabilities.double().amax(-1).exp().numpy()
        return np.ma.masked_array(labels, mask=top < limit - 1e-9)

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds of the second of two classes or of each label, as scikit-learn's scorers rank by; of more classes
        their log-probabilities. shape: (n,), (n, n_labels) or (n, n_classes)
        """
        log_p = self.predict_log_proba(X).astype(np.float64)
        if self._several_labels:
            return log_p - np.log(-np.expm1(np.minimum(log_p, -1e-12)))
        return log_p[:, 1] - log_p[:, 0] if log_p.shape[1] == 2 else log_p

    def predict_set(
        self,
        X: Any,
        coverage: float = 0.9,
        X_var: Any = None,
        *,
        by_class: bool = False,
        randomized: bool = False,
        penalty: float = 0.0,
        n_free: int = 5,
        allow_empty: bool = False,
    ) -> np.ndarray:
        """Sets of classes that hold the label with probability `coverage`: adaptive prediction sets.

        The scores of labels that were not learned from say how large sets have to be: those of `calibrate`, which
        guarantee the coverage for new rows like these; else those of rows that `fit` predicted out of fold, whose
        coverage is close to the nominal one, but not guaranteed. Where there are none (one network, without
        `calibrate`) it is the smallest set whose probabilities reach `coverage`.

        Args:
            X: shape (n, n_features)
            coverage: the probability.
            X_var: variance of the noise in X, as in `fit`.
            by_class: cover each class so, not only all rows together. A class with fewer than coverage / (1 − coverage)
                rows held out is then in all sets.
            randomized: compare with a random share of a class's own probability, as APS was proposed; otherwise with
                half of it, which has the same coverage over all rows, and the same sets for the same rows.
            penalty: added to the score of a class for each class before it, beyond the first `n_free` (RAPS): large
                sets become smaller, and small ones larger. 0: APS.
            n_free: how many.
            allow_empty: otherwise the most probable class is in every set.

        Returns:
            which classes each set holds, in the order of `classes_`. shape: (n, n_classes), bool

        Example:
            >>> import numpy as np
            >>> X = np.random.default_rng(0).normal(size=(400, 1))
            >>> y = (X[:, 0] + 0.3 * np.random.default_rng(1).normal(size=400) > 0).astype(int)
            >>> model = BEDLClassifier(random_state=0, device="cpu").fit(X, y)
            >>> model.predict_set([[-2.0], [0.0], [2.0]], coverage=0.99)
            array([[ True, False],
                   [ True,  True],
                   [False,  True]])
        """
        prediction = self.predict_dist(X, X_var)
        return self.set_of(
            prediction, coverage, by_class=by_class, randomized=randomized, penalty=penalty, n_free=n_free,
            allow_empty=allow_empty,
        )  # fmt: skip

    def set_of(
        self,
        prediction: Any,
        coverage: float = 0.9,
        *,
        by_class: bool = False,
        randomized: bool = False,
        penalty: float = 0.0,
        n_free: int = 5,
        allow_empty: bool = False,
    ) -> np.ndarray:
        """The sets of what `predict_dist` gave, as for `predict_set`. shape: (n, n_classes)"""
        if not isinstance(coverage, Real) or not 0 < coverage < 1:
            raise ValueError(f"coverage must lie between 0 and 1, not {coverage!r}")
        if self._several_labels:
            raise ValueError("prediction sets are for one label per row; there are several labels at once")
        p = prediction.probabilities.double().numpy()
        p = p / p.sum(1, keepdims=True)
        threshold: Any = coverage
        u: Any = np.random.default_rng(self._seed()).uniform(size=len(p)) if randomized else None
        if by_class:
            held = self._held("by_class")
            threshold = set_thresholds_by_class(held, self.n_targets_, float(coverage), penalty, n_free, randomized)
        elif (own := self._held()) is not None:
            threshold = set_threshold(own, float(coverage), penalty, n_free, randomized)
        elif not randomized:
            u = 0.0  # up to the class with which the probabilities reach the coverage
        return prediction_sets(p, threshold, u, penalty, n_free, allow_empty)

    @property
    def has_held_out_labels(self) -> bool:
        """Whether labels that were not learned from calibrate prediction sets."""
        return self._held() is not None

    def _held(self, wanted: str | None = None) -> Any:
        """Scores of labels that were not learned from; an error if they are wanted for something and not there."""
        given = getattr(self, "calibration_", None)
        found = getattr(self, "held_out_", None) if given is None else given
        if found is None and wanted is not None:
            raise ValueError(f"{wanted} needs rows that were not learned from: call calibrate(X, y) before")
        return found

    def predict_dist(self, X: Any, X_var: Any = None) -> Predictive:
        found = super().predict_dist(X, X_var)
        found.held_out = self._held()
        return found

    predict_dist.__doc__ = BEDLEstimator.predict_dist.__doc__

    def predict_proba(self, X: Any, X_var: Any = None) -> np.ndarray:
        """Probabilities of the classes, in the order of `classes_`, or of each label. shape: (n, n_classes)"""
        values = np.exp(self.predict_log_proba(X, X_var).astype(np.float64))
        return values if self._several_labels else values / values.sum(1, keepdims=True)

    def predict_log_proba(self, X: Any, X_var: Any = None) -> np.ndarray:
        """Their logarithms, finite for all. shape: (n, n_classes)"""
        return self.predict_dist(X, X_var).log_probabilities.numpy()  # type: ignore[attr-defined]

    @property
    def chosen_(self) -> str:
        """The method that was fitted, in one line: its options, or its members and their weights."""
        if self.temperatures_ is None:
            return super().chosen_
        known, unknown = self.temperatures_
        return f"{super().chosen_}, temperature {known:.2f}, {unknown:.2f} without evidence"

    def calibrate(self, X: Any, y: Any, X_var: Any = None) -> BEDLClassifier:
        """Scale the temperature of probabilities, and calibrate prediction sets, with rows that were not trained on.

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
            self.calibration_ = held_out_labels(np.exp(tempered(log_p, self.temperatures_, vacuity)), labels)
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
    def _tempered(self) -> bool:
        if self.temperature_scaling not in ("auto", True, False):
            raise ValueError(f"temperature_scaling is True, False or 'auto', not {self.temperature_scaling!r}")
        name = self.built_[0]
        if self.temperature_scaling == "auto":
            return registry.get(name).tempered and not self._several_labels
        if self.temperature_scaling and self._several_labels:
            raise ValueError("temperature_scaling is for one label per row; there are several labels at once")
        if self.temperature_scaling and (self._members()[0].fit_mode == "direct" or registry.get(name).distils):
            raise ValueError(
                f"method {name!r} learns from all rows at once; for temperature_scaling keep some back, and give them "
                "to calibrate(X, y) after fit"
            )
        return bool(self.temperature_scaling)

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
        self.temperatures_ = fitted_temperatures(log_p, truth, counted, doubt=DOUBT, vacuity=vacuity)
        self._hold_out(np.exp(tempered(log_p, self.temperatures_, vacuity)), truth, None)

    def _calibrate_by(self, committee: Any, points: Points) -> None:
        self._calibrate(points)
        self._hold_out(committee.probabilities, committee.observed, committee.row_weights)

    def _hold_out(self, p: np.ndarray, labels: np.ndarray, weight: np.ndarray | None) -> None:
        self.held_out_ = held_out_labels(p.astype(np.float64), labels, weight)

    def _output_names(self) -> Sequence[Any] | None:
        return self.target_names_ if self._several_labels else list(self.classes_)

    def _in_units(self, prediction: Predictive) -> Predictive:
        if self.temperatures_ is None:
            return prediction
        return prediction.tempered(*self.temperatures_)  # type: ignore[attr-defined]

    def _intervals(self) -> dict[str, Any] | None:
        return _plain(None if self._several_labels else self._held())

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
            "held_out_labels": _plain(getattr(self, "held_out_", None)),
            "calibration_labels": _plain(getattr(self, "calibration_", None)),
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
        for name in ("held_out", "calibration"):
            setattr(self, f"{name}_", checked_label_scores(state.get(f"{name}_labels"), self.n_targets_))

    def _names(self) -> dict[str, list[str] | None]:
        names = (self.target_names_ if self._several_labels else None) or [str(label) for label in self.classes_]
        return {f"{tasks.get(self.task_).named}_names": names}


def _plain(held: LabelScores | None) -> dict[str, list[float]] | None:
    return None if held is None else {name: np.round(values, 7).tolist() for name, values in held.items()}


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
