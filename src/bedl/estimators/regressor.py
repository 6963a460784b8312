"""Regression in scikit-learn's interface, with predictive distributions."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch

from bedl.estimators._sklearn import (
    RegressorMixin,
    _check_y,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)
from bedl.estimators.base import PARTS, BEDLEstimator, device_of, parameters_of
from bedl.estimators.calibration import checked_scores, held_out_scores, thinned
from bedl.estimators.explanation import MAX_ROWS, candidates, most_telling, rest_of
from bedl.estimators.inputs import Related, check_targets, column_moments
from bedl.estimators.likelihood import LIKELIHOODS, Link, likeliest_link
from bedl.evaluation.tasks import held_out_factors, signed_scores, widest
from bedl.heads.base import head_class
from bedl.heads.predictive import LinkedPredictive
from bedl.methods import registry
from bedl.nn import cached_weights
from bedl.training.data import Points


class BEDLRegressor(RegressorMixin, BEDLEstimator):
    """Regression by a network with Gaussian weights; one or several targets.

    Inputs and targets are standardised inside; everything is given and returned in its own units.

    Args:
        hidden_layers: widths of the hidden layers; ``"auto"``: that of the method.
        activation: ``"relu"``, ``"elu"``, ``"tanh"``, …, or a function that makes a module.
        net: a network of your own in their place: a module (a plain one is converted by `bedl.bayesianize`; it is
            copied, never changed) or a function ``(n_features, n_outputs) -> module``. It needs two outputs per target.
            With it, X may have more than two dimensions; the function is then given the shape of a point.
        method: the name of the method: ``"auto"``, the recommended default; ``"bedl"``, ``"bedl+reg"`` and
            ``"bedl-hyper"``, the paper's own; `bedl.methods.registry.names()` lists all.
        method_options: options of the method, such as ``{"regularizer": bedl.PAC(strength=0.5)}`` for ``"bedl"``.
        teacher: what "distilled" learns from beside the rows' own targets: ``"auto"``, a committee of trees, a linear
            model and a network; or a scikit-learn estimator, or a list of them, which are fitted in folds.
        image_shape: where the columns of X are the pixels of images, their shape: ``(height, width)`` or ``(channels,
            height, width)``. They are scaled alike, and seen as images by methods that can, such as that for classes.
        standardize: scale each feature (channel, for images) to mean 0 and variance 1 in front of the network.
            ``"shared"``: all features alike, for pixels as columns of a table, of which some hardly vary. Turn it off
            for a network that was trained on the inputs as they are.
        handle_unknown: where X holds text or missing values, which are encoded as the command line does it: what to do
            about a category that training did not see, or a missing value in a column that had none. ``"warn"``: count
            them in a warning, and average predictions over the values that training saw, whose disagreement is
            distributional uncertainty; ``"ignore"``: the same without a warning; ``"error"``.
        likelihood: the distribution of the targets: ``"normal"``, ``"log-normal"`` for positive ones,
            ``"logit-normal"`` for those between 0 and 1, or ``"count"`` for whole numbers from 0 on. All tails are
            those of mixtures. ``"auto"``: of the first three what makes rows most likely that were left out, where the
            method is "auto" or "distilled"; else normal.
        ensemble: the number of networks, whose predictions are mixed. Each has its own validation points.
        epochs: the maximal number of passes over the points; ``"auto"``: from the number of points.
        batch_size: points per step; ``"auto"``: from the number of points.
        learning_rate: that of Adam, at its maximum. ``"auto"``: that of the method, else 0.01, and 0.001 for images.
        schedule: ``"cosine"``: the learning rate rises in the first steps and falls to 0 over the epochs;
            ``"warmup"``: it rises and stays there; ``"constant"``: it is the same from the first step on, after which
            all units of a wide network with Gaussian weights may be off.
        validation_fraction: the fraction of the points that is held out for early stopping.
        early_stopping: whether to stop by the loss of held-out points and return to the best epoch; ``"auto"``: as the
            method requires. 64 points or fewer are all trained on, for the full number of epochs.
        patience: epochs without improvement before stopping; ``"auto"``: a tenth of `epochs`, at least 10.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, …
        checkpoint: a folder; an interrupted fit resumes from it when it is called again.
        resume: ``"auto"``; True: there has to be a checkpoint; False: there must be none.
        callbacks: see `bedl.training.Callback`.
        compile: ``"auto"``: use `torch.compile` where the training is long enough for it to pay off; True or False.
        verbose: whether progress is shown.
        warm_start: let `fit` continue from the present weights (and scaling).
        random_state: an int makes fits reproducible. Global generators are never used.
        precision: ``"auto"``: learn in single precision (in double where a column of X varies so little for its size
            that single would blur it), and predict in that of X. ``"double"``: learn in that of X as well.
            ``"bf16-mixed"``: products of networks that learn by steps round their operands to bfloat16 while learning,
            which wide networks of images learn faster by on processors made for it; predictions are as with "auto".

    Attributes:
        method_: the trained method, or an `Ensemble` of them, for standardised targets.
        built_: the name and the options of the method that was built.
        history_: a row per member and epoch: loss, and ``val_nll`` of the points held out.
        n_features_in_, feature_names_in_: of X, as in scikit-learn.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(-1, 1, 200)[:, None]
        >>> y = 20 + 5 * X[:, 0]
        >>> model = BEDLRegressor(epochs=40, random_state=0, device="cpu").fit(X, y)
        >>> mean, std = model.predict(X, return_std=True)
        >>> bool(abs(mean - y).max() < 1), std.shape
        (True, (200,))
        >>> list(model.uncertainty(X))
        ['total', 'aleatoric', 'epistemic', 'data', 'distributional', 'model']
    """

    @parameters_of(BEDLEstimator.__init__)
    def __init__(self, *settings: Any, likelihood: str = "auto", **more: Any):
        super().__init__(*settings, **more)
        self.likelihood = likelihood

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, X_var: Any = None) -> BEDLRegressor:
        """Learn from some more points, by one pass over them; the first call decides the scaling. Else as `fit`."""
        return self._partial_fit(X, y, sample_weight, X_var)

    def predict(self, X: Any, return_std: bool = False, X_var: Any = None) -> Any:
        """The expected targets, and the standard deviations of the prediction if asked for.

        Args:
            X: shape (n, n_features)
            return_std: return (mean, std).
            X_var: variance of the noise in X, as in `fit`.

        Returns:
            shape (n,), or (n, n_targets) if y was two-dimensional
        """
        prediction = self.predict_dist(X, X_var)
        mean = self._shaped(prediction.mean)
        return (mean, self._shaped(prediction.std)) if return_std else mean

    def predict_interval(
        self, X: Any, coverage: float = 0.9, X_var: Any = None, calibrated: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of the interval that contains the target with probability `coverage`.

        Args:
            X: shape (n, n_features)
            coverage: the probability.
            X_var: variance of the noise in X, as in `fit`.
            calibrated: whether to use conformal multipliers of the standard deviation, where there are some: from
                `calibrate`, or out of fold. Otherwise, and where False, quantiles of the predictive distribution.
        """
        lower, upper = self.interval_of(self.predict_dist(X, X_var), coverage, calibrated)
        return self._shaped(lower), self._shaped(upper)

    def interval_of(self, prediction: Any, coverage: float = 0.9, calibrated: bool = True) -> tuple[Any, Any]:
        """The interval of what `predict_dist` gave, as for `predict_interval`. shapes: (n, n_targets)"""
        if not isinstance(coverage, Real) or not 0 < coverage < 1:
            raise ValueError(f"coverage must lie between 0 and 1, not {coverage!r}")
        factors = self._factors(coverage) if calibrated else None
        if factors is None:
            return prediction.interval(coverage)
        linked = isinstance(prediction, LinkedPredictive)
        base: Any = prediction.base if linked else prediction
        spread = base.std
        rounding = 4 * torch.finfo(spread.dtype).eps * base.mean.abs()  # of targets that are all the same
        below, above = (factor.to(spread) * spread + rounding for factor in factors)
        ends = base.mean - below, base.mean + above
        return (prediction.link(ends[0]), prediction.link(ends[1])) if linked else ends

    def predict_quantiles(self, X: Any, alpha: Any = (0.05, 0.5, 0.95), X_var: Any = None) -> Any:
        """Quantiles as skpro gives them: a pandas frame with the columns (target, alpha).

        Args:
            X: shape (n, n_features)
            alpha: a probability, or several.
            X_var: variance of the noise in X, as in `fit`.

        They are the ends of the intervals that `predict_interval` gives; the median is that of the prediction itself.
        """
        import pandas

        levels = [float(level) for level in np.atleast_1d(alpha)]
        if not levels or not all(0 < level < 1 for level in levels):
            raise ValueError(f"alpha holds probabilities between 0 and 1, not {alpha!r}")
        prediction: Any = self.predict_dist(X, X_var)
        columns = {}
        for level in levels:
            if level == 0.5:
                ends = prediction.quantile(0.5)
            else:
                ends = self.interval_of(prediction, abs(2 * level - 1))[level > 0.5]
            columns.update({(name, level): ends[:, i].numpy() for i, name in enumerate(self._target_names())})
        index = pandas.MultiIndex.from_product([self._target_names(), levels])
        return pandas.DataFrame(columns, index=getattr(X, "index", None))[index]

    def predict_var(self, X: Any, X_var: Any = None) -> Any:
        """Variances of the prediction as skpro gives them: a pandas frame with a column per target."""
        import pandas

        values = self.predict_dist(X, X_var).variance.numpy()
        return pandas.DataFrame(values, columns=self._target_names(), index=getattr(X, "index", None))

    def calibrate(self, X: Any, y: Any, X_var: Any = None) -> BEDLRegressor:
        """Recalibrate intervals with rows that were not trained on (split conformal prediction).

        Each tail is calibrated by itself: with coverage 90 %, 5 % of new targets lie below and 5 % above the interval,
        on average over rows from the same distribution. Densities and standard deviations do not change.

        Args:
            X: shape (n, n_features)
            y: as in `fit`.
            X_var: variance of the noise in X, as in `fit`.
        """
        base = self._base(self.predict_dist(X, X_var))
        y = self._check_y(y)
        check_consistent_length(X, y)
        columns = self.link_.inverse(y.reshape(len(y), -1).astype(np.float64))
        if columns.shape != base.mean.shape:
            raise ValueError(f"y has {columns.shape[1]} targets, but was fitted with {self.n_targets_}")
        self.calibration_ = held_out_scores((columns - base.mean.numpy()) / base.std.numpy())
        return self

    def _base(self, prediction: Any) -> Any:
        """What the network predicts: of positive and bounded targets what the link is taken of."""
        return prediction.base if isinstance(prediction, LinkedPredictive) else prediction

    def _intervals(self) -> dict[str, Any] | None:
        if self._scores() is None:
            return None
        scores, mass = self._scores()
        return {"signed": scores, "mass": mass, **self.link_.described()}

    def _in_units(self, prediction: Any) -> Any:
        return self.link_.predicted(super()._in_units(prediction))

    def _link(self) -> Any:
        return None if self.link_.kind is None else self.link_.predicted

    def _learn_likelihood(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray | None, related: Related) -> None:
        columns = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        if self.likelihood in LIKELIHOODS[1:]:
            self.link_ = Link.of(str(self.likelihood), columns)
        elif self.likelihood == "auto" and self._chooses() and X.ndim == 2:
            self.link_ = likeliest_link(X, columns, weight, related)
        else:
            self.link_ = Link.of("normal", columns)

    def _chooses(self) -> bool:
        """Whether the method is one that decides for itself how a table is learned."""
        asked = registry.get(self.method)
        return self.net is None and (asked.choice is not None or asked.distils)

    def _factors(self, coverage: float) -> tuple[torch.Tensor, torch.Tensor] | None:
        """How many standard deviations an interval reaches below and above the mean; None: nothing was held out.

        shapes: (n_targets,)
        """
        if self._scores() is None:
            return None
        scores, mass = self._scores()
        below, above = (torch.as_tensor(factor) for factor in held_out_factors(scores, mass, coverage))
        if not bool((below.isfinite() & above.isfinite()).all()):
            if self.calibration_ is None:  # few rows were held out by fit
                few = torch.as_tensor(widest(scores, coverage))
                return tuple(torch.where(ends.isfinite(), ends, few) for ends in (below, above))  # type: ignore
            raise ValueError(
                f"{len(scores)} rows are too few to calibrate intervals of {coverage:.0%}: give more rows to "
                "calibrate, or ask for a smaller coverage"
            )
        return below, above

    def _scores(self) -> Any:
        """By how many standard deviations rows were missed that were not learned from; None: there were none."""
        given = getattr(self, "calibration_", None)
        return getattr(self, "held_out_", None) if given is None else given

    def uncertainty(self, X: Any, X_var: Any = None) -> Any:
        """The components of the uncertainty, as a pandas frame of *variances*, in the target's units squared.

        ``total = aleatoric + epistemic``, or ``total = data + distributional + model``: noise (aleatoric), lack of
        evidence, and uncertainty about the weights (both epistemic). With several
        targets the columns end in the target's name or number: ``total_0``, …
        """
        import pandas

        prediction = self.predict_dist(X, X_var)
        columns = {}
        parts = {name: getattr(prediction, name).numpy() for name in PARTS}
        for number, name in enumerate(self._target_names()):
            ending = "" if self.n_targets_ == 1 else f"_{name}"
            columns.update({f"{key}{ending}": values[:, number] for key, values in parts.items()})
        return pandas.DataFrame(columns, index=getattr(X, "index", None))

    def rows_to_label(self, X: Any, n: int = 1) -> np.ndarray:
        """The unlabelled rows of X to label next (batch active learning).

        Rows are selected greedily: each time the one whose label would lower the epistemic variance of all rows most,
        see `explanation.most_telling`. The most uncertain rows are often alike, so they would be redundant. Of more
        than 4,000 rows, the 2,000 most uncertain and 2,000 spread over the rest are considered. After 2,000 selected
        rows the most uncertain of the rest follow.

        Args:
            X: shape (rows, n_features)
            n: how many.

        Returns:
            numbers of rows, the first one first. shape: (n,)
        """
        check_is_fitted(self, "method_")
        place: Any = getattr(self.method_, "place", None)
        if place is None:
            raise ValueError(f"method {self.built_[0]!r} knows no distances between rows; rows_to_label needs 'auto'")
        prediction, size = self._base(self.predict_dist(X)), torch.as_tensor(self.target_scale_).square()
        unknown, noise = ((part / size).mean(1).numpy() for part in (prediction.epistemic, prediction.data))
        if not isinstance(n, Integral) or isinstance(n, bool) or not 1 <= n <= len(unknown):
            raise ValueError(f"n is a number of rows, from 1 to the {len(unknown)} of X; not {n!r}")
        rows, matter = candidates(unknown)
        with torch.no_grad():
            places = place(self._inputs(X).fetch_rows(rows).to(device_of(self.method_))).double().cpu()
        found = rows[most_telling(unknown[rows], float(noise.mean()), places.numpy(), min(int(n), MAX_ROWS), matter)]
        return np.concatenate([found, rest_of(unknown, found)[: n - len(found)]])

    # -- for the base class -----------------------------------------------------------------------
    def _calibrate_by(self, committee: Any, points: Points) -> None:
        from bedl.estimators.distill import scale_mixture

        z, means, noise = [], [], []
        with cached_weights(self.method_):
            for x, y, _ in points.fetch(np.array_split(np.arange(points.n), -(-points.n // 500))):
                said: Any = self.method_.predict(x.to(device_of(self.method_)))
                z.append(((y - said.mean.cpu()) / said.variance.cpu().sqrt()).double().numpy())
                means.append(said.mean)
                noise.append(said.data)
        scores = np.concatenate(z)
        scales, shares = scale_mixture(scores)
        for name, limit in zip(("least_mean", "most_mean"), torch.cat(means).aminmax(dim=0), strict=True):
            getattr(self.method_, name).copy_(limit)
        self.method_.most_noise.copy_(torch.cat(noise).amax(0))
        self.method_.scales.copy_(torch.as_tensor(scales))
        self.method_.log_weights.copy_(torch.as_tensor(np.log(shares)))
        weight = committee.row_weights
        if weight is None:
            self.held_out_ = held_out_scores(scores / math.sqrt(shares @ scales))
        elif committee.symmetric:
            self.held_out_ = thinned(*signed_scores(*held_out_scores(_of_periods(np.abs(committee.scores), weight))))
        else:  # by how much whole groups were missed, of which nothing near the data tells
            self.held_out_ = held_out_scores(committee.scores, weight)

    def _check_arrays(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        return validate_data(
            self, X, y, reset=reset, multi_output=True, y_numeric=True, dtype=[np.float64, np.float32],
            allow_nd=self.net is not None,
        )  # fmt: skip

    def _check_y(self, y: Any) -> np.ndarray:
        return _check_y(y, multi_output=True, y_numeric=True, estimator=self)

    def _targets(self, y: np.ndarray, weight: np.ndarray | None, reset: bool, classes: Any) -> np.ndarray:
        columns = self.link_.inverse(y.astype(np.float64).reshape(len(y), -1))
        if reset:
            self.task_ = str(self.likelihood) if self.likelihood not in LIKELIHOODS else "regression"
            self.n_targets_ = columns.shape[1]
            self.target_loc_, self.target_scale_ = np.zeros(self.n_targets_), np.ones(self.n_targets_)
            if head_class(self.task_).scaled_targets:
                self.target_loc_, self.target_scale_ = column_moments(columns, weight)
            self._flat = y.ndim == 1
        elif columns.shape[1] != self.n_targets_:
            raise ValueError(f"y has {columns.shape[1]} targets, but was fitted with {self.n_targets_}")
        check_targets(self.task_, columns)
        return (columns - self.target_loc_) / self.target_scale_

    def _scale(self) -> tuple[np.ndarray, np.ndarray] | None:
        return (self.target_loc_, self.target_scale_) if head_class(self.task_).scaled_targets else None

    def _shaped(self, values: torch.Tensor) -> np.ndarray:
        return values.numpy()[:, 0] if self._flat else values.numpy()

    def _target_names(self) -> list[str]:
        return self.target_names_ or [str(number) for number in range(self.n_targets_)]

    def _state(self) -> dict[str, Any]:
        return {
            "target_loc": self.target_loc_.tolist(),
            "target_scale": self.target_scale_.tolist(),
            "flat_target": self._flat,
            "task": self.task_,
            "calibration_scores": getattr(self, "calibration_", None),
            "held_out_scores": getattr(self, "held_out_", None),
            "link": self.link_.to_dict(),
        }

    def _set_state(self, state: dict[str, Any]) -> None:
        self.target_loc_ = np.asarray(state["target_loc"])
        self.target_scale_ = np.asarray(state["target_scale"])
        self._flat, self.link_ = state["flat_target"], Link.from_dict(state.get("link", {}), len(self.target_loc_))
        for name in ("calibration", "held_out"):
            setattr(self, f"{name}_", checked_scores(state, name, len(self.target_loc_)))
        self.task_, self.n_targets_ = state["task"], len(self.target_loc_)

    def _names(self) -> dict[str, list[str] | None]:
        return {"target_names": self._target_names()}


PERIODS = 20  # with fewer, 90 % intervals are as wide as for so many, 95 % of the scores; 8 or fewer would bound none


def _of_periods(scores: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """As many quantiles of absolute scores as there are periods.

    Rows of a period err together, to one side or the other. So an interval for the next period has as many observations
    as there are periods, not rows.

    Args:
        scores: shape (n, targets)
        weight: of each row, such that periods count the same. shape: (n,)
    """
    count = max(PERIODS, round(float(weight.sum())))
    levels = np.arange(1, count + 1) / count
    return np.quantile(scores, levels, axis=0, weights=weight, method="inverted_cdf")
