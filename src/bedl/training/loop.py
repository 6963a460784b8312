"""The training loop: what runs of one network and of many have in common, and callbacks are shown."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from bedl._utils.errors import BEDLError
from bedl.methods import Method
from bedl.nn import GaussianLayer, correct_variances, remove_correction, std_ratio
from bedl.nn.calling import map_parts
from bedl.training import checkpoint
from bedl.training.callbacks import WARMUP, Callback, EarlyStopping, EarlyStoppingState, MakeScheduler, Row, Schedule
from bedl.training.checkpoint import CheckpointError, Checkpoints, CheckpointTimer, compare_settings, resume_from
from bedl.training.compile import Compile
from bedl.training.data import Points, cast

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


def adam(lr: float = 1e-3, **options: Any) -> MakeOptimizer:
    """Adam with this learning rate, for `fit(optimizer=…)`, with options of its own.

    Args:
        lr: learning rate.
        options: of `torch.optim.Adam`. On CPUs its fused form, several times as fast, unless they say otherwise.

    Example:
        >>> import bedl
        >>> bedl.training.adam(0.01)(bedl.GaussianLinear(3, 2).parameters()).defaults["lr"]
        0.01
    """

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        parameters = list(parameters)
        free = not {"fused", "foreach", "differentiable"} & set(options)
        if free and all(p.device.type == "cpu" for p in parameters):
            return torch.optim.Adam(parameters, lr=lr, fused=True, **options)
        return torch.optim.Adam(parameters, lr=lr, **options)

    return make


@dataclasses.dataclass(frozen=True)
class GradientOptions:
    """How a step's gradient is computed.

    Args:
        clip: its greatest norm; None for no clipping.
        accumulate: micro-batches that a process's part of a batch is cut into, to save memory. The gradient is that
            of the whole batch; a loss with a root costs one more forward pass for it (see
            `bedl.training.engines.fabric`).
        variance_products: "float32", or "bfloat16": products that make variances round their operands, see
            `bedl.nn.variance_products`. "auto": bfloat16 in compiled runs on processors with instructions for it.
    """

    clip: float | None = 1.0
    accumulate: int = 1
    variance_products: str = "auto"

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise ValueError(f"GradientOptions: accumulate must be at least 1, not {self.accumulate}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"GradientOptions: clip must be positive, or None for no clipping, not {self.clip}")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The choices of a run; `fit` and `fit_replicas` explain them."""

    epochs: int
    batch_size: int
    schedule: Schedule | MakeScheduler = WARMUP
    gradient: GradientOptions = GradientOptions()
    early_stopping: EarlyStopping | None = None
    checkpoints: Checkpoints | None = None
    callbacks: tuple[Callback, ...] = ()
    optimizer: MakeOptimizer | None = None  # of one network
    compile: Compile = "auto"
    correct: Correct = "auto"
    rates: tuple[float, ...] = ()  # learning rates of many networks
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"fit: {name} must be at least 1, not {getattr(self, name)}")


class Run:
    """A run under way, of one network or of many; engines say how a step is taken.

        while it has not ended:     `_advance`: steps, each told to the callbacks, and checkpoints where they are due
        then:                       `_finish`: the best parameters, and what follows from the trained networks

    Attributes:
        settings: its choices.
        step, total_steps: optimiser steps taken, and planned.
        epoch: counted from 0.
        stop: set it to end the run after the present step.
        checkpoint: the newest.
    """

    engine: ClassVar[str]  # named in checkpoints
    epoch: Any
    total_steps: int

    def __init__(self, settings: Settings, count: int = 1):
        self.settings, self.step, self.stop = settings, 0, False
        self.stopping = EarlyStoppingState(settings.early_stopping, count)
        self.best: Any = None  # the parameters to go back to
        self.checkpoint: Path | None = None
        self.timer = CheckpointTimer(settings.checkpoints)

    def __call__(self) -> None:
        """Train from where the run stands to its end."""
        path = resume_from(self.settings.checkpoints)
        if path is not None:
            self.load(path)
        self._tell("on_start")
        try:
            while not self._has_ended():
                self._advance()
        finally:
            self._tell("on_end")
        self._finish()

    # -- what engines do --------------------------------------------------------------------------
    def _has_ended(self) -> bool:
        raise NotImplementedError

    def _advance(self) -> None:
        """Take some steps."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Put the result into the methods."""
        raise NotImplementedError

    def _fingerprint(self) -> dict[str, Any]:
        """What has to be the same for a resumed run to be the same run."""
        raise NotImplementedError

    def _build(self) -> str:
        """Networks, heads and objectives as text."""
        raise NotImplementedError

    def _state(self) -> dict[str, Any]:
        """What else a resumed run needs to know."""
        raise NotImplementedError

    def _set_state(self, state: dict[str, Any], path: Path) -> None:
        """The inverse; an error leaves the run as it was."""
        raise NotImplementedError

    @property
    def _is_first(self) -> bool:
        """Whether this process is the one that writes and tells."""
        return True

    def _agreed(self, value: bool) -> bool:
        """What the first process says, in all of them."""
        return value

    # -- callbacks and checkpoints ----------------------------------------------------------------
    def _tell(self, event: str, *details: Row) -> None:
        if self._is_first:
            for callback in self.settings.callbacks:
                getattr(callback, event)(self, *details)
        self.stop = self._agreed(self.stop)  # all stop together

    def _maybe_save(self, end_of_epoch: bool) -> None:
        places = self.settings.checkpoints
        if places is not None and self._agreed(self.timer.due(self.step, end_of_epoch)):
            self.checkpoint = self.save(Path(places.directory), places.keep)

    def save(self, directory: Path, keep: int) -> Path:
        """Write a checkpoint, then remove old ones. All processes take part, the first one writes."""
        path, state = checkpoint.path_of(directory, self.step), self._state()
        if self._is_first:
            stopping = {**self.stopping.state_dict(), "parameters": self.best}
            content = {
                "engine": self.engine,
                **state,
                "early_stopping": None if self.settings.early_stopping is None else stopping,
                "settings": self._fingerprint(),
                "build": self._build(),
                "torch": torch.__version__,
            }
            checkpoint.write(path, content)
            checkpoint.prune(directory, keep)
        return path

    def load(self, path: Path) -> None:
        """Take up a run at a checkpoint. Everything is compared first; an error leaves the run as it was."""
        content = checkpoint.read(path)
        if "engine" not in content:
            raise CheckpointError(
                f"{path} is of no run that this bedl can go on with; load_weights() takes its weights"
            )
        if content["engine"] != self.engine:
            raise CheckpointError(f"{path} is of another kind of run: of one network, or of several trained as one")
        compare_settings(content["settings"], self._fingerprint(), path)
        if (content["early_stopping"] is None) != (self.settings.early_stopping is None):
            raise CheckpointError(f"{path} was written with another choice of early_stopping")
        self._set_state(content, path)
        if content["early_stopping"] is not None:
            self.stopping.load_state_dict(content["early_stopping"])
            self.best = content["early_stopping"]["parameters"]
        self.checkpoint = path

    def _compare_build(self, theirs: str, path: Path) -> None:
        if theirs != self._build():
            raise CheckpointError(
                f"{path} was written with another network, head or objective of the same shapes; use the same ones, "
                "or start anew with another checkpoint directory"
            )


