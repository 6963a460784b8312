"""Scikit-learn's models beside bedl's methods in a comparison: linear, extremely randomised trees, boosting."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bedl.estimators.calibration import held_out_scores
from bedl.estimators.distill import FOLDS, ClassCommittee, TargetCommittee, default_members, fit_member, fitted
from bedl.estimators.inputs import Related, cut_in_folds
from bedl.evaluation.tasks import held_out_factors
from bedl.heads.predictive import CategoricalPredictive, NormalPredictive

CLASSES = {
    "boosting": "HistGradientBoosting",
    "extra-trees": "ExtraTrees",
    "linear": "Pipeline",
}  # names begin so
TASKS = ("regression", "classification")


class Baseline:
    """A scikit-learn model as a comparison asks for it, with a predictive distribution.

    Out-of-fold predictions give the standard deviation of normal noise, the same for all rows, and the width of
    intervals; or a temperature for the probabilities of classes. The model itself learns from all rows.

    Args:
        name: which one, of `comparison.BASELINES`.
        task: "regression" or "classification".
        seed: of the folds.
    """

    def __init__(self, name: str, task: str, seed: int):
        self.name, self.task, self.seed = name, task, seed

    @staticmethod
    def applies(name: str, task: str, n: int, n_targets: int) -> bool:
        """Whether there is such a model for so many rows and targets or classes."""
        return task in TASKS and _maker(name, task, n, n_targets) is not None

    def fit(
        self, X: np.ndarray, y: np.ndarray, sample_weight: Any = None, groups: Any = None, order: Any = None
    ) -> Any:
        """Learn from encoded rows. Arguments as for `BEDLRegressor.fit`."""
        classes, n = self.task == "classification", len(X)
        n_targets = int(y.max()) + 1 if classes else 1
        y = y if classes else y.reshape(n, 1)
        maker, related = _maker(self.name, self.task, n, n_targets), Related.of(n, groups, order)
        if maker is None:
            raise ValueError(f"{n} rows of {n_targets} classes are too few for {self.name!r}")
        fold = cut_in_folds(n, min(FOLDS, n), self.seed, y if classes else None, related)
        held = int(fold.max()) + (related.order is None)  # nothing is before the first period
        members = fitted([maker], X, y, fold, held, sample_weight, related)
        committee: Any = ClassCommittee(members, n_targets) if classes else TargetCommittee(members)
        if classes:
            committee.fit(X, y, fold, sample_weight)
            self.temperature = float(committee.temperatures[0])
        else:
            own = fold < held
            residual = y[own] - committee.outputs(X[own], fold[own])[:, 0, :1]
            weight = None if sample_weight is None else sample_weight[own]
            self.std = float(np.sqrt(np.average(np.square(residual[:, 0]), weights=weight))) or 1e-12
            self.scores = held_out_scores(residual / self.std, related[own].weights())
        self.said, self.model = committee.said, fit_member(maker, X, y, sample_weight)
        return self

    def predict_dist(self, X: np.ndarray) -> Any:
        """The prediction for encoded rows."""
        said = torch.from_numpy(self.said(self.model, X))
        zero = torch.zeros(len(said), dtype=said.dtype)
        if self.task == "classification":
            log_p = torch.log_softmax(said / self.temperature, -1)
            found = CategoricalPredictive(log_p, zero, zero, zero, torch.zeros_like(log_p))
            found.data = found.entropy  # it tells no parts apart
            return found
        mean = said[:, :1]  # the rest is what networks say of noise
        noise, none = torch.full_like(mean, self.std**2), torch.zeros_like(mean)
        return NormalPredictive(mean, noise, none, none)

    def encoded_dist(self, x: np.ndarray, encoder: Any) -> Any:
        """The same, with a possible value in place of an unknown one."""
        return self.predict_dist(encoder.possible_rows(x, 1)[0] if np.isnan(x).any() else x)

    def interval_of(self, prediction: Any, coverage: float = 0.9) -> Any:
        """Interval as wide as rows held out ask for."""
        below, above = (torch.as_tensor(f).nan_to_num(posinf=10.0) for f in held_out_factors(*self.scores, coverage))
        return prediction.mean - below * self.std, prediction.mean + above * self.std


def _maker(name: str, task: str, n: int, n_targets: int) -> Any:
    """The model of that name among the members of a committee; None: it is not one of them."""
    found = (maker for maker in default_members(task, n, n_targets) if type(maker).__name__.startswith(CLASSES[name]))
    return next(found, None)
