"""What a run leaves behind: rows on disk, and lines or a bar on the screen."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bedl._utils.io import write_atomically
from bedl.methods import Method

if TYPE_CHECKING:
    from bedl.heads.predictive import Predictive
    from bedl.training.checkpoint import Checkpoints
    from bedl.training.loop import Run


Row = dict[str, Any]


class Callback:
    """Looks on while a method is trained; override what you need. Called on the first process only.

    `run` shows where training is (`run.step`, `run.epoch`, `run.method`, …); setting ``run.stop = True`` ends it after
    the present step.
    """

    def on_start(self, run: Run) -> None:
        """Before the first step, after a checkpoint was loaded."""

    def on_step(self, run: Run, row: Row) -> None:
        """After each optimiser step."""

    def on_epoch(self, run: Run, row: Row) -> None:
        """After each epoch and its validation."""

    def on_end(self, run: Run) -> None:
        """At the end, after an error too."""


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Callbacks as a tuple; an error that says how to write one for anything else."""
    given = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    for callback in given:
        if not all(hasattr(callback, name) for name in ("on_start", "on_step", "on_epoch", "on_end")):
            raise TypeError(
                f"{callback!r} is no callback: derive a class from bedl.training.Callback, write on_step(self, run, "
                "row) or on_epoch(self, run, row) in it, and pass callbacks=[ThatClass()]"
            )
    return given


def early_stopping_of(callbacks: Iterable[Callback], validation: Any) -> EarlyStopping | None:
    """The one that says when to stop, which needs something to stop by."""
    found = [callback for callback in callbacks if isinstance(callback, EarlyStopping)]
    if len(found) > 1:
        raise ValueError(f"callbacks: {len(found)} EarlyStopping; one says when to stop")
    if found and validation is None:
        raise ValueError("EarlyStopping looks at a validation set; pass validation=(x, y)")
    return found[0] if found else None


def with_history(callbacks: tuple[Callback, ...], places: Checkpoints | None) -> tuple[Callback, ...]:
    """Beside checkpoints a history is kept; without them a run begins one."""
    files = [callback for callback in callbacks if isinstance(callback, History)]
    if places is not None:
        return callbacks if files else (*callbacks, History(Path(places.directory) / "history.jsonl"))
    for file in files:
        if file.path.exists() and file.path.stat().st_size:
            raise ValueError(f"{file.path} holds the history of another run; move it, or choose another file")
    return callbacks


def read_history(path: str | os.PathLike[str]) -> list[Row]:
    """The whole rows of a history file; a line that a crash cut short is left out."""
    rows = []
    for line in Path(path).read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


class History(Callback):
    """Appends rows to a file of JSON lines: one per epoch, and one per `every` steps.

    A resumed run drops the rows that lie after its checkpoint, since it will write them again.
    """

    def __init__(self, path: str | os.PathLike[str], every: int = 50):
        self.path, self.every = Path(path), every

    def on_start(self, run: Run) -> None:
        kept = [row for row in read_history(self.path) if row["step"] <= run.step] if self.path.exists() else []
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in kept).encode())

    def on_step(self, run: Run, row: Row) -> None:
        if row["step"] % self.every == 0:
            self._append(row)

    def on_epoch(self, run: Run, row: Row) -> None:
        self._append(row)

    def _append(self, row: Row) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")


class Progress(Callback):
    """Loss, points per second and time left: a bar if rich is installed and this is a terminal, else lines of text."""

    def __init__(self, seconds: float = 5.0):
        self.seconds = seconds
        self.bar: Any = None

    def on_start(self, run: Run) -> None:
        self.began = self.last = time.monotonic()
        self.first_step, self.points = run.step, 0
        if sys.stderr.isatty():
            try:
                from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
                from rich.progress import Progress as Bar
            except ImportError:
                return
            columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn(),
                       TextColumn("loss {task.fields[loss]:.4f}  {task.fields[rate]:,.0f} points/s"),
                       TimeRemainingColumn())  # fmt: skip
            self.bar = Bar(*columns, transient=True)
            self.task = self.bar.add_task("", total=run.total_steps, completed=run.step, epoch=0, loss=0.0, rate=0.0)
            self.bar.start()

    def on_step(self, run: Run, row: Row) -> None:
        self.points += row["points"]
        now = time.monotonic()
        rate = self.points / max(now - self.began, 1e-9)
        if self.bar is not None:
            self.bar.update(self.task, completed=run.step, epoch=row["epoch"], loss=row["loss"], rate=rate)
        elif now - self.last >= self.seconds:
            self.last = now
            left = (now - self.began) / (run.step - self.first_step) * (run.total_steps - run.step)
            text = f"epoch {row['epoch']}  step {run.step}/{run.total_steps}  loss {row['loss']:.4f}"
            print(f"{text}  {rate:,.0f} points/s  {left:,.0f} s left", file=sys.stderr, flush=True)

    def on_end(self, run: Run) -> None:
        if self.bar is not None:
            self.bar.stop()


# Stopping when the validation set says so.


@dataclasses.dataclass(frozen=True)
class EarlyStopping(Callback):
    """A callback that stops when the validation score has not improved for `patience` epochs.

    Args:
        patience: how many epochs without improvement are allowed.
        min_delta: what counts as an improvement.
        restore_best: go back to the parameters of the best epoch at the end.

    Example:
        >>> state = EarlyStoppingState(EarlyStopping(patience=1))
        >>> [(state.update({0: score}), state.stopped[0]) for score in (1.0, 0.5, 0.6, 0.7)]
        [([0], False), ([0], False), ([], False), ([], True)]
    """

    patience: int = 10
    min_delta: float = 0.0
    restore_best: bool = True


