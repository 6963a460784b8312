"""Noisy inputs: sensors that report how precise they are.

Every row comes with the variance of its own noise. Passed as `X_var`, it goes through the network as the
variance of the inputs: rows that were measured badly get wide intervals.
"""

import sys

import numpy as np
import torch

import bedl
from bedl import BEDLRegressor
from bedl.evaluation import metrics

QUICK = "--quick" in sys.argv

rng = np.random.default_rng(0)


def measure(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    true = rng.uniform(-2, 2, (n, 1))
    y = np.sin(2 * true[:, 0]) + 0.1 * rng.normal(size=n)
    noise_std = rng.choice([0.02, 0.4], size=(n, 1))  # half of the sensors are good
    return true + noise_std * rng.normal(size=(n, 1)), noise_std**2, y


X, X_var, y = measure(200 if QUICK else 600)
X_test, X_test_var, y_test = measure(2000)
poor = X_test_var[:, 0] > 0.1
settings = {"epochs": 30 if QUICK else 100, "method": "bedl", "random_state": 0}

told = BEDLRegressor(**settings).fit(X, y, X_var=X_var)
blind = BEDLRegressor(**settings).fit(X, y)

for name, (mean, std), (lower, upper) in (
    ("told the noise", told.predict(X_test, True, X_test_var), told.predict_interval(X_test, 0.9, X_test_var)),
    ("not told", blind.predict(X_test, True), blind.predict_interval(X_test, 0.9)),
):
    print(f"nll, {name}: {metrics.nll_normal(y_test, mean, std):.2f}")
    for kind, rows in (("good", ~poor), ("poor", poor)):
        covered = metrics.coverage(y_test[rows], lower[rows], upper[rows])
        print(f"  {kind} sensors: mean std {std[rows].mean():.2f}, coverage of 90% intervals {covered:.2f}")

# The same without scikit-learn's interface: a network takes Moments wherever it takes a tensor.
inputs = bedl.Moments(torch.tensor(X_test[:4]), torch.tensor(X_test_var[:4]))
print("std from Moments:", (told.method_.predict(inputs).std[:, 0] * told.target_scale_[0]).numpy().round(2))
