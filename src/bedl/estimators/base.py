"""What leaves the process: files, pickles, exported models."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import inspect
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from bedl.data.unknown import HANDLE_UNKNOWN
from bedl.deploy.wrappers import InUnits
from bedl.estimators import storage
from bedl.estimators._sklearn import (
    BaseEstimator,
    _check_feature_names_in,
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)
from bedl.estimators.fit import TrainingConfig, partial_train, resolve_config, seeds_of, train
from bedl.estimators.inputs import (
    CHUNK,
    Inputs,
    Related,
    TrainingSet,
    blurred_in_float32,
    check_image_shape,
    check_noise,
    column_moments,
    column_quartiles,
    dense,
    encoded,
    held_out,
    needs_encoding,
    standardize,
    warn_of_small,
)
from bedl.heads import Head
from bedl.heads.predictive import Predictive
from bedl.methods import Ensemble, Method, Problem, registry
from bedl.nn import cached_weights
from bedl.nn.tabular import Standardize
from bedl.training.compile import limit_threads
from bedl.training.data import Points, stream_seed

if TYPE_CHECKING:
    from bedl.data.encode import FeatureEncoder


def device_of(module: nn.Module) -> torch.device:
    """Where a module's tensors are; one without any is on the CPU."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


class Portable:
    """Base of estimators that are saved, loaded and exported."""

    method_: Any
    task_: str
    input_shape_: tuple[int, ...]

    # -- what the subclasses say ------------------------------------------------------------------
    def _scale(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Where targets have been moved and scaled to: what to add and what to multiply by to undo it."""
        return None

    def _link(self) -> Callable[[Any], Any] | None:
        """What leads from a prediction in the units of `_scale` to the targets; None: these are their units."""
        return None

    def _as_predicted(self, method: nn.Module) -> nn.Module:
        """A module that predicts as the estimator does: in the targets' own units."""
        scale = self._scale()
        if scale is None:
            return method
        return InUnits(method, torch.as_tensor(scale[0]), torch.as_tensor(scale[1]), self._link())

    def _intervals(self) -> dict[str, Any] | None:
        """What rows that were held out say about intervals: ``scores`` and ``mass``; None: nothing was held out."""
        return None

    def _names(self) -> dict[str, list[str] | None]:
        """Names of targets or classes, for export."""
        raise NotImplementedError

    # -- out of this process ----------------------------------------------------------------------
    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()  # type: ignore[misc]
        if "method_" in state and device_of(state["method_"]).type != "cpu":
            state = {**state, "method_": copy.deepcopy(state["method_"]).cpu(), "_optimizers": []}
        return state

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the fitted estimator to one safetensors file; nothing is pickled.

        Args:
            path: the file; refused if it exists, unless `overwrite`.
            overwrite: replace what is there.
        """
        check_is_fitted(self, "method_")
        return storage.save(self, Path(path), overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **given: Any) -> Any:
        """Read what `save` wrote.

        Args:
            path: the file.
            given: parameters that no file can hold: the `net` (a module or callable), an own objective or activation.
        """
        return storage.restore(Path(path), cls, given)

    def _exportable(self) -> Any:
        """What leaves Python, in single precision, on the CPU, in evaluation mode; see `bedl.deploy`."""
        check_is_fitted(self, "method_")
        from bedl.deploy import Exportable

        module = self._as_predicted(copy.deepcopy(self.method_))
        encoder = getattr(self, "encoder_", None)
        features = getattr(self, "feature_names_in_", None) if encoder is None else encoder.feature_names
        front = next((part for part in module.modules() if isinstance(part, Standardize)), None)
        centre = torch.zeros(()) if front is None else front.loc.cpu().float()
        return Exportable(
            module=module.cpu().float().eval(),
            example=centre.expand(2, *self.input_shape_).contiguous(),
            task=self.task_,
            intervals=self._intervals(),
            feature_names=None if features is None else [str(name) for name in features],
            **self._names(),
        )

    def _state(self) -> dict[str, Any]:
        """What a subclass has learned beside the network, as JSON."""
        return {}

    def _set_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


# What an estimator was asked for, and what is made of it: parameters, checks, the recipe, networks, points.


_CHOICES = {
    "handle_unknown": HANDLE_UNKNOWN, "precision": ("auto", "double", "bf16-mixed"),
    "schedule": ("cosine", "warmup", "constant"),
}  # fmt: skip


class Building(Portable, BaseEstimator):
    """The part of an estimator that comes before learning."""

    method_: Any
    task_: str
    n_targets_: int
    built_: tuple[str, dict[str, Any]]
    input_shape_: tuple[int, ...]
    target_names_: list[str] | None
    encoder_: FeatureEncoder | None
    calibration_: Any
    held_out_: Any

    def __init__(
        self,
        hidden_layers: Any = "auto",
        activation: Any = "relu",
        *,
        net: Any = None,
        method: str = "auto",
        method_options: dict[str, Any] | None = None,
        teacher: Any = "auto",
        image_shape: tuple[int, ...] | None = None,
        standardize: bool | str = True,
        handle_unknown: str = "warn",
        ensemble: int = 1,
        epochs: int | str = "auto",
        batch_size: int | str = "auto",
        learning_rate: float | str = "auto",
        schedule: str = "cosine",
        validation_fraction: float = 0.1,
        early_stopping: bool | str = "auto",
        patience: int | str = "auto",
        device: str = "auto",
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool | str = "auto",
        callbacks: Any = (),
        compile: bool | str = "auto",
        verbose: int = 0,
        warm_start: bool = False,
        random_state: Any = None,
        precision: str = "auto",
    ):
        self.hidden_layers = hidden_layers
        self.activation = activation
        self.net = net
        self.method = method
        self.method_options = method_options
        self.teacher = teacher
        self.image_shape = image_shape
        self.standardize = standardize
        self.handle_unknown = handle_unknown
        self.ensemble = ensemble
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.validation_fraction = validation_fraction
        self.early_stopping = early_stopping
        self.patience = patience
        self.device = device
        self.checkpoint = checkpoint
        self.resume = resume
        self.callbacks = callbacks
        self.compile = compile
        self.verbose = verbose
        self.warm_start = warm_start
        self.random_state = random_state
        self.precision = precision

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = self.net is None
        return tags

    def _targets(self, y: np.ndarray, weight: np.ndarray | None, reset: bool, classes: Any) -> np.ndarray:
        """Learn about the targets, if `reset`: task_, n_targets_; and give them as the head wants them."""
        raise NotImplementedError

    # -- what was given -----------------------------------------------------------------------------
    def _check(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        X_var: Any,
        reset: bool,
        classes: Any = None,
        groups: Any = None,
        order: Any = None,
    ) -> TrainingSet:
        if not isinstance(self.ensemble, Integral) or self.ensemble < 1:
            raise ValueError(f"ensemble is a number of networks, at least 1, not {self.ensemble!r}")
        rate = self.learning_rate
        if rate != "auto" and (not isinstance(rate, Real) or not rate > 0):
            raise ValueError(f"learning_rate must be a positive number or 'auto', not {rate!r}")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {' or '.join(map(repr, known))}, not {getattr(self, name)!r}")
        registry.get(self.method)
        names, X = getattr(y, "columns", None), dense(X)
        if reset:
            self.encoder_ = None
        if self._takes_table(X, reset):
            if X_var is not None:
                raise ValueError("X_var is for tables of numbers; X holds text, dates or missing values")
            X, y = self._check_table(X, y)
        else:
            X, y = self._check_arrays(X, y, reset)
        if self.image_shape is not None:
            check_image_shape(self.image_shape, X.shape[1:])
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            if not weight.any():
                raise ValueError("sample_weight is 0 for all points; at least one has to count")
            warn_of_small(weight)
        noise = check_noise(X_var, X)
        if reset:
            self.input_shape_ = X.shape[1:]
            self.target_names_ = None if names is None else [str(name) for name in names]
        else:
            self._same_shape(X)
        related = Related.of(len(X), groups, order)
        if reset:
            self._learn_likelihood(X, y, weight, related)
        return TrainingSet(X, self._targets(y, weight, reset, classes), weight, noise, related)

    def _learn_likelihood(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray | None, related: Related) -> None:
        """Decide how targets are distributed, where there is a choice."""

    def _takes_table(self, X: Any, reset: bool) -> bool:
        """Whether X has to be encoded: it holds more than numbers, or what was learned from did."""
        return self.net is None and needs_encoding(X) if reset else self.encoder_ is not None

    def _check_table(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """A table of any kind as numbers, and the targets, checked."""
        table, self.encoder_ = encoded(self, X, self.encoder_, self.handle_unknown)
        if np.isnan(table).any():  # values that an earlier call did not see are drawn from those that it saw
            rows = self.encoder_.possible_rows(table)
            table = rows[np.arange(len(table)) % len(rows), np.arange(len(table))]
        y = self._check_y(y)
        check_consistent_length(table, y)
        return table, y

    def _check_arrays(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def _check_y(self, y: Any) -> np.ndarray:
        raise NotImplementedError

    def _same_shape(self, X: np.ndarray) -> None:
        if X.shape[1:] != self.input_shape_:
            raise ValueError(
                f"X has {X.ndim - 1} dimensions of shape {X.shape[1:]} per point, but {type(self).__name__} was fitted "
                f"on {self.input_shape_}"
            )

    # -- what learns, and from what -----------------------------------------------------------------
    def _plan(self, n: int) -> TrainingConfig:
        asked, built = registry.get(self.method), registry.get(self.built_[0])
        # a choice such as "auto" says itself how one network of a table is trained; folds and images know better
        alone = not built.distils and built.name != "images"
        wanted = asked.training if asked.choice is not None and alone else built.training
        return resolve_config(
            n, self.epochs, self.batch_size, self.patience, self.early_stopping, self.validation_fraction,
            self.learning_rate, None if wanted is None else wanted(n), table=len(self.input_shape_) == 1,
            tempered=self._tempered(),
        )  # fmt: skip

    def _seed(self) -> int:
        """A number that all random choices follow from; no global generator is touched."""
        state = self.random_state
        if state is None:  # a run that is to be resumed has to make the same choices again
            return 0 if self.checkpoint is not None else int(np.random.SeedSequence().generate_state(1)[0])
        if isinstance(state, Integral):
            return int(state)
        return int(state.randint(2**31 - 1) if hasattr(state, "randint") else state.integers(2**31 - 1))

    def _build(self, table: TrainingSet, seed: int, steps: bool) -> None:
        double = table.X.dtype == np.float64 and self._device().type == "cpu"
        self.dtype_ = "float64" if double else "float32"
        goes_on = steps or self.precision == "double" or (double and blurred_in_float32(table.X))
        learning = getattr(torch, self.dtype_) if goes_on else torch.float32
        steps = steps or int(self.ensemble) > 1 or self.early_stopping is True
        asked = dataclasses.replace(self._problem(None), noisy=table.noise is not None, steps=steps)
        self.built_ = registry.resolve(self.method, asked, self.method_options, len(table.X))
        scaling = self._scaling(table) if self.standardize else None
        problem = self._problem(scaling)
        if registry.get(self.built_[0]).distils:
            loc, scale = scaling or (np.zeros(table.X.shape[1]), np.ones(table.X.shape[1]))
            from bedl.estimators.distill import counted, quantile_edges

            problem = dataclasses.replace(problem, edges=quantile_edges(counted(table)[0], loc, scale))
            bins = tuple(max(len(edges) - 1, 0) for edges in problem.edges or ())
            self.built_ = self.built_[0], {**self.built_[1], "bins": bins}
        self._problem_ = problem
        self.method_ = self._fresh(problem, seed)
        if self._members()[0].fit_mode != "direct":  # what is solved, not stepped to, needs all the digits there are
            self.method_.to(learning)
        counts = slice(None) if table.weight is None else table.weight > 0
        targets = torch.from_numpy(np.array(table.y[counts]))
        for member in self._members():
            if isinstance(getattr(member, "head", None), Head):
                member.head.prepare(targets)

    def _scaling(self, table: TrainingSet) -> tuple[np.ndarray, np.ndarray]:
        shared = self.standardize == "shared" or (self.image_shape is not None and table.X.ndim == 2)
        if not shared and registry.get(self.built_[0]).scaling == "quartiles" and table.X.ndim == 2:
            return column_quartiles(table.X, table.weight)
        if not shared:
            return column_moments(table.X, table.weight)
        flat = table.X.reshape(len(table.X), 1, -1)  # features as the pixels of one channel
        return tuple(np.repeat(part, table.X.shape[1]) for part in column_moments(flat, table.weight))  # type: ignore

    def _problem(self, scaling: tuple[np.ndarray, np.ndarray] | None) -> Problem:
        front = None if scaling is None else functools.partial(standardize, *scaling, self.input_shape_)
        return Problem(
            self.task_,
            self.n_targets_,
            self.input_shape_,
            self.hidden_layers,
            self.activation,
            self.net,
            front,
            image_shape=None if self.image_shape is None else tuple(self.image_shape),
        )

    def _fresh(self, problem: Problem, seed: int) -> Method:
        """The method that was chosen, or an ensemble of such, with fresh weights."""
        name, options = self.built_
        dtype = getattr(torch, self.dtype_)
        if int(self.ensemble) > 1 and registry.get(name).distils:
            raise ValueError(f"method {name!r} learns from a committee to be one network; leave ensemble at 1")
        with limit_threads(0):  # some hundred numbers at a time
            whole = Ensemble.of(int(self.ensemble), lambda: registry.get(name)(problem, **options).to(dtype), seed)
        if len(whole) > 1 and whole.members[0].fit_mode == "members":
            raise ValueError(f"method {name!r} is an ensemble already; leave ensemble at 1")
        return whole if len(whole) > 1 else whole.members[0]

    def _members(self) -> list[Any]:
        return list(self.method_.members)

    def _points(self, table: TrainingSet) -> Points:
        given = getattr(torch, self.dtype_)
        dtype = next((p.dtype for p in self.method_.parameters() if p.is_floating_point()), given)
        inputs = Inputs(table.X, table.noise, dtype)
        y = table.y if table.y.dtype.kind == "i" else table.y.astype(str(dtype).removeprefix("torch."))
        points = Points((inputs, y, table.weight))
        points.scaled = True  # by the first call, whatever later ones bring
        return points

    def _tempered(self) -> bool:
        """Whether points are held out for a temperature."""
        return False

    def _set_aside(
        self, points: Points, plan: TrainingConfig, seed: int, related: Related
    ) -> tuple[Points, Points | None]:
        """Points to learn from, and those that decide on a temperature, if it is wanted."""
        if not plan.n_calibration:
            return points, None
        kept, out = held_out(
            points.n, plan.n_calibration, stream_seed(seed, len(self._members())), self._labels(points), related
        )
        part = points.subset(kept)
        part.n_train = points.n_train * part.n / points.n
        return part, points.subset(out) if len(out) else None

    def _calibrate(self, points: Points) -> None:
        """Fit the temperature to points that were set aside."""
        raise NotImplementedError

    def _calibrate_by(self, committee: Any, points: Points) -> None:
        """Calibrate a network by the committee that it was distilled from.

        points: the rows, with labels drawn from the committee's out-of-fold predictions.
        """
        raise NotImplementedError

    def _parts(
        self,
        points: Points,
        plan: TrainingConfig,
        seed: int,
        related: Related | None = None,
        aside: Points | None = None,
    ) -> Iterator[tuple[Points, Points | None]]:
        """For each member, points to train on and points held out; each holds out others, if none are set aside."""
        for number in range(len(self._members())):
            if aside is not None or not plan.held_out:
                yield points, aside
                continue
            count = min(plan.held_out, points.n - 1)
            kept, out = held_out(points.n, count, stream_seed(seed, number), self._labels(points), related)
            if not len(out):
                yield points, None
                continue
            part = points.subset(kept)
            part.n_train = points.n_train * len(kept) / points.n
            yield part, points.subset(out)

    def _labels(self, points: Points) -> np.ndarray | None:
        """Classes, whose shares are to be kept where points are held out; None for other targets. shape: (n,)"""
        if points.y.dtype.kind != "i" or points.y.ndim != 1:
            return None
        return points.y if points.index is None else points.y[points.index]

    def _device(self) -> torch.device:
        if self.device != "auto":
            return torch.device("cuda" if self.device == "gpu" else self.device)
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found if found is not None else torch.device("cpu")


# What the two estimators share: learning and predicting; what comes before is in `building`.


MIN_CALIBRATION_ROWS = 9  # rows: with fewer no score is above 90 % of new ones
UNKNOWN_ROWS = 512  # rows with unknown values that are predicted at once
FEW_ROWS = 64  # rows of a table, up to which one thread is faster than several
PARTS = ("total", "aleatoric", "epistemic", "data", "distributional", "model")  # of a prediction's uncertainty


class BEDLEstimator(Building):
    """Base of `BEDLRegressor` and `BEDLClassifier`, which see for the parameters."""

    # -- learning ---------------------------------------------------------------------------------
    # scikit-learn hands these on wherever it knows of them
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": True, "order": True}

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, X_var: Any = None, *, groups: Any = None, order: Any = None
    ) -> Any:
        """Learn from a table.

        Args:
            X: shape (n, n_features), or (n, *input) with a `net` of your own
            y: targets. shape: (n,), or (n, n_targets) in regression
            sample_weight: how much each point counts: one of weight 2 as if it were there twice. shape: (n,)
            X_var: variance of the noise in X, in X's units squared: one for all, one per feature or one per value.
            groups: which rows belong together, such as those of a patient or a house; numbers or texts. What is left
                out, to weigh and to calibrate, is left out in whole groups, so that intervals hold for new groups.
                shape: (n,)
            order: when rows were observed: numbers or times. The latest are left out, so that intervals hold for the
                next period. shape: (n,)
        """
        continuing = bool(self.warm_start) and hasattr(self, "method_")
        table = self._check(X, y, sample_weight, X_var, not continuing, groups=groups, order=order)
        seed = self._seed()
        if not continuing:
            self._build(table, seed, steps=bool(self.warm_start))
        self._optimizers: list[Any] = []
        self.n_seen_ = table.size
        points = self._points(table)
        plan = self._plan(points.n)  # rows of weight 0 are not there
        points.n_train = table.size
        related = table.related if points.index is None else table.related[points.index]
        distils = registry.get(self.built_[0]).distils
        self.calibration_ = self.held_out_ = None
        with limit_threads(self._work(plan.batch_size)):
            if self._members()[0].fit_mode == "direct":
                self.history_ = self._fit_by_itself(points)
            else:
                points, n_calibration = self._set_aside(points, plan, seed, related)
                if n_calibration is not None:
                    related = table.related[points.index]
                if distils:
                    from bedl.estimators.distill import committee_of, drawn_points, labelled_points, of_points

                    committee = committee_of(self, table, points, seed)
                    drawn = drawn_points(committee, table, points, seed)
                    labelled = labelled_points(committee, table, points, seed)
                    plan, related = of_points(plan, points.n, labelled), Related()
                    points = labelled
                stops_by = n_calibration if plan.held_out else None
                parts = list(self._parts(points, plan, seed, related, stops_by))
                self.history_ = train(self, self._members(), parts, plan, seeds_of(seed, len(parts)))
                if n_calibration is not None:
                    self._calibrate(n_calibration)
        self._conclude()
        if distils:
            self._calibrate_by(committee, drawn)
        if self.verbose:
            print(self.chosen_)
        return self

    def _work(self, rows: int) -> float:
        """Multiplications of a pass of so many rows; unlimited where they do not follow from the parameters' number."""
        if not self._is_table() or any(member.fit_mode != "gradient" for member in self._members()):
            return math.inf
        return float(rows * sum(parameter.numel() for parameter in self.method_.parameters()))

    def _is_table(self) -> bool:
        """Whether a network of bedl's own takes rows of numbers."""
        return self.net is None and len(self.input_shape_) == 1 and self.image_shape is None

    def _conclude(self) -> None:
        self.method_.to(getattr(torch, self.dtype_))

    @property
    def chosen_(self) -> str:
        """The method that was fitted, in one line: its options, or its members and their weights."""
        check_is_fitted(self, "method_")
        name, options = self.built_
        said = self.method_.summary()
        given = ", ".join(f"{key}={value!r}" for key, value in options.items() if isinstance(value, (int, float, str)))
        members = f"{len(self._members())} networks" if len(self._members()) > 1 else "one network"
        return f"method {name!r}" + (f" ({given})" if given and not said else "") + f": {said or members}"

    def _hold_out(self, p: np.ndarray, labels: np.ndarray, weight: np.ndarray | None) -> None:
        """Keep what was predicted of classes that were not learned from. shapes: (n, C), (n,), (n,)"""
        raise NotImplementedError

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
        self.calibration_ = self.held_out_ = None
        first = self._members()[0]
        if first.fit_mode != "gradient" or first.has_fit_end or registry.get(self.built_[0]).distils:
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
    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the features that the network takes: of a table those that its columns were encoded as.

        Args:
            input_features: names of the columns of an array without names; None: x0, x1, …
        """
        check_is_fitted(self, "method_")
        if self.encoder_ is not None:
            return np.asarray(self.encoder_.feature_names, dtype=object)
        return _check_feature_names_in(self, input_features)

    def explain(self, X: Any, rows: Any = None) -> Any:
        """Why each prediction is uncertain, as a pandas frame with a row per point.

        It holds the parts of the uncertainty as `uncertainty` has them, ``total``, ``data``, ``distributional`` and
        ``model``; for each part ``<part>_column``, the column that it changes with most, and ``<part>_effect``, by how
        much it changes with one standard deviation of that column: the gradient of the part, by automatic
        differentiation; and ``next``, what would lower the largest part. With several targets or labels at once the
        columns end in the target's name or number. `rows_to_label` says which targets to ask for first.

        Args:
            X: shape (n, n_features)
            rows: such as the training rows, to find the three that the network takes as most similar to each of X; the
                columns ``nearest_1`` to ``nearest_3`` then hold their index. shape: (m, n_features)

        Example:
            >>> import numpy as np, pandas
            >>> from bedl import BEDLRegressor
            >>> r = np.random.default_rng(0)
            >>> X = pandas.DataFrame({"size": r.uniform(-1, 1, 300), "age": r.uniform(-1, 1, 300)})
            >>> y = X["size"] + np.exp(2 * X["age"] - 2) * r.normal(size=300)
            >>> why = BEDLRegressor(random_state=0, device="cpu").fit(X, y).explain(X)
            >>> why["data_column"].mode().tolist()  # of most rows
            ['age']
        """
        check_is_fitted(self, "method_")
        from bedl.estimators.explanation import explained

        return explained(self, X, rows)

    def predict_dist(self, X: Any, X_var: Any = None) -> Predictive:
        """The whole prediction for each point, in the targets' own units; see `bedl.heads.predictive`.

        Args:
            X: shape (n, n_features)
            X_var: variance of the noise in X, as in `fit`.
        """
        check_is_fitted(self, "method_")
        inputs = self._rows(X, X_var)
        if self.encoder_ is None:
            return self._predicted(inputs)
        return self.encoded_dist(inputs.X, self.encoder_)

    def encoded_dist(self, x: np.ndarray, encoder: Any) -> Predictive:
        """The prediction for encoded rows, averaged over what training saw where values are unknown.

        Args:
            x: NaN where a value is unknown. shape: (n, features)
            encoder: how they were encoded.
        """
        unknown, dtype = np.isnan(x).any(1), getattr(torch, self.dtype_)
        if not unknown.any():
            return self._predicted(Inputs(x, None, dtype))
        order = np.argsort(unknown, kind="stable")
        known, rest = order[: len(x) - int(unknown.sum())], order[len(x) - int(unknown.sum()) :]
        parts = [self._predicted(Inputs(x[known], None, dtype))] if len(known) else []
        for rows in np.array_split(rest, -(-len(rest) // UNKNOWN_ROWS)):
            possible = encoder.possible_rows(x[rows])
            flat = self._predicted(Inputs(possible.reshape(-1, x.shape[1]), None, dtype))
            parts.append(flat._map(lambda leaf, size=possible.shape[:2]: leaf.unflatten(0, size)).marginal())
        found = parts[0].concatenate(parts)[torch.as_tensor(np.argsort(order))]
        found.names = self._output_names()
        return found

    def _predicted(self, inputs: Inputs) -> Predictive:
        place = device_of(self.method_)
        if self.method_.training:
            self.method_.eval()  # once, not for every prediction
        few = len(inputs) <= FEW_ROWS and self._is_table()
        outputs = self.n_targets_ * len(self._members())
        # to prepare weights pays off from the second chunk on
        with (
            cached_weights(self.method_) if inputs.X.size > CHUNK else nullcontext(),
            limit_threads(0 if few else math.inf),
        ):
            parts = [
                self._in_units(self.method_.predict(chunk.to(place)).to("cpu")) for chunk in inputs.chunks(outputs)
            ]
        found = parts[0].concatenate(parts)
        found.names = self._output_names()
        return found

    def _inputs(self, X: Any) -> Inputs:
        """Rows, checked, and encoded where training's were; a typical value in place of an unknown one."""
        inputs = self._rows(X, None)
        if self.encoder_ is not None and np.isnan(inputs.X).any():
            inputs.X = self.encoder_.possible_rows(inputs.X, 1)[0]
        return inputs

    def _rows(self, X: Any, X_var: Any) -> Inputs:
        """Rows to predict for, checked, and encoded where training's were: NaN where a value is unknown."""
        X = dense(X)
        if self.encoder_ is not None:
            X = encoded(self, X, self.encoder_, self.handle_unknown)[0]
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


# Constructors that take the parameters of others.


def parameters_of(other: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: a constructor that takes another one's parameters beside its own, shows them all and refuses others.

    scikit-learn and editors read the parameters of an estimator off its signature.
    """

    def extend(init: Callable[..., Any]) -> Callable[..., Any]:
        named = [p for p in inspect.signature(init).parameters.values() if p.kind is p.KEYWORD_ONLY]
        theirs = inspect.signature(other)
        signature = theirs.replace(parameters=[*theirs.parameters.values(), *named])

        @functools.wraps(init)
        def checked(self: Any, *given: Any, **settings: Any) -> None:
            unknown = [name for name in settings if name not in signature.parameters]
            if unknown:
                near = difflib.get_close_matches(unknown[0], signature.parameters, n=1, cutoff=0.5)
                hint = (
                    f"; did you mean {near[0]!r}?"
                    if near
                    else f"; there are {', '.join(list(signature.parameters)[1:])}"
                )
                raise TypeError(f"{type(self).__name__} has no parameter {unknown[0]!r}{hint}")
            try:
                signature.bind(self, *given, **settings)
            except TypeError as error:
                raise TypeError(f"{type(self).__name__}: {error}") from None
            init(self, *given, **settings)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        return checked

    return extend
