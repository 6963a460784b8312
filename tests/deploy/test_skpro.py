"""skpro takes the regressor as one of its own, and its distributions are the predictions."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("skpro.regression.base", exc_type=ImportError)
    from bedl.deploy.skpro import BEDLProbaRegressor

import bedl

pytestmark = pytest.mark.filterwarnings("ignore:::(skpro|skbase)")


def table(n: int = 80) -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(n, 2)), columns=["a", "b"], index=range(100, 100 + n))
    y = pd.DataFrame({"u": X["a"] + 0.1 * rng.normal(size=n), "v": 50 * X["b"] + rng.normal(size=n)})
    return X, y


@pytest.mark.parametrize("options", [{"method": "bedl"}, {"method": "bedl", "ensemble": 3}, {"method": "distilled"}])
def test_the_distribution_is_the_prediction(options: dict) -> None:
    X, y = table()
    given = bedl.BEDLRegressor(epochs=3, device="cpu", random_state=0, **options)
    model = BEDLProbaRegressor(given).fit(X, y)
    assert not hasattr(given, "method_")  # a copy was fitted
    said, found = model.estimator_.predict_dist(X), model.predict_proba(X)
    np.testing.assert_allclose(found.mean(), said.mean, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.var(), said.variance, rtol=1e-4)
    np.testing.assert_allclose(found.cdf(y), said.cdf(y.to_numpy()), rtol=1e-4, atol=1e-6)
    if options == {"method": "bedl"}:  # whose targets are independent; a member of a mixture speaks for both
        np.testing.assert_allclose(found.log_pdf(y).sum(axis=1), said.log_prob(y.to_numpy()), rtol=1e-4, atol=1e-4)
    assert list(found.index) == list(X.index)
    interval = model.predict_interval(X, [0.5, 0.9])
    for level in (0.5, 0.9):
        lower, upper = model.estimator_.predict_interval(X, level)
        for number, name in enumerate(y.columns):
            np.testing.assert_allclose(interval[name, level, "lower"], lower[:, number])
            np.testing.assert_allclose(interval[name, level, "upper"], upper[:, number])
    quantiles = model.predict_quantiles(X, [0.05, 0.95])
    np.testing.assert_allclose(quantiles["v", 0.95], interval["v", 0.9, "upper"])


@pytest.mark.slow
def test_skpros_own_checks_pass() -> None:
    from skpro.utils import check_estimator

    check_estimator(BEDLProbaRegressor, raise_exceptions=True)
