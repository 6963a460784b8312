"""Real targets, each with a mean, a standard deviation and an interval."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bedl.evaluation import metrics
from bedl.evaluation.tasks._base import DETECTION, NLL, Meaning, Output, Quantities, Task, detection, names_for
from bedl.evaluation.tasks._results import Array, Hits, Results, ResultsError


@dataclasses.dataclass(frozen=True, eq=False)
class RegressionResults(Results):
    """Predictions of one real target, in its own unit.

    Args:
        mean: predicted mean. shape: (n,)
        std: standard deviation of the prediction, all uncertainty together. shape: (n,)
        aleatoric_std: the part that is noise in the data. shape: (n,)
        epistemic_std: the part that is not known; the squares of the two add up to std². shape: (n,)
        lower: lower end of the central interval of probability `level`. shape: (n,)
        upper: upper end. shape: (n,)
        y: what was observed, NaN where it is not known; None if nowhere. shape: (n,)
        pit: predicted cdf at y, for predictions that are not normal; else computed from mean and std. shape: (n,)
        level: nominal probability of the intervals.
        data_std: noise, as aleatoric_std; None where the model does not tell three parts apart. shape: (n,)
        distributional_std: for lack of evidence. shape: (n,)
        model_std: for what the network may be; the squares of the three add up to std². shape: (n,)
        log_density, examples, target_name, title, ood, about, notes: as for every `Results`.

    Example:
        >>> one = np.ones(3)
        >>> len(RegressionResults(mean=one, std=one, aleatoric_std=0.8 * one, epistemic_std=0.6 * one,
        ...                       lower=one - 1.645, upper=one + 1.645))
        3
    """

    mean: Array
    std: Array
    aleatoric_std: Array
    epistemic_std: Array
    lower: Array
    upper: Array
    y: Array | None = None
    pit: Array | None = None
    level: float = 0.9
    data_std: Array | None = None
    distributional_std: Array | None = None
    model_std: Array | None = None

    task: ClassVar[str] = "regression"
    PARTS: ClassVar[tuple[str, ...]] = ("data_std", "distributional_std", "model_std")
    ARRAYS: ClassVar[tuple[str, ...]] = (
        *("mean", "std", "aleatoric_std", "epistemic_std"), *("lower", "upper", "y", "pit"), *PARTS
    )  # fmt: skip

    def __post_init__(self) -> None:
        self._check(*self.ARRAYS, may_be_nan=("y",))
        for name in ("std", "aleatoric_std", "epistemic_std", *self.parts):
            if getattr(self, name).min() < 0:
                raise ResultsError(f"{name} has negative values: it is a standard deviation")
        if (self.lower > self.upper).any():
            raise ResultsError("lower lies above upper: were they exchanged?")
        if not 0 < self.level < 1:
            raise ResultsError(f"level must lie between 0 and 1, not {self.level}")
        if self.pit is not None and self.y is None:
            raise ResultsError("pit is the predicted cdf at y: without y there is none")

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def observed(self) -> Array:
        """The targets, NaN where not known. shape: (n,)"""
        return np.full(len(self), np.nan) if self.y is None else self.y

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Which rows have an observed target. shape: (n,)"""
        return np.isfinite(self.observed)

    @property
    def uncertainty(self) -> Array:
        """What ranks the most uncertain rows: std. shape: (n,)"""
        return self.std

    @property
    def epistemic(self) -> Array:
        """Standard deviation of what is not known. shape: (n,)"""
        return self.epistemic_std

    @property
    def surprise(self) -> Array | None:
        """By how many predicted standard deviations the target was missed. shape: (n,)"""
        if self.y is None:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            missed = np.abs(self.observed - self.mean) / self.std
        return np.where(self.labelled & np.isfinite(missed), missed, -np.inf)

    @property
    def hits(self) -> Hits | None:
        """Whether the interval contains the target, by predicted mean."""
        inside = (self.lower <= self.observed) & (self.observed <= self.upper)
        return Hits(inside, np.full(len(self), self.level), self.mean, "predicted mean")