# After training: standard deviations of one pass are compared with those of drawn weights, and corrected.
#
# One pass carries no covariances. Where units share much of their past (positions that share one draw of a
# convolution's weights, tokens, nodes, the branches of a sum), it reports half of the standard deviation or less
# (docs/approximation.md). Draws for a few inputs show whether it does, at a price that is small beside the training's.


Correct = bool | str  # True, False or "auto"

logger = logging.getLogger("bedl")
INPUTS, DRAWS = 300, 10  # covariances differ from input to input more than few draws are noisy
TRIED_INPUTS, TRIED_DRAWS = 40, 20  # by which a ratio of standard deviations is known to some 3 percent
NEAR = (0.9, 1.1)  # ratios that are let be
STILL_NEAR = (0.8, 1.25)  # behind a correction, on inputs that it was fitted to
MIN_STEPS = 100  # after which a network is hardly trained
MAX_INPUT_NUMEL = 2**28 / 64  # values of inputs: layers have so many times as many, and those of all inputs are held
MAX_WEIGHT_DRAWS = 3e9  # weights: each input draws its own, and a core some 1e8 of them in a second


def reset_correction(method: Method, choice: Correct) -> None:
    """Take back the correction of weights that are about to change."""
    if choice not in (True, False, "auto"):
        raise ValueError(f'correct must be True, False or "auto", not {choice!r}')
    net = getattr(method, "net", None)
    if choice and isinstance(net, nn.Module):
        remove_correction(net)


def correct_after_fit(method: Method, points: Points, choice: Correct, steps: int, device: torch.device) -> None:
    """Correct the variances of a trained network, in place, if that was asked for or draws show that it is needed.

    Inputs that were not learned from are better: a network is surer of those that were, in ways that one pass misses.
    """
    net: Any = getattr(method, "net", None)
    if not choice or not isinstance(net, nn.Module):
        return
    layers = [layer for layer in net.modules() if isinstance(layer, GaussianLayer)]
    predicts_in_one_pass = hasattr(method, "outputs")
    if choice == "auto" and (steps < MIN_STEPS or not predicts_in_one_pass or not layers):
        return
    weights = sum(p.numel() for layer in layers for name, p in layer.named_parameters(recurse=False) if "mean" in name)
    sizes: list[int] = []
    map_parts(lambda part: sizes.append(part[0].numel()), next(points.fetch([np.arange(1)]))[0])
    count = int(min(INPUTS, points.n, MAX_WEIGHT_DRAWS / DRAWS / max(weights, 1), MAX_INPUT_NUMEL / max(sizes)))
    output = getattr(method, "output", None)

    def inputs(count: int) -> Any:
        numbers = np.unique(np.linspace(0, points.n - 1, max(1, count)).astype(int))
        x = cast(*next(points.fetch([numbers])), method).x
        return map_parts(lambda part: part.to(device), x)

    try:
        if choice == "auto":
            ratio = std_ratio(net, inputs(min(count, TRIED_INPUTS)), draws=TRIED_DRAWS, output=output)
            if not (ratio < NEAR[0] or ratio > NEAR[1]):
                return
            if count < min(INPUTS // 12, points.n):
                logger.warning(
                    "standard deviations of this network are %.2f times those of drawn weights; to correct them takes "
                    "minutes: bedl.nn.correct_variances(method.net, inputs, keep=True)",
                    ratio,
                )
                return
        correct_variances(net, inputs(count), draws=DRAWS, keep=True, output=output)
        ratio = std_ratio(net, inputs(min(count, TRIED_INPUTS)), draws=TRIED_DRAWS, output=output)
        if ratio < STILL_NEAR[0] or ratio > STILL_NEAR[1]:
            logger.warning(
                "standard deviations of this network are %.2f times those of drawn weights, and the correction of its "
                "linear and convolutional layers does not change that; bedl.check(method.net, inputs) says where it "
                "arises, and bedl.sampled(method) draws the weights",
                ratio,
            )
    except (BEDLError, NotImplementedError, RuntimeError, TypeError) as error:
        if choice is True:
            raise
        logger.warning("variances were not corrected: %s", str(error).splitlines()[0])
