"""Members of an estimator, trained: as one vectorised run where that works, else one after the other."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bedl.estimators.inputs import Inputs
from bedl.estimators.recipe import Recipe
from bedl.training import Checkpoints, Constant, Cosine, EarlyStopping, Warmup, adam, fit, fit_replicas
from bedl.training.correcting import Correct, forget_correction
from bedl.training.data import Points, stream_seed
from bedl.training.history import History, read_history
from bedl.training.schedule import Schedule
from bedl.training.stacked import is_known

__all__ = ["memory_of", "partial_train", "seeds_of", "train"]

TrainAndHeldOut = tuple[Points, Points | None]
_SCHEDULES: dict[str, Schedule] = {"cosine": Cosine(), "warmup": Warmup(), "constant": Constant()}
_MIXED: dict[str, Any] = {"precision": "bf16-mixed", "variance_products": "bfloat16"}
_TOGETHER = 2**26  # numbers in X, up to which it may be held in memory once more
_ALONE = 2**17  # parameters of a network, beyond which `torch.compile` may pay off
ROOM = 2**30  # bytes, in which networks are trained side by side
COPIES = 6  # of a parameter: as stacked and as the network's own, its gradient, Adam's moments, a product
PER_UNIT = 24  # numbers that are kept of a unit and a row: mean and variance, of copies too, forwards and back
_HELD = 2**22  # numbers in X, beyond which one network alone reads it batch by batch


def train(
    estimator: Any, members: Sequence[Any], parts: Sequence[TrainAndHeldOut], plan: Recipe, seeds: Sequence[int]
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
        try:
            return _in_groups(estimator, members, parts, plan, seeds)
        except RuntimeError as error:  # vmap's own; nothing has been changed
            if "vmap" not in str(error) and "functorch" not in str(error):
                raise
    rows = []
    for number, (member, (points, out)) in enumerate(zip(members, parts, strict=True)):
        place = _place(estimator, f"member-{number}" if len(members) > 1 else "")
        result = fit(
            member,
            points,  # type: ignore[arg-type]
            epochs=plan.epochs,
            batch_size=plan.batch_size,
            optimizer=adam(plan.lr),
            schedule=_SCHEDULES[estimator.schedule],
            validation=out,  # type: ignore[arg-type]
            early_stopping=None if out is None else EarlyStopping(plan.patience),
            checkpoint=place,
            resume=estimator.resume if estimator.checkpoint is not None else "auto",
            callbacks=tuple(estimator.callbacks),
            compile=estimator.compile,
            correct=_correct(estimator),
            progress=bool(estimator.verbose),
            accelerator=estimator.device,
            seed=seeds[number],
            **(_MIXED if estimator.precision == "bf16-mixed" else {}),
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
    small = isinstance(inputs, Inputs) and inputs.X.size <= _TOGETHER
    if not small or any(isinstance(module, _BatchNorm) for module in members[0].modules()):
        return False
    if len(members) > 1:
        return True
    # a small network by itself is a run of one replica: the same numbers, and less around them
    size = sum(parameter.numel() for parameter in members[0].parameters())
    few = size <= _ALONE and inputs.X.size <= _HELD
    return few and estimator.compile in (False, "auto") and inputs.noise is None and is_known(members[0])


def _in_groups(
    estimator: Any, members: Sequence[Any], parts: Sequence[TrainAndHeldOut], plan: Recipe, seeds: Sequence[int]
) -> list[dict]:
    """As many members at a time as there is room for, which follows from the networks alone: not from the machine."""
    size = max(1, ROOM // memory_of(members[0], plan.batch_size, parts[0][0].x.X.shape[1:]))
    if size >= len(members):
        return _as_one(estimator, members, parts, plan, seeds)
    rows = []
    for first in range(0, len(members), size):
        some = slice(first, first + size)
        found = _as_one(estimator, members[some], parts[some], plan, seeds[some], f"from-{first}")
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
    numbers = COPIES * sum(p.numel() for p in parameters) + PER_UNIT * batch_size * kept
    return numbers * max((p.element_size() for p in parameters), default=4)


def _as_one(
    estimator: Any,
    members: Sequence[Any],
    parts: Sequence[TrainAndHeldOut],
    plan: Recipe,
    seeds: Sequence[int],
    group: str = "together",
) -> list[dict]:
    held = [out for _, out in parts]
    stopping = None not in held
    place = _place(estimator, group if len(members) > 1 or group != "together" else "")
    log = [] if place is None else [History(Path(place.directory) / "history.jsonl")]
    result = fit_replicas(
        members,
        [points for points, _ in parts],
        epochs=plan.epochs,
        batch_size=plan.batch_size,
        lr=plan.lr,
        schedule=_SCHEDULES[estimator.schedule],
        validation=held if stopping else None,
        early_stopping=EarlyStopping(plan.patience) if stopping else None,
        correct=_correct(estimator),
        seeds=seeds,
        checkpoint=place,
        resume=estimator.resume if estimator.checkpoint is not None else "auto",
        callbacks=(*estimator.callbacks, *log),
        progress=bool(estimator.verbose),
        device=estimator._device(),
    )
    return [{"member": row["replica"], **_row(row)} for row in result.rows]


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
    if isinstance(estimator.checkpoint, Checkpoints):
        return dataclasses.replace(estimator.checkpoint, directory=Path(estimator.checkpoint.directory) / part)
    return Checkpoints(Path(estimator.checkpoint) / part)


def partial_train(
    estimator: Any, members: Sequence[Any], points: Points, plan: Recipe, optimizers: Sequence[Any], seed: int
) -> list[Any]:
    """Each member sees the points once. Returns the optimisers, whose memory the next call goes on with."""
    kept: list[Any] = []
    for number, (member, before) in enumerate(zip(members, optimizers, strict=True)):
        forget_correction(member, "auto")  # of the weights as an earlier `fit` left them

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
            accelerator=estimator.device,
            seed=stream_seed(seed, number),
            **(_MIXED if estimator.precision == "bf16-mixed" else {}),
        )
    return kept
