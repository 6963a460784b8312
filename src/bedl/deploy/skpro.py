"""A regressor of skpro, with the whole predictive distribution: skpro's pipelines, tuning and metrics take it."""

from __future__ import annotations

from typing import Any

import numpy as np
from skpro.distributions import Mixture, Normal, TDistribution
from skpro.regression.base import BaseProbaRegressor

import bedl
from bedl._utils.errors import BEDLError
from bedl.heads.predictive import NormalMixturePredictive, NormalPredictive, StudentPredictive

__all__ = ["BEDLProbaRegressor"]


class BEDLProbaRegressor(BaseProbaRegressor):
    """A `BEDLRegressor` with skpro's interface.

    `predict_proba` gives the predictive distribution: a normal, or the mixture of them that ensembles and stacks
    predict. `predict_interval` and `predict_quantiles` are those of `BEDLRegressor`: where rows were held out, they are
    conformally calibrated.

    Args:
        estimator: an unfitted `BEDLRegressor`, which is copied; None: one with the default settings.

    Example:
        >>> import bedl, numpy, pandas
        >>> from bedl.deploy.skpro import BEDLProbaRegressor
        >>> X = pandas.DataFrame({"x": numpy.linspace(-1, 1, 60)})
        >>> y = pandas.DataFrame({"y": 3 * X["x"]})
        >>> model = BEDLProbaRegressor(bedl.BEDLRegressor(method="bedl", epochs=5, device="cpu")).fit(X, y)
        >>> model.predict_proba(X).cdf(y).shape
        (60, 1)
    """

    _tags = {  # noqa: RUF012
        "capability:multioutput": True,
        "capability:missing": True,
        "X_inner_mtype": "pd_DataFrame_Table",
        "y_inner_mtype": "pd_DataFrame_Table",
    }

    def __init__(self, estimator: Any = None):
        self.estimator = estimator
        super().__init__()

    def _fit(self, X: Any, y: Any, C: Any = None) -> BEDLProbaRegressor:
        given = bedl.BEDLRegressor() if self.estimator is None else self.estimator
        self.estimator_ = type(given)(**given.get_params(deep=False))
        self._columns = y.columns
        self.estimator_.fit(_named(X), y.set_axis(_strings(y.columns), axis=1))
        return self

    def _predict(self, X: Any) -> Any:
        return self._frame(X, np.asarray(self.estimator_.predict(_named(X))))

    def _predict_var(self, X: Any) -> Any:
        return self._frame(X, self.estimator_.predict_var(_named(X)).to_numpy())

    def _predict_quantiles(self, X: Any, alpha: list[float]) -> Any:
        import pandas

        found = self.estimator_.predict_quantiles(_named(X), alpha)
        return found.set_axis(pandas.MultiIndex.from_product([self._columns, alpha]), axis=1).set_axis(X.index)

    def _predict_interval(self, X: Any, coverage: list[float]) -> Any:
        import pandas

        ends = [end for level in coverage for end in (0.5 - level / 2, 0.5 + level / 2)]
        columns = pandas.MultiIndex.from_product([self._columns, coverage, ["lower", "upper"]])
        found = [self.estimator_.predict_interval(_named(X), level) for level in coverage]
        parts = [np.asarray(end).reshape(len(X), -1) for pair in found for end in pair]
        values = np.stack(parts, 2)  # shape: (n, targets, coverages · ends)
        assert values.shape[2] == len(ends)
        return pandas.DataFrame(values.reshape(len(X), -1), index=X.index, columns=columns)

    def _predict_proba(self, X: Any) -> Any:
        prediction: Any = self.estimator_.predict_dist(_named(X))
        axes = {"index": X.index, "columns": self._columns}
        if isinstance(prediction, NormalPredictive):
            return Normal(prediction.mean.numpy(), prediction.std.numpy(), **axes)
        if isinstance(prediction, StudentPredictive):
            return TDistribution(prediction.mean.numpy(), prediction.scale.numpy(), prediction.df.numpy(), **axes)
        if isinstance(prediction, NormalMixturePredictive):
            variances = prediction.members_data + prediction.members_distributional + prediction.members_model
            weights = prediction.log_weights.exp()[:, 0]
            if not bool((weights == weights[:1]).all()):
                raise BEDLError("the members' weights differ from row to row, which skpro's Mixture has no place for")
            members = [
                (str(number), Normal(mean.numpy(), variance.sqrt().numpy(), **axes))
                for number, (mean, variance) in enumerate(
                    zip(prediction.means.unbind(-1), variances.unbind(-1), strict=True)
                )
            ]
            return Mixture(members, weights[0].tolist(), **axes)
        raise BEDLError(f"skpro has no distribution for {type(prediction).__name__}; choose likelihood='normal'")

    def _frame(self, X: Any, values: np.ndarray) -> Any:
        import pandas

        return pandas.DataFrame(values.reshape(len(X), -1), index=X.index, columns=self._columns)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Settings for skpro's own tests."""
        small = {"epochs": 2, "device": "cpu", "random_state": 0}
        return [
            {"estimator": bedl.BEDLRegressor(method=method, **options, **small)}
            for method, options in (("bedl", {}), ("evidence", {"ensemble": 2}))
        ]


def _strings(columns: Any) -> list[str]:
    return [str(name) for name in columns]


def _named(X: Any) -> Any:
    return X.set_axis(_strings(X.columns), axis=1)
