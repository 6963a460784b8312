"""Counts: whole numbers from 0 on, each with a mean, a standard deviation and an interval of whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from bedl.evaluation import metrics
from bedl.evaluation.tasks._base import Quantities
from bedl.evaluation.tasks._results import ResultsError
from bedl.evaluation.tasks.regression import Regression, RegressionResults


class CountResults(RegressionResults):
    """Predictions of one count: the fields of `RegressionResults`; `pit` is the mid-PIT of a negative binomial."""

    task: ClassVar[str] = "count"

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.labelled
        if TASK.validation_error(self.observed[known]) is not None:
            raise ResultsError("observed counts must be whole numbers from 0 on")
        if self.pit is None and known.any():
            pit = np.full(len(self), 0.5)
            pit[known] = metrics.pit_negative_binomial(self.observed[known], self.mean[known], self.std[known])
            object.__setattr__(self, "pit", pit)


class Count(Regression):
    """Counts, one or several: whole numbers from 0 on."""

    name = "count"
    automatic = False  # numbers are counts only if somebody says so
    options = MappingProxyType({"likelihood": "count"})
    record: ClassVar[type[CountResults]] = CountResults
    meanings = MappingProxyType({key: said for key, said in Regression.meanings.items() if key != "crps"})

    def validation_error(self, y: np.ndarray) -> tuple[int, str] | None:
        wrong = (y < 0) | (y != np.floor(y))
        return (int(wrong.argmax()), f"{y[wrong][0]:g} is no whole number from 0 on") if wrong.any() else None

    def interval(self, quantities: Quantities, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the central interval of the negative binomial with this mean and std. shapes: (n, targets)"""
        if "lower" in quantities:
            return quantities["lower"], quantities["upper"]
        ends = (0.5 - coverage / 2, 0.5 + coverage / 2)
        lower, upper = (metrics.negative_binomial_quantile(q, quantities["mean"], quantities["std"]) for q in ends)
        return lower, upper

    def fields(self, quantities: Quantities, names: Sequence[object] | None, coverage: float) -> dict[str, Any]:
        return {**super().fields(quantities, names, coverage), "pit": None}  # a cdf that jumps is no PIT

    def scores(self, results: RegressionResults) -> dict[str, float]:
        values, some = super().scores(results), results.labelled
        if results.log_density is None and some.any():
            y, mean, std = results.observed[some], results.mean[some], results.std[some]
            values["nll"] = metrics.nll_negative_binomial(y, mean, std)
        return {name: value for name, value in values.items() if name in self.meanings}


TASK = Count()