class Regression(Task):
    """Real targets, one or several, in their own units."""

    name = "regression"
    # std is a standard deviation; aleatoric and epistemic are variances, and add up to its square
    outputs = MappingProxyType({
        "mean": Output("target"), "std": Output("target"), "aleatoric": Output("target²"),
        "epistemic": Output("target²"), "data": Output("target²", optional=True),
        "distributional": Output("target²", optional=True), "model": Output("target²", optional=True),
        "spread": Output("target", optional=True),  # what intervals are counted in, where rows held out say how many
        "linked_centre": Output("linked target", optional=True),  # the same of positive and of bounded targets
        "linked_spread": Output("linked target", optional=True),
    })  # fmt: skip
    column = "number"
    missing = float("nan")
    dtype = np.float64
    estimator = "BEDLRegressor"
    record: ClassVar[type[RegressionResults]] = RegressionResults
    meanings = MappingProxyType({
        "nll": NLL,
        "rmse": Meaning("RMSE", "root mean squared error, in the target's unit; lower is better"),
        "mae": Meaning("MAE", "mean absolute error, in the target's unit; lower is better"),
        "r2": Meaning("R²", "share of the target's variance explained; 1 is perfect"),
        "crps": Meaning("CRPS", "continuous ranked probability score, in the target's unit; lower is better"),
        "coverage": Meaning("Coverage", "share of observed targets inside their interval", share=True),
        "width": Meaning("Width", "mean width of the intervals, in the target's unit"),
        "calibration_error": Meaning("Calibration error", "mean gap between nominal and observed coverage", share=True),
        "mean_std": Meaning("Mean std", "mean predicted standard deviation, in the target's unit"),
        **DETECTION,
    })  # fmt: skip

    def columns(
        self, quantities: Quantities, names: Sequence[object] | None = None, coverage: float = 0.9
    ) -> dict[str, np.ndarray]:
        """``prediction``, ``std``, ``lower``, ``upper``, ``aleatoric_std``, ``epistemic_std``, and where a model tells
        them apart ``data_std``, ``distributional_std`` and ``model_std``; each followed by ``_<target>`` where there
        are several targets. Squares of the parts add up to that of ``std``.

        Unless the model says more exactly, the interval is that of a normal with this mean and std; an ensemble
        predicts a mixture, for which this is the normal with the same two moments, not the mixture's own interval.

        Example:
            >>> outputs = {"mean": np.array([[2.0]]), "std": np.array([[0.5]]), "aleatoric": np.array([[0.16]]),
            ...            "epistemic": np.array([[0.09]])}
            >>> {name: round(float(v[0]), 3) for name, v in TASK.columns(outputs).items()}
            {'prediction': 2.0, 'std': 0.5, 'lower': 1.178, 'upper': 2.822, 'aleatoric_std': 0.4, 'epistemic_std': 0.3}
        """
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must lie between 0 and 1, not {coverage}")
        mean, std = quantities["mean"], quantities["std"]
        lower, upper = self.interval(quantities, coverage)
        columns = {
            "prediction": mean,
            "std": std,
            "lower": lower,
            "upper": upper,
            "aleatoric_std": np.sqrt(quantities["aleatoric"]),
            "epistemic_std": np.sqrt(quantities["epistemic"]),
            **{
                f"{part}_std": np.sqrt(quantities[part])
                for part in ("data", "distributional", "model")
                if part in quantities
            },
        }
        count = mean.shape[1]
        if count == 1:
            return {name: values[:, 0] for name, values in columns.items()}
        targets = names_for(names, count, "target")
        return {f"{name}_{target}": v[:, i] for i, target in enumerate(targets) for name, v in columns.items()}

    def interval(self, quantities: Quantities, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the central interval: the model's own if it has them, else a normal's. shapes: (n, targets)"""
        if "lower" in quantities:
            return quantities["lower"], quantities["upper"]
        half = NormalDist().inv_cdf(0.5 + coverage / 2) * quantities["std"]
        return quantities["mean"] - half, quantities["mean"] + half

    def fields(self, quantities: Quantities, names: Sequence[object] | None, coverage: float) -> dict[str, Any]:
        if quantities["mean"].shape[1] != 1:
            raise ResultsError(f"a record holds one target, not {quantities['mean'].shape[1]}: make one of each")
        columns: dict[str, Any] = self.columns(quantities, names, coverage)
        columns["mean"], pit = columns["prediction"], quantities.get("cdf")
        return {
            **{name: values for name, values in columns.items() if name in self.record.ARRAYS},
            "pit": None if pit is None else pit[:, 0],
            "level": coverage,
        }

    def marginal(self, outputs: Quantities) -> dict[str, np.ndarray]:
        found = {name: values.mean(0) for name, values in outputs.items()}
        between = outputs["mean"].var(0)
        for name in {"distributional", "epistemic"} & set(found):
            found[name] = found[name] + between
        for name in {"std", "spread"} & set(found):
            found[name] = np.sqrt(np.square(outputs[name]).mean(0) + between)
        return found

    def scores(self, results: RegressionResults) -> dict[str, float]:
        values: dict[str, float] = {}
        some = results.labelled
        y, mean, std = results.observed[some], results.mean[some], results.std[some]
        spread = bool((std > 0).all())
        if some.any():
            if results.log_density is not None:
                values["nll"] = float(-np.asarray(results.log_density, float)[some].mean())
            elif spread:
                values["nll"] = metrics.nll_normal(y, mean, std)
            values |= {
                "rmse": metrics.rmse(y, mean),
                "mae": metrics.mae(y, mean),
                "crps": metrics.crps_normal(y, mean, std),
            }
            if np.ptp(y) > 0:
                values["r2"] = metrics.r2(y, mean)
            values["coverage"] = metrics.coverage(y, results.lower[some], results.upper[some])
        values["width"] = metrics.interval_width(results.lower, results.upper)
        if some.any() and (results.pit is not None or spread):
            values["calibration_error"] = metrics.calibration_error(pit(results))
        values["mean_std"] = float(np.mean(results.std, dtype=float))
        return {**values, **detection(results)}

    def baseline(self, results: RegressionResults) -> dict[str, float]:
        """Scores of a normal with the mean and the standard deviation of the record's own targets, for every row."""
        y = results.observed[results.labelled].astype(float)
        if len(y) < 2 or np.ptp(y) == 0:
            return {}
        mean, std = np.full(len(y), y.mean()), np.full(len(y), y.std())
        width = 2 * NormalDist().inv_cdf(0.5 + results.level / 2) * float(y.std())
        values = {
            "nll": metrics.nll_normal(y, mean, std), "rmse": metrics.rmse(y, mean), "mae": metrics.mae(y, mean),
            "crps": metrics.crps_normal(y, mean, std), "width": width,
        }  # fmt: skip
        return {name: value for name, value in values.items() if name in self.meanings}

    def cost(self, truth: Quantities, other: Quantities) -> dict[str, float]:
        """``mean_in_stds``, the largest difference, and ``std_ratio_min``, ``std_ratio_max``."""
        ratio = other["std"] / truth["std"]
        return {
            "mean_in_stds": float((np.abs(truth["mean"] - other["mean"]) / truth["std"]).max()),
            "std_ratio_min": float(ratio.min()),
            "std_ratio_max": float(ratio.max()),
        }


def pit(results: RegressionResults) -> np.ndarray:
    """Probability integral transform of the rows that have a target. shape: (labelled,)"""
    some = results.labelled
    if results.pit is not None:
        return np.asarray(results.pit, float)[some]
    return metrics.pit_normal(results.observed[some], results.mean[some], results.std[some])


TASK = Regression()
