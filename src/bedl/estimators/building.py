"""What an estimator was asked for, and what is made of it: parameters, checks, the recipe, networks, points."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, check_consistent_length

from bedl.estimators.frames import dense, encoded, needs_encoding
from bedl.estimators.inputs import (
    Inputs,
    TrainingSet,
    blurred_in_float32,
    check_image_shape,
    check_noise,
    column_moments,
    column_quartiles,
    held_out,
    warn_of_small,
)
from bedl.estimators.portable import Portable
from bedl.estimators.recipe import Recipe, recipe
from bedl.estimators.scaling import standardize
from bedl.heads import Head
from bedl.methods import Ensemble, Method, Problem, registry
from bedl.training.data import Points, stream_seed
from bedl.training.threads import few_threads

if TYPE_CHECKING:
    from bedl.data.features import FeatureEncoder

__all__ = ["Building"]

_CHOICES = {
    "unseen": ("error", "ignore"), "precision": ("auto", "double", "bf16-mixed"),
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

    def __init__(
        self,
        hidden_layers: Any = "auto",
        activation: Any = "relu",
        *,
        net: Any = None,
        method: str = "auto",
        method_options: dict[str, Any] | None = None,
        image_shape: tuple[int, ...] | None = None,
        standardize: bool | str = True,
        unseen: str = "error",
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
        self.image_shape = image_shape
        self.standardize = standardize
        self.unseen = unseen
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
    def _check(self, X: Any, y: Any, sample_weight: Any, X_var: Any, reset: bool, classes: Any = None) -> TrainingSet:
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
        return TrainingSet(X, self._targets(y, weight, reset, classes), weight, noise)

    def _takes_table(self, X: Any, reset: bool) -> bool:
        """Whether X has to be encoded: it holds more than numbers, or what was learned from did."""
        return self.net is None and needs_encoding(X) if reset else self.encoder_ is not None

    def _check_table(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """A table of any kind as numbers, and the targets, checked."""
        table, self.encoder_ = encoded(self, X, self.encoder_, self.unseen)
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
    def _plan(self, n: int) -> Recipe:
        asked, built = registry.get(self.method), registry.get(self.built_[0])
        # a choice such as "auto" says itself how one network of a table is trained; folds and images know better
        alone = not self.method_.folds and built.name != "images"
        wanted = asked.training if asked.choice is not None and alone else built.training
        return recipe(
            n, self.epochs, self.batch_size, self.patience, self.early_stopping, self.validation_fraction,
            self.learning_rate, None if wanted is None else wanted(n), table=len(self.input_shape_) == 1,
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
        self.method_ = self._fresh(self._problem(scaling), seed)
        if self._members()[0].learns != "by itself":  # what is solved, not stepped to, needs all the digits there are
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
        if int(self.ensemble) > 1 and registry.get(name).sized is not None:
            raise ValueError(f"method {name!r} is an ensemble already; leave ensemble at 1")
        with few_threads(0):  # some hundred numbers at a time
            whole = Ensemble.of(int(self.ensemble), lambda: registry.get(name)(problem, **options).to(dtype), seed)
        if len(whole) > 1 and whole.members[0].learns == "in its members":
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

    def _set_aside(self, points: Points, plan: Recipe, seed: int) -> tuple[Points, Points | None]:
        """Points to learn from, and those that decide how bold predictions are, if the method wants some."""
        if not plan.judges:
            return points, None
        kept, out = held_out(points.n, plan.judges, stream_seed(seed, len(self._members())), self._labels(points))
        part = points.subset(kept)
        part.n_train = points.n_train * part.n / points.n
        return part, points.subset(out) if len(out) else None

    def _judge(self, points: Points) -> None:
        """Let points that were set aside decide how bold predictions are."""
        raise NotImplementedError

    def _parts(self, points: Points, plan: Recipe, seed: int) -> Iterator[tuple[Points, Points | None]]:
        """For each member, points to train on and points held out; each holds out others."""
        for number in range(len(self._members())):
            if not plan.held_out:
                yield points, None
                continue
            count = min(plan.held_out, points.n - 1)
            kept, out = held_out(points.n, count, stream_seed(seed, number), self._labels(points))
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
