"""Conformal intervals: MAPIE around BEDLRegressor, for a coverage that is guaranteed on average.

bedl's own intervals are as good as its model; here the noise is skewed, which a normal distribution is not. Conformal
prediction sets the width by the errors on rows that were held back: whatever the model, new rows from the same source
are covered as often as asked for, on average over all of them. With bedl's std as the scale, the noisy rows too.
"""

import sys

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from bedl import BEDLRegressor
from bedl.evaluation import metrics

try:
    from mapie.conformity_scores import ResidualNormalisedScore
    from mapie.regression import SplitConformalRegressor
except ModuleNotFoundError:
    print("skipped: this example needs MAPIE, pip install 'mapie>=1.0'")
    sys.exit(0)

QUICK = "--quick" in sys.argv
LEVEL = 0.9


class Spread(RegressorMixin, BaseEstimator):
    """What a fitted BEDLRegressor predicts as std, as an estimator of its own."""

    def __init__(self, model: BEDLRegressor):
        self.model = model

    def fit(self, X: np.ndarray, y: np.ndarray) -> "Spread":
        self.fitted_ = True  # the model is, and MAPIE asks
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.model.predict(X, return_std=True)[1]


rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, (4000, 1))
scale = np.where(X[:, 0] > 0, 1.0, 0.2)
y = np.sin(2 * X[:, 0]) + scale * (rng.exponential(size=len(X)) - 1)
train, calibration, test = slice(0, 500), slice(500, 1500), slice(1500, None)

model = BEDLRegressor(method="bedl", epochs=20 if QUICK else 60, random_state=0).fit(X[train], y[train])
constant = SplitConformalRegressor(model, confidence_level=LEVEL, prefit=True)
score = ResidualNormalisedScore(Spread(model).fit(X[train], y[train]), prefit=True, sym=True)
scaled = SplitConformalRegressor(model, confidence_level=LEVEL, conformity_score=score, prefit=True)

intervals = {"bedl": model.predict_interval(X[test], LEVEL)}
for name, conformal in (("conformal", constant), ("conformal with bedl's std", scaled)):
    _, ends = conformal.conformalize(X[calibration], y[calibration]).predict_interval(X[test])
    intervals[name] = ends[:, 0, 0], ends[:, 1, 0]

noisy = scale[test] == 1
for name, (lower, upper) in intervals.items():
    parts = [metrics.coverage(y[test][rows], lower[rows], upper[rows]) for rows in (noisy | True, noisy, ~noisy)]
    width = metrics.interval_width(lower, upper)
    print(f"{name}: coverage {parts[0]:.3f} (noisy rows {parts[1]:.3f}, quiet rows {parts[2]:.3f}), width {width:.2f}")
