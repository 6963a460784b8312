"""How to train when nobody says: batch size, epochs, patience and learning rate, from the size of the data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from contextlib import suppress
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bedl.estimators.inputs import Inputs
from bedl.methods import registry
from bedl.methods.registry import Training
from bedl.training import (
    Callback,
    Checkpoints,
    Constant,
    Cosine,
    EarlyStopping,
    GradientOptions,
    Progress,
    Warmup,
    adam,
    fit,
    fit_replicas,
)
from bedl.training.callbacks import Schedule, read_history
from bedl.training.checkpoint import as_checkpoints
from bedl.training.data import Points, stream_seed
from bedl.training.engines.stacked import VectorisationError, can_fuse
from bedl.training.loop import Correct, reset_correction

TABLE_RATE, IMAGE_RATE = 0.01, 0.001  # of Adam; with ten times as much, LeNet-5 has twice the errors
SMALL_TABLE = 64  # fewer points than that are trained on as one batch, without holding any out


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """The numbers of a run.

    Attributes:
        epochs: at most.
        batch_size: points per step.
        patience: epochs without improvement.
        held_out: how many points decide when to stop; 0: none.
        lr: learning rate of Adam, at its highest.
        n_calibration: how many points are held out for temperature scaling, and to stop early if that is asked for.
    """

    epochs: int
    batch_size: int
    patience: int
    held_out: int
    lr: float = 0.01
    n_calibration: int = 0


def resolve_config(
    n: int,
    epochs: Any,
    batch_size: Any,
    patience: Any,
    early_stopping: Any,
    validation_fraction: float,
    learning_rate: Any = "auto",
    wanted: Training | None = None,
    table: bool = True,
    tempered: bool = False,
) -> TrainingConfig:
    """The numbers for n points, rows of a `table` or images: what the user says, what the method wants, else a rule.

    Example:
        >>> resolve_config(20, "auto", "auto", "auto", True, 0.1)
        TrainingConfig(epochs=500, batch_size=20, patience=50, held_out=0, lr=0.01, n_calibration=0)
        >>> resolve_config(10_000, "auto", "auto", "auto", True, 0.1)
        TrainingConfig(epochs=70, batch_size=64, patience=10, held_out=1000, lr=0.01, n_calibration=0)
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size), ("patience", patience)):
        if value != "auto" and not (isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1):
            raise ValueError(f"{name} must be 'auto' or a number of at least 1, not {value!r}")
    if not isinstance(validation_fraction, Real) or not 0 < validation_fraction < 1:
        raise ValueError(f"validation_fraction must lie between 0 and 1, not {validation_fraction!r}")
    stops = early_stopping if early_stopping != "auto" else wanted is None or wanted.early_stopping
    small = n <= SMALL_TABLE
    count = 0 if small or not stops else max(1, round(validation_fraction * n))
    n_calibration = 0 if small or not tempered else max(count, min(n // (5 if stops else 10), 200), min(n // 20, 5000))
    size, times = _pace(n, n - max(count, n_calibration), small, batch_size, epochs, wanted)
    waits = max(10, times // 10) if patience == "auto" else patience
    usual = TABLE_RATE if table else IMAGE_RATE
    lr = float(learning_rate) if learning_rate != "auto" else usual if wanted is None else wanted.lr
    return TrainingConfig(times, size, int(waits), count, lr, n_calibration)


def _pace(n: int, kept: int, small: bool, batch_size: Any, epochs: Any, wanted: Training | None) -> tuple[int, int]:
    """Points per step, and how often each point is seen."""
    if batch_size == "auto":
        ours = kept if small else min(256, max(32, 2 ** round(math.log2(n) / 2 - 1)))
        batch_size = ours if wanted is None else wanted.batch_size
    size = min(int(batch_size), kept)
    if epochs == "auto":
        # measured on UCI's tables: what learns slowly (energy) needs some thousand steps, the others stop before
        ours = 500 if small else min(400, max(20, 10_000 // math.ceil(kept / size)))
        epochs = ours if wanted is None else wanted.epochs
    return size, int(epochs)


# Members of an estimator, trained: as one vectorised run where that works, else one after the other.


TrainAndHeldOut = tuple[Points, Points | None]
_SCHEDULES: dict[str, Schedule] = {"cosine": Cosine(), "warmup": Warmup(), "constant": Constant()}
_MAX_STACKED_NUMEL = 2**26  # numbers in X, up to which it may be held in memory once more
_MIN_COMPILED_PARAMETERS = 2**19  # parameters of a network, beyond which `torch.compile` may pay off
MAX_REPLICA_BYTES = 2**30  # bytes, in which networks are trained side by side
COPIES_PER_PARAMETER = 6  # of a parameter: as stacked and as the network's own, its gradient, Adam's moments, a product
NUMEL_PER_UNIT = 24  # numbers that are kept of a unit and a row: mean and variance, of copies too, forwards and back
_MAX_NUMEL_IN_MEMORY = 2**22  # numbers in X, beyond which one network alone reads it batch by batch


def train(
    estimator: Any, members: Sequence[Any], parts: Sequence[TrainAndHeldOut], plan: TrainingConfig, seeds: Sequence[int]
) -> list[dict]:
    """Train all members, in place.

    Args:
        estimator: whose parameters say how.
        members: the methods.
        parts: for each, points to train on and points held out.
        plan: the numbers of the run.
        seeds: of all random choices, for each member.

    Returns:
        a row per member and epoch: member, epoch, loss, val_nll
    """
    if _together(estimator, members, parts[0][0]):
        with suppress(VectorisationError):  # which has changed nothing
            return _in_groups(estimator, members, parts, plan, seeds)
    rows = []
    for number, (member, (points, out)) in enumerate(zip(members, parts, strict=True)):
        place = _place(estimator, f"member-{number}" if len(members) > 1 else "")
        result = fit(
            member,
            points,  # type: ignore[arg-type]
            epochs=plan.epochs,
            batch_size=plan.batch_size,
            lr=plan.lr,
            schedule=_SCHEDULES[estimator.schedule],
            validation=out,  # type: ignore[arg-type]
            callbacks=_callbacks(estimator, None if out is None else plan.patience),
            checkpoint=place,
            compile=estimator.compile,
            correct=_correct(estimator),
            seed=seeds[number],
            **_precision(estimator),
        )
        rows += [{"member": number, **_row(row)} for row in _all_epochs(result.rows, place)]
    return rows


def seeds_of(seed: int, count: int) -> list[int]:
    """A seed for each of so many members."""
    return [stream_seed(seed, number) for number in range(count)]


def _together(estimator: Any, members: Sequence[Any], points: Points) -> bool:
    inputs = points.x
    if estimator.precision == "bf16-mixed":  # vectorised runs know one precision
        return False
    small = isinstance(inputs, Inputs) and inputs.X.size <= _MAX_STACKED_NUMEL
    if not small or any(isinstance(module, _BatchNorm) for module in members[0].modules()):
        return False
    if len(members) > 1:
        return True
    # a small network by itself is a run of one replica: the same numbers, and less around them
    size = sum(parameter.numel() for parameter in members[0].parameters())
    few = size <= _MIN_COMPILED_PARAMETERS and inputs.X.size <= _MAX_NUMEL_IN_MEMORY
    return few and estimator.compile in (False, "auto") and inputs.noise is None and can_fuse(members[0])


def _in_groups(
    estimator: Any, members: Sequence[Any], parts: Sequence[TrainAndHeldOut], plan: TrainingConfig, seeds: Sequence[int]
) -> list[dict]:
    """As many members at a time as there is room for, which follows from the networks alone: not from the machine."""
    size = max(1, MAX_REPLICA_BYTES // memory_of(members[0], plan.batch_size, parts[0][0].x.X.shape[1:]))
    if size >= len(members):
        return _fit_vectorised(estimator, members, parts, plan, seeds)
    rows = []
    for first in range(0, len(members), size):
        some = slice(first, first + size)
        found = _fit_vectorised(estimator, members[some], parts[some], plan, seeds[some], f"from-{first}")
        rows += [{**row, "member": row["member"] + first} for row in found]
    return rows


def memory_of(member: nn.Module, batch_size: int, input_shape: tuple[int, ...]) -> int:
    """Bytes that a network takes while it learns beside others, estimated: its parameters, their gradient and the
    moments of Adam, and what each layer keeps of a batch.

    Example:
        >>> memory_of(nn.Linear(100, 10), 32, (100,))
        54960
    """
    parameters = [p for p in member.parameters() if p.requires_grad]
    places = math.prod(input_shape[1:])  # of an image, at which each channel has a number
    kept = sum(p.shape[0] * (places if p.dim() > 2 else 1) for p in parameters if p.dim() > 1)
    numbers = COPIES_PER_PARAMETER * sum(p.numel() for p in parameters) + NUMEL_PER_UNIT * batch_size * kept
    return numbers * max((p.element_size() for p in parameters), default=4)


def _fit_vectorised(
    estimator: Any,
    members: Sequence[Any],
    parts: Sequence[TrainAndHeldOut],
    plan: TrainingConfig,
    seeds: Sequence[int],
    group: str = "together",
) -> list[dict]:
    held = [out for _, out in parts]
    stopping = None not in held
    place = _place(estimator, group if len(members) > 1 or group != "together" else "")
    result = fit_replicas(
        members,
        [points for points, _ in parts],
        epochs=plan.epochs,
        batch_size=plan.batch_size,
        lr=plan.lr,
        schedule=_SCHEDULES[estimator.schedule],
        validation=held if stopping else None,
        callbacks=_callbacks(estimator, plan.patience if stopping else None),
        checkpoint=place,
        correct=_correct(estimator),
        seeds=seeds,
        device=estimator._device(),
    )
    return [{"member": row["replica"], **_row(row)} for row in result.rows]


def _callbacks(estimator: Any, patience: int | None) -> tuple[Callback, ...]:
    """The user's own, and what the estimator's parameters ask for."""
    stopping = [] if patience is None else [EarlyStopping(patience)]
    return (*estimator.callbacks, *stopping, *([Progress()] if estimator.verbose else []))


def _precision(estimator: Any) -> dict[str, Any]:
    """Where and how precisely `fit` computes."""
    if estimator.precision != "bf16-mixed":
        return {"fabric": {"accelerator": estimator.device}}
    fabric = {"accelerator": estimator.device, "precision": "bf16-mixed"}
    return {"fabric": fabric, "gradient": GradientOptions(variance_products="bfloat16")}


def _correct(estimator: Any) -> Correct:
    """Networks of a user's own as `fit` does it; ours not, as what they predict would stay the same on average."""
    return "auto" if estimator.net is not None else False


def _all_epochs(rows: Sequence[dict], place: Checkpoints | None) -> Sequence[dict]:
    """The rows of a run, and before them those of the processes it was taken up from."""
    if place is None or not (file := Path(place.directory) / "history.jsonl").exists():
        return rows
    return [row for row in read_history(file) if row["kind"] == "epoch"]


def _row(row: dict) -> dict:
    return {key: row[key] for key in ("epoch", "loss", "val_nll") if key in row}


def _place(estimator: Any, part: str) -> Checkpoints | None:
    if estimator.checkpoint is None:
        return None
    places = as_checkpoints(estimator.checkpoint)
    assert places is not None
    resume = places.resume if estimator.resume == "auto" else estimator.resume
    return dataclasses.replace(places, directory=Path(places.directory) / part, resume=resume)


def partial_train(
    estimator: Any, members: Sequence[Any], points: Points, plan: TrainingConfig, optimizers: Sequence[Any], seed: int
) -> list[Any]:
    """Each member sees the points once. Returns the optimisers, whose memory the next call goes on with."""
    kept: list[Any] = []
    for number, (member, before) in enumerate(zip(members, optimizers, strict=True)):
        reset_correction(member, "auto")  # of the weights as an earlier `fit` left them

        def make(parameters: Any, before: Any = before) -> Any:
            optimizer = adam(plan.lr)(parameters) if before is None else before
            kept.append(optimizer)
            return optimizer

        fit(
            member,
            points,  # type: ignore[arg-type]
            epochs=1,
            batch_size=plan.batch_size,
            optimizer=make,
            schedule=Constant(),
            correct=False,
            seed=stream_seed(seed, number),
            **_precision(estimator),
        )
    return kept


# Several estimators, each on a table of its own, fitted as one vectorised run: splits of a data set, seeds.


def fit_many(estimators: Sequence[Any], tables: Sequence[tuple[Any, Any]]) -> None:
    """Fit estimators that differ in their `random_state` alone, each on its own (X, y), in place.

    A small network keeps no processor busy; twenty at once take little longer than one. Each ends up where its own
    `fit` would have taken it, up to rounding and to what a method draws while it learns, such as dropout. Methods that
    take no gradient steps, hold out folds or set points aside, and tables whose sizes ask for other batches or epochs,
    are fitted one after the other.

    Args:
        estimators: fresh ones.
        tables: (X, y) for each, as for `fit`.

    Example:
        >>> import numpy as np
        >>> from bedl import BEDLRegressor
        >>> X = np.linspace(-1, 1, 60)[:, None]
        >>> models = [BEDLRegressor(method="bedl", epochs=2, random_state=seed, device="cpu") for seed in (0, 1)]
        >>> fit_many(models, [(X, 2 * X[:, 0]), (X, -X[:, 0])])
        >>> [model.predict(X).shape for model in models]
        [(60,), (60,)]
    """
    if len(estimators) != len(tables) or not estimators:
        raise ValueError(f"fit_many takes a table for each estimator, not {len(tables)} for {len(estimators)}")
    if len({_settings(estimator) for estimator in estimators}) > 1:
        raise ValueError("fit_many takes estimators that differ in their random_state alone")
    begun = [_prepared(estimator, *table) for estimator, table in zip(estimators, tables, strict=True)]
    first = estimators[0]
    if any(one is None or one[1] != begun[0][1] for one in begun) or first.warm_start or first.checkpoint is not None:
        for estimator, (x, y) in zip(estimators, tables, strict=True):
            estimator.fit(x, y)
        return
    members = [member for estimator in estimators for member in estimator._members()]
    parts = [part for one in begun for part in one[0]]
    seeds = [seed for one in begun for seed in one[2]]
    rows = train(first, members, parts, begun[0][1], seeds)
    each = len(members) // len(estimators)
    for number, estimator in enumerate(estimators):
        own = range(number * each, (number + 1) * each)
        estimator.history_ = [{**row, "member": row["member"] - own.start} for row in rows if row["member"] in own]
        estimator._conclude()


def _settings(estimator: Any) -> str:
    given = estimator.get_params(deep=False)
    return repr([type(estimator), sorted((name, repr(v)) for name, v in given.items() if name != "random_state")])


def _prepared(estimator: Any, x: Any, y: Any) -> Any:
    """What `fit` does before the steps: (parts, recipe, seeds); None where there are no steps to take together."""
    table, seed = estimator._check(x, y, None, None, reset=True), estimator._seed()
    estimator._build(table, seed, steps=False)
    if estimator._members()[0].fit_mode != "gradient" or registry.get(estimator.built_[0]).distils:
        return None
    plan = estimator._plan(len(table.X))
    if plan.n_calibration:
        return None
    estimator._optimizers, estimator.n_seen_ = [], table.size
    points = estimator._points(table)
    points.n_train = table.size
    parts = list(estimator._parts(points, plan, seed))
    return parts, plan, seeds_of(seed, len(parts))
