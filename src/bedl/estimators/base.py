"""What the two estimators share: learning and predicting; what comes before is in `building`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted, validate_data

from bedl.estimators.building import Building
from bedl.estimators.frames import dense, encoded, needs_encoding
from bedl.estimators.inputs import CHUNK, Inputs, check_noise, cut_in_folds, values_of
from bedl.estimators.portable import device_of
from bedl.estimators.recipe import Recipe
from bedl.estimators.train import partial_train, seeds_of, train
from bedl.methods import registry
from bedl.nn import frozen
from bedl.predictive import Predictive
from bedl.training.data import Points, stream_seed
from bedl.training.threads import few_threads

__all__ = ["PARTS", "BEDLEstimator"]

ENOUGH = 9  # rows: with fewer there is none that 90 % of new ones stay below
FEW = 64  # rows of a table, whose prediction is over before several threads have met
MOST_HELD = 100_000  # rows held out, and others, that a method in folds is shown at the end
PARTS = ("total", "aleatoric", "epistemic", "data", "distributional", "model")  # of a prediction's uncertainty


class BEDLEstimator(Building):
    """Base of `BEDLRegressor` and `BEDLClassifier`, which see for the parameters."""

    # -- learning ---------------------------------------------------------------------------------
    def fit(self, X: Any, y: Any, sample_weight: Any = None, X_var: Any = None) -> Any:
        """Learn from a table.

        Args:
            X: shape (n, n_features), or (n, *input) with a `net` of your own
            y: targets. shape: (n,), or (n, n_targets) in regression
            sample_weight: how much each point counts: one of weight 2 as if it were there twice. shape: (n,)
            X_var: variance of the noise in X, in X's units squared: one for all, one per feature or one per value.
        """
        continuing = bool(self.warm_start) and hasattr(self, "method_")
        table = self._check(X, y, sample_weight, X_var, reset=not continuing)
        seed = self._seed()
        if not continuing:
            self._build(table, seed, steps=bool(self.warm_start))
        plan = self._plan(len(table.X))
        self._optimizers: list[Any] = []
        self.n_seen_ = table.size
        points = self._points(table)
        points.n_train = table.size
        with few_threads(self._work(plan.batch_size)):
            if self._members()[0].learns == "by itself":
                self.history_ = self._fit_by_itself(points)
            elif self.method_.folds:
                self.history_ = self._fit_in_folds(points, plan, seed, continuing)
            else:
                points, judges = self._set_aside(points, plan, seed)
                parts = list(self._parts(points, plan, seed))
                self.history_ = train(self, self._members(), parts, plan, seeds_of(seed, len(parts)))
                if judges is not None:
                    self._judge(judges)
        self._conclude()
        if self.verbose:
            print(self.chosen_)
        return self

    def _work(self, rows: int) -> float:
        """Multiplications of a pass of so many rows; unlimited where they do not follow from the parameters' number."""
        if not self._is_table() or any(member.learns != "by steps" for member in self._members()):
            return math.inf
        return float(rows * sum(parameter.numel() for parameter in self.method_.parameters()))

    def _is_table(self) -> bool:
        """Whether a network of bedl's own takes rows of numbers."""
        return self.net is None and len(self.input_shape_) == 1 and self.image_shape is None

    def _conclude(self) -> None:
        self.method_.to(getattr(torch, self.dtype_))
        self.calibration_ = None

    @property
    def chosen_(self) -> str:
        """What was chosen and learned, in one line."""
        check_is_fitted(self, "method_")
        name, options = self.built_
        said = self.method_.summary()
        given = ", ".join(f"{key}={value!r}" for key, value in options.items() if isinstance(value, (int, float, str)))
        members = f"{len(self._members())} networks" if len(self._members()) > 1 else "one network"
        return f"method {name!r}" + (f" ({given})" if given and not said else "") + f": {said or members}"

    def _fit_in_folds(self, points: Points, plan: Recipe, seed: int, continuing: bool) -> list[dict[str, Any]]:
        """Let each member learn from the points outside its fold, then the whole from those inside."""
        name, folds, members = self.built_[0], self.method_.folds, self._members()
        for refused, what in ((continuing, "warm_start"), (plan.held_out > 0, "early_stopping")):
            if refused:
                raise ValueError(f"method {name!r} holds out folds and learns from all points at once; no {what}")
        if points.n < folds:
            raise ValueError(f"method {name!r} has {folds} folds and {points.n} points that count; it needs as many")
        if points.n < ENOUGH:
            warnings.warn(
                f"{points.n} rows are too few to tell how sure predictions may be: that is learned from rows held out, "
                f"and with fewer than {ENOUGH} rows 90 % intervals may hold far less than that; give more rows",
                stacklevel=3,
            )
        fold = cut_in_folds(points.n, folds, stream_seed(seed, folds), self._labels(points))
        held = self.method_.held_folds
        parts: list[tuple[Points, Points | None]] = []
        for number in range(len(members)):
            part = points.subset(np.flatnonzero(fold != number % held))
            part.n_train = points.n_train * part.n / points.n
            parts.append((part, None))
        rows = train(self, members, parts, plan, seeds_of(seed, len(members)))
        place = device_of(self.method_)
        some = np.concatenate([np.flatnonzero(fold < held)[:MOST_HELD], np.flatnonzero(fold >= held)[:MOST_HELD]])
        x, y, weight = (None if part is None else part.to(place) for part in next(points.fetch([some])))
        self.method_.finish(x, y, torch.as_tensor(fold[some], device=place), weight)
        return rows

    def _fit_by_itself(self, points: Points) -> list[dict[str, Any]]:
        """Let a method that takes no gradient steps learn from all points at once."""
        x, y, weight = points.whole()
        if points.index is not None:  # what counts for nothing is not there
            own = torch.as_tensor(points.index)
            x, y, weight = x[own], y[own], None if weight is None else weight[own]
        what = "X_var" if not isinstance(x, torch.Tensor) else "sample_weight" if weight is not None else None
        if what == "X_var" or (what is not None and not self._members()[0].takes_weights):
            raise ValueError(f"method {self.built_[0]!r} takes no gradient steps and knows no {what}; leave it out")
        place = self._device()
        given = (x.to(place), y.to(place), *(() if weight is None else (weight.to(place),)))
        for member in self._members():
            member.to(place).fit(*given)
        return []

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, X_var: Any, classes: Any = None) -> Any:
        fresh = not hasattr(self, "method_")
        table = self._check(X, y, sample_weight, X_var, reset=fresh, classes=classes)
        if fresh:
            self._build(table, self._seed(), steps=True)
            self.n_seen_, self.history_ = 0.0, []
        first = self._members()[0]
        if first.learns != "by steps" or first.concludes or self.method_.folds:
            name = self.built_[0]
            what = (
                f"fit chose method {name!r}, which learns from all points at once: call partial_fit on a fresh "
                "estimator, from its first points on, or fit on all points"
                if registry.get(self.method).choice is not None
                else f"method {name!r} learns from all points at once: call fit, or choose a method that learns by "
                "steps, such as method='bedl'"
            )
            raise ValueError(what)
        if not getattr(self, "_optimizers", None):
            self._optimizers = [None] * len(self._members())
        self.n_seen_ += table.size
        points = self._points(table)
        points.n_train = self.n_seen_
        plan = self._plan(len(table.X))
        self._optimizers = partial_train(self, self._members(), points, plan, self._optimizers, int(self.n_seen_))
        return self

    # -- predicting -------------------------------------------------------------------------------
    def linear_dist(self, X: np.ndarray) -> Any:
        """What the linear model among a stack's members says, or None if there is none. X: shape (n, n_features)"""
        check_is_fitted(self, "method_")
        linear = getattr(self.method_, "linear", None)
        if linear is None:
            return None
        x = torch.as_tensor(X, dtype=getattr(torch, self.dtype_)).to(device_of(self.method_))
        with torch.no_grad():
            return self._in_units(linear(x).mixed().to("cpu"))

    def predict_dist(self, X: Any, X_var: Any = None) -> Predictive:
        """The whole prediction for each point, in the targets' own units; see `bedl.predictive`.

        Args:
            X: shape (n, n_features)
            X_var: variance of the noise in X, as in `fit`.
        """
        check_is_fitted(self, "method_")
        inputs = self._inputs(X, X_var)
        place = device_of(self.method_)
        if self.method_.training:
            self.method_.eval()  # once, not for every prediction
        few = len(inputs) <= FEW and self._is_table()
        outputs = self.n_targets_ * (
            len(self._members()) + self.method_.held_folds
        )  # a linear one in each fold as well
        # to prepare weights pays off from the second chunk on
        with frozen(self.method_) if inputs.X.size > CHUNK else nullcontext(), few_threads(0 if few else math.inf):
            parts = [
                self._in_units(self.method_.predict(chunk.to(place)).to("cpu")) for chunk in inputs.chunks(outputs)
            ]
        found = values_of(parts) if len(parts) > 1 else parts[0]
        found.names = self._output_names()
        return found

    def _inputs(self, X: Any, X_var: Any = None) -> Inputs:
        """Rows to predict for, checked, and encoded where training's were."""
        X = dense(X)
        if self.encoder_ is not None:
            X = encoded(self, X, self.encoder_, self.unseen)[0]
        elif needs_encoding(X) and len(self.input_shape_) == 1:
            raise ValueError(
                "X holds text or missing values (NaN), and what was learned from held numbers only: fill them in, or "
                "fit on a table that has such"
            )
        else:
            images = len(self.input_shape_) > 1
            X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32], allow_nd=images)
        self._same_shape(X)
        return Inputs(X, check_noise(X_var, X), getattr(torch, self.dtype_))

    def _in_units(self, prediction: Predictive) -> Predictive:
        """What the method predicts, in the targets' own units."""
        scale = self._scale()
        if scale is None:
            return prediction
        loc, size = (torch.as_tensor(part) for part in scale)
        return prediction.to(torch.float64).rescale(loc, size)  # type: ignore[attr-defined]

    def _output_names(self) -> Sequence[Any] | None:
        """Of the targets, for tables of predictions; None: they are numbered."""
        return self.target_names_
