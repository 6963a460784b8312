"""Classification as scikit-learn knows it, with probabilities that know what they do not know."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from bedl.estimators.base import BEDLEstimator
from bedl.heads import Dirichlet
from bedl.objectives import PAC, HyperPrior, Objective

__all__ = ["BEDLClassifier"]


class BEDLClassifier(ClassifierMixin, BEDLEstimator):
    """Classification by a network with Gaussian weights and a Dirichlet head; two classes or more.

    Takes the parameters of `BEDLRegressor`; a `net` of your own needs one output per class. Labels may be numbers or
    texts. ``regularizer="pac"`` is `PAC(evidence="misleading")`: the paper's own term, on all evidence, makes a network
    unsure everywhere, and `PAC(on="perturbed")`, good for images, costs likelihood on small tables.

    Attributes:
        classes_: the labels, sorted; the order of the columns of `predict_proba`.
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

    _presets: ClassVar[dict[str, Objective]] = {
        "pac": PAC(evidence="misleading"),
        "hyperprior": HyperPrior(),
    }

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, X_var: Any = None
    ) -> BEDLClassifier:
        """Learn from some more points: one pass over them. The first call decides the scaling.

        Args:
            X, y, sample_weight, X_var: as in `fit`.
            classes: all labels there will be; needed by the first call, unless its y has them all.
        """
        return self._partial_fit(X, y, sample_weight, X_var, classes)

    def predict(self, X: Any, X_var: Any = None) -> np.ndarray:
        """The most probable label of each point. shape: (n,)"""
        labels = self.predict_dist(X, X_var).label  # type: ignore[attr-defined]
        return self.classes_[labels.numpy()]

    def predict_proba(self, X: Any, X_var: Any = None) -> np.ndarray:
        """Probabilities of the classes, in the order of `classes_`. shape: (n, n_classes)"""
        values = np.exp(self.predict_log_proba(X, X_var).astype(np.float64))
        return values / values.sum(1, keepdims=True)

    def predict_log_proba(self, X: Any, X_var: Any = None) -> np.ndarray:
        """Their logarithms, finite for all classes. shape: (n, n_classes)"""
        return self.predict_dist(X, X_var).log_probabilities.numpy()  # type: ignore[attr-defined]

    def uncertainty(self, X: Any, X_var: Any = None) -> Any:
        """How unsure and why, as a pandas frame in *nats*.

        ``total = aleatoric + epistemic``: the entropy of the probabilities, at most log(n_classes); the entropy that
        would be left if the network were known (classes overlap); and the mutual information of label and network
        (what more data would settle).
        """
        import pandas

        prediction = self.predict_dist(X, X_var)
        total = prediction.entropy.numpy().astype(np.float64)
        aleatoric = np.minimum(prediction.expected_entropy.numpy().astype(np.float64), total)
        columns = {"total": total, "aleatoric": aleatoric, "epistemic": total - aleatoric}
        return pandas.DataFrame(columns, index=getattr(X, "index", None))

    # -- for the base class -----------------------------------------------------------------------
    def _check_arrays(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        X, y = validate_data(self, X, y, reset=reset, dtype=[np.float64, np.float32], allow_nd=self.net is not None)
        check_classification_targets(y)
        return X, y

    def _targets(self, y: np.ndarray, weight: np.ndarray | None, reset: bool, classes: Any) -> np.ndarray:
        if reset:
            self.classes_ = np.unique(y if classes is None else np.asarray(classes))
            if len(self.classes_) < 2:
                raise ValueError(
                    f"BEDLClassifier needs at least 2 classes; the data has one class only: {self.classes_[0]!r}"
                )
        elif classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise ValueError(f"classes are not those of the first call: {list(self.classes_)}")
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(
                f"y holds labels that were not there before: {list(unknown[:5])}; name all in the first call, "
                "partial_fit(X, y, classes=[…]), or start anew with fit and warm_start=False"
            )
        return np.searchsorted(self.classes_, y).astype(np.int64)

    def _head(self) -> Dirichlet:
        return Dirichlet(len(self.classes_))

    def _state(self) -> dict[str, Any]:
        if self.classes_.dtype.kind not in "biufUO" or not all(
            isinstance(label, (str, int, float, bool)) for label in self.classes_.tolist()
        ):
            raise TypeError(f"labels of type {self.classes_.dtype} cannot be saved; use texts or numbers")
        return {"classes": self.classes_.tolist(), "classes_dtype": self.classes_.dtype.str}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.classes_ = np.asarray(state["classes"], dtype=np.dtype(state["classes_dtype"]))

    def _exportable(self) -> Any:
        """What leaves Python: see `bedl.deploy`."""
        return self._export(self._copy(), "classification", class_names=[str(label) for label in self.classes_])