class EarlyStoppingState:
    """What early stopping remembers of each network of a run.

    Args:
        rule: when to stop; None: never.
        count: how many networks there are.

    Attributes:
        stopped: which have waited long enough.
    """

    def __init__(self, rule: EarlyStopping | None, count: int = 1):
        self.rule = rule
        self.best, self.waited, self.stopped = [math.inf] * count, [0] * count, [False] * count

    def update(self, scores: Mapping[int, float]) -> list[int]:
        """Take in an epoch's scores by number, lower is better; returns those whose parameters are to be kept."""
        if self.rule is None:
            return []
        improved = [r for r, score in scores.items() if score < self.best[r] - self.rule.min_delta]
        for r in scores:
            self.waited[r] = 0 if r in improved else self.waited[r] + 1
            self.stopped[r] = self.waited[r] > self.rule.patience
        for r in improved:
            self.best[r] = scores[r]
        return improved if self.rule.restore_best else []

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited, "stopped": self.stopped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.waited, self.stopped = (list(state[name]) for name in ("best", "waited", "stopped"))


# Learning rates over the steps of a run: factors on the optimiser's own rate.


Schedule = Callable[[int, int], float]  # (step, total steps) -> factor on the learning rate
MakeScheduler = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


@dataclasses.dataclass(frozen=True)
class Warmup:
    """A linear rise over the first steps, then constant.

    The first steps of a wide net with Gaussian weights are the dangerous ones.

    Args:
        steps: how many; a twentieth of the run, at most 500, if not said.

    Example:
        >>> [Warmup(4)(step, 100) for step in range(6)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    steps: int | None = None

    def __call__(self, step: int, total: int) -> float:
        length = min(500, total // 20) if self.steps is None else self.steps
        return min(1.0, (step + 1) / max(length, 1))


WARMUP = Warmup()


@dataclasses.dataclass(frozen=True)
class Cosine:
    """The rise of `Warmup`, then half a cosine down to `floor` at the end of the run."""

    steps: int | None = None
    floor: float = 0.0

    def __call__(self, step: int, total: int) -> float:
        down = 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(total, 1))))
        return Warmup(self.steps)(step, total) * (self.floor + (1 - self.floor) * down)


def learning_rates(schedule: Any, base: Sequence[float], total: int) -> Callable[[int], list[float]]:
    """The learning rates of an optimiser's groups at each step.

    Args:
        schedule: a `Schedule`, or what makes a scheduler of PyTorch from an optimiser, which is stepped once per step.
        base: rates as the optimiser has them.
        total: steps of the run.
    """
    required = [p for p in inspect.signature(schedule).parameters.values() if p.default is p.empty]
    if len([p for p in required if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]) != 1:
        return lambda step: [rate * schedule(step, total) for rate in base]
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1)], "lr": rate} for rate in base])
    scheduler = schedule(optimizer)
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) or not hasattr(scheduler, "step"):
        raise TypeError(
            f"fit: schedule made a {type(scheduler).__name__}; it takes (step, total) -> factor, or an optimiser -> a "
            "scheduler of torch.optim.lr_scheduler that looks at the number of steps alone"
        )
    rates = []
    for _ in range(total):
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return lambda step: rates[step]


@dataclasses.dataclass(frozen=True)
class Constant:
    """The learning rate as it is, from the first step on."""

    def __call__(self, step: int, total: int) -> float:
        return 1.0


# What targets count, and how probable a method finds them: with its head's own view of targets.


def _head(method: Method) -> Any:
    return getattr(method.members[0], "head", None)


def counted(method: Method, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Targets with a stand-in where they are not to count, and how much each counts; see `Head.counted`."""
    head = _head(method)
    return (y, weight) if head is None else head.counted(y, weight)


def log_density(method: Method, x: Any, y: Tensor) -> Tensor:
    """log p(y|x) of points whose targets all count. y: shape (n,), (n, D), (n, *places); result: (n, *places)"""
    prediction, head = method.predict(x), _head(method)
    return log_prob_of(prediction, y if head is None else head.targets_last(y, prediction.mean.ndim))


def scored(method: Method, x: Any, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """log p(y|x) of each point, and how much it counts. shapes: (n, *places)"""
    y, weight = counted(method, y, weight)
    prediction, head = method.predict(x), _head(method)
    y = y if head is None else head.targets_last(y, prediction.mean.ndim)
    prediction.check_targets(y)
    log_p = log_prob_of(prediction, y)
    if weight is None:
        return log_p, torch.ones_like(log_p)
    weight = as_places(weight, log_p)
    return log_p.where(weight > 0, 0.0), weight


def as_places(weight: Tensor, values: Tensor) -> Tensor:
    """Weights of points as those of all places of dense outputs. shapes: (n,), (n, *places) -> (n, *places)"""
    if weight.ndim == values.ndim:
        return weight
    return weight.reshape(weight.shape + (1,) * (values.ndim - weight.ndim)).expand(values.shape)


def log_prob_of(prediction: Predictive, y: Tensor) -> Tensor:
    """log p(y) of each point. y: shape (n,), (n, D), (n, *places); result: (n, *places)"""
    # one target may come without an axis of its own, which log_prob would broadcast
    return prediction.log_prob(y.unsqueeze(-1) if y.is_floating_point() and y.ndim < prediction.mean.ndim else y)
