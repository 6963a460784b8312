"""Tabular regression: a mean, an interval and how often the interval is right.

442 diabetes patients, ten measurements each; the target is the progression of the disease after a year.
"""

import sys

from sklearn.datasets import load_diabetes
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import train_test_split

from bedl import BEDLRegressor
from bedl.evaluation import metrics

QUICK = "--quick" in sys.argv

X, y = load_diabetes(return_X_y=True, as_frame=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)

model = BEDLRegressor(epochs=20 if QUICK else "auto", random_state=0).fit(X_train, y_train)
mean, std = model.predict(X_test, return_std=True)
lower, upper = model.predict_interval(X_test, coverage=0.9)

print(model.chosen_)
print(f"rmse: {metrics.rmse(y_test, mean):.1f}")
print(f"rmse of ridge regression: {metrics.rmse(y_test, RidgeCV().fit(X_train, y_train).predict(X_test)):.1f}")
print(f"crps: {metrics.crps_normal(y_test, mean, std):.1f}")
print(f"coverage of 90% intervals: {metrics.coverage(y_test, lower, upper):.2f}")
print(f"width of 90% intervals: {metrics.interval_width(lower, upper):.0f}")
