"""Distributions of targets: which fits best is told by rows that are left out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from bedl._utils.errors import DataError, option
from bedl.estimators.inputs import Related, cut_in_folds
from bedl.heads.predictive import (
    LinkedPredictive,
    LogitNormalPredictive,
    LogNormalPredictive,
    NormalMixturePredictive,
    NormalPredictive,
)

_KINDS: dict[str, type[LinkedPredictive] | None] = {
    "normal": None, "log-normal": LogNormalPredictive, "logit-normal": LogitNormalPredictive
}  # fmt: skip
LIKELIHOODS = ("auto", *_KINDS)  # of real targets
FEWEST = 50  # rows that can tell one from another
NUMBERS, ROWS = 2**20, 5000  # that are looked at, at most
FOLDS, BINS = 3, 8
GAIN = 0.01  # nats a row that another likelihood than the normal has to bring, and
DOUBT = 2.0  # standard errors of that


@dataclasses.dataclass(frozen=True)
class Link:
    """How targets follow from what a network predicts.

    Attributes:
        likelihood: "normal", "log-normal" or "logit-normal".
        knee: of `LogNormalPredictive`: logarithms of the largest targets. shape: (targets,)
    """

    likelihood: str
    knee: tuple[float, ...]

    @classmethod
    def of(cls, likelihood: str, y: np.ndarray) -> Link:
        """For these targets; an error if they can be none of the likelihood. y: shape (n, targets)"""
        if likelihood == "normal":
            return cls(likelihood, (0.0,) * y.shape[1])
        wrong = y <= 0 if likelihood == "log-normal" else (y <= 0) | (y >= 1)
        if wrong.any():
            row = int(wrong.any(1).argmax())
            kind = "positive targets" if likelihood == "log-normal" else "targets between 0 and 1, both left out"
            raise DataError(
                f"the likelihood {likelihood!r} is for {kind}; y holds {y[row][wrong[row]][0]:g} in row {row}. Take "
                f"another one ({option('likelihood', 'normal')}), or leave it out"
            )
        return cls(likelihood, tuple(np.log(y.max(0)).tolist()))

    @property
    def kind(self) -> type[LinkedPredictive] | None:
        """The predictions; None: those of the network."""
        return _KINDS[self.likelihood]

    def inverse(self, y: np.ndarray) -> np.ndarray:
        """What the network learns of targets; an error if they can be none of the likelihood. shape: (n, targets)"""
        if self.likelihood == "normal":
            return y
        Link.of(self.likelihood, y)
        if self.likelihood == "logit-normal":
            return np.log(y) - np.log1p(-y)
        knee = np.array(self.knee)
        return np.minimum(np.log(y), knee) + np.maximum(y / np.exp(knee) - 1, 0)

    def log_slope(self, y: np.ndarray) -> np.ndarray:
        """Logarithm of the slope of `inverse`. shape: (n, targets)"""
        if self.likelihood == "normal":
            return np.zeros_like(y)
        if self.likelihood == "logit-normal":
            return -np.log(y) - np.log1p(-y)
        return -np.minimum(np.log(y), np.array(self.knee))

    def predicted(self, prediction: Any) -> Any:
        """The prediction of the targets, from that of the network."""
        if self.kind is None:
            return prediction
        if isinstance(prediction, NormalPredictive):
            prediction = prediction._map(lambda leaf: leaf[None]).mixed()
        if not isinstance(prediction, NormalMixturePredictive):
            raise TypeError(f"likelihood {self.likelihood!r} needs normal predictions, not {type(prediction).__name__}")
        return self.kind.of(prediction, torch.tensor(self.knee, dtype=prediction.means.dtype))

    def described(self) -> dict[str, Any]:
        """For an exported model."""
        return {} if self.kind is None else {"link": self.kind.link_name, "knee": list(self.knee)}

    def to_dict(self) -> dict[str, Any]:
        return {"likelihood": self.likelihood, "knee": list(self.knee)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], n_targets: int) -> Link:
        """The inverse of `to_dict`; files of earlier versions have none."""
        link = cls(fields.get("likelihood", "normal"), tuple(map(float, fields.get("knee", [0.0] * n_targets))))
        if link.likelihood not in _KINDS or len(link.knee) != n_targets or not all(map(math.isfinite, link.knee)):
            raise ValueError(f"the likelihood is {fields}")
        return link


def likeliest_link(X: np.ndarray, y: np.ndarray, weight: np.ndarray | None, related: Related) -> Link:
    """The likelihood that makes rows most likely that are left out, with the normal preferred where others gain little.

    Means are predicted by boosting. Residuals are taken for Student's t, whose scale follows from the mean.

    Args:
        X: shape (n, d)
        y: shape (n, targets)
        weight: how much each row counts; None: all the same. shape: (n,)
        related: which rows are left out together.
    """
    normal = Link.of("normal", y)
    low, high = (y.min(), y.max()) if len(y) else (0.0, 0.0)
    if y.shape[1] != 1 or len(y) < FEWEST or low <= 0 or not high > low:
        return normal
    rows = np.arange(len(y)) if weight is None else np.flatnonzero(weight > 0)
    most = min(ROWS, max(NUMBERS // max(X.shape[1], 1), FEWEST))
    rows = np.sort(np.random.default_rng(0).permutation(rows)[:most])
    whole, X, y = y, np.asarray(X[rows]), y[rows]
    weight = np.ones(len(y)) if weight is None else weight[rows]
    fold = cut_in_folds(len(y), FOLDS, 0, related=Related(groups=related[rows].groups))
    candidates = [Link.of(name, y) for name in ("log-normal", "logit-normal") if name == "log-normal" or high < 1]
    base, best, gain = _log_density(X, y, weight, fold, normal), normal, GAIN
    for link in candidates:
        more = _log_density(X, y, weight, fold, link) - base
        mean = float(np.average(more, weights=weight))
        error = float(np.sqrt(np.average(np.square(more - mean), weights=weight) / len(more)))
        if mean > max(gain, DOUBT * error):
            best, gain = link, mean
    return Link.of(best.likelihood, whole)


def _log_density(X: np.ndarray, y: np.ndarray, weight: np.ndarray, fold: np.ndarray, link: Link) -> np.ndarray:
    """Of each row, by what was learned without its fold. shape: (n,)"""
    from scipy import stats
    from sklearn.ensemble import HistGradientBoostingRegressor  # with all that it imports, slower than a small fit

    u = link.inverse(y)[:, 0]
    mean = np.empty_like(u)
    for number in range(FOLDS):
        out = fold == number
        leaf = max(2, min(20, len(u) // 50))
        model = HistGradientBoostingRegressor(max_iter=60, min_samples_leaf=leaf, random_state=0)
        mean[out] = model.fit(X[~out], u[~out], sample_weight=weight[~out]).predict(X[out])
    residual = u - mean
    bins = np.argsort(np.argsort(mean)) * min(BINS, len(u) // 25) // len(u)
    size = np.array([np.sqrt(np.mean(np.square(residual[bins == number]))) for number in range(bins.max() + 1)])
    z, scale = residual / np.maximum(size[bins], 1e-12), np.maximum(size[bins], 1e-12)
    tails = [stats.t.logpdf(z * (ratio := math.sqrt(df / (df - 2))), df) + math.log(ratio) for df in (2.5, 4, 8, 30)]
    found = max(tails, key=lambda values: float(weight @ values))
    return np.asarray(found - np.log(scale) + link.log_slope(y)[:, 0])
