"""What an import brings along: nothing that most programs never use."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

HEAVY = ("lightning_fabric", "matplotlib", "onnx", "pandas", "scipy.special", "scipy.stats", "sympy", "torch._dynamo")


def test_estimators_bring_no_heavy_modules_that_a_fit_does_not_need():
    names = run(f"from bedl import BEDLRegressor; import sys; print(*(n for n in {HEAVY} if n in sys.modules))")
    old = tuple(map(int, version("scikit-learn").split(".")[:2])) < (1, 7)  # which needs it at once
    assert names.split() == ["scipy.special"] * old


def test_what_was_put_off_is_there_when_it_is_asked_for():
    said = run(
        "from bedl import BEDLRegressor; import sklearn.linear_model, scipy.special, scipy.stats, pandas, gc; "
        "X = pandas.DataFrame({'a': [0.0, 1.0, 2.0, 3.0]}); "
        "model = sklearn.linear_model.LogisticRegression().fit(X, [0, 0, 1, 1]); "
        "print(scipy.special.expit(0.0), scipy.stats.norm.cdf(0.0), *model.predict(X), gc.isenabled())"
    )
    assert said.split() == ["0.5", "0.5", "0", "0", "1", "1", "True"]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
