"""Where a loss that is not a finite number came from."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bedl._utils.errors import BEDLError
from bedl.methods import Batch, Method
from bedl.nn import GaussianLayer


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where the first value that is not finite was seen.

    Attributes:
        where: a module's or parameter's path, or ``"x"``, ``"y"``, ``"the loss"``.
        what: what was seen there.
        remedy: what to try.
    """

    where: str
    what: str
    remedy: str


class NonFiniteLossError(BEDLError, ArithmeticError):
    """Training stopped because the loss or its gradient was not finite; the parameters are those before that step.

    Attributes:
        step: the optimiser step, counted from 0.
        origin: where it began.
        checkpoint: the last good checkpoint, if there is one.
    """

    def __init__(self, step: int, loss: float, origin: Origin, checkpoint: Path | None):
        self.step, self.loss, self.origin, self.checkpoint = step, loss, origin, checkpoint
        kept = f" The last good checkpoint is {checkpoint}." if checkpoint else ""
        super().__init__(
            f"the loss is {loss} at step {step}, first seen at '{origin.where}': {origin.what}.\n"
            f"Remedy: {origin.remedy}. The step was not taken.{kept}"
        )


_SMALLER = (
    "lower the learning rate, lengthen the warm-up (schedule=Warmup(…)) or clip gradients harder (gradient_clip=…)"
)


def find_origin(method: nn.Module, batches: Sequence[Batch], context: Any = None) -> Origin:
    """Look at inputs, parameters, every module's output and every gradient, in the order in which they come about.

    Args:
        method: the method, with the parameters that gave the loss.
        batches: the micro-batches of the step.
        context: a function that makes the precision context of the forward pass.
    """
    for batch in batches:
        for name in ("x", "y", "perturbed"):
            if not _finite(getattr(batch, name)):
                return Origin(
                    name,
                    "the data themselves hold NaN or infinity, or numbers beyond the 3e38 of single precision",
                    "clean the data, fill in what is missing, or use a larger unit",
                )
    for name, parameter in method.named_parameters():
        if not _finite(parameter):
            return Origin(name, "the parameter is not finite, so an earlier update overflowed", _SMALLER)
    for batch in batches:
        method.zero_grad(set_to_none=True)
        with _watching(method) as seen, torch.enable_grad(), (context or torch.enable_grad)():
            loss = method.loss(batch)  # type: ignore[operator]
        if seen:
            return Origin(*seen[0], f"start with smaller weights or normalised inputs; {_SMALLER}")
        if not _finite(loss):
            what = "every module's output is finite, the loss of them is not"
            return Origin("the loss", what, f"check that targets are in the range the head expects; {_SMALLER}")
        loss.backward()
        broken = [name for name, p in method.named_parameters() if p.grad is not None and not _finite(p.grad)]
        if broken:  # back-propagation goes from the last to the first
            return Origin(broken[-1], "its gradient is not finite, though the loss is", _SMALLER)
    return Origin("the loss", "the forward pass, done again, was finite", f"run in full precision; {_SMALLER}")


def _finite(value: Any) -> bool:
    leaves = pytree.tree_leaves(value)
    return all(bool(t.isfinite().all()) for t in leaves if isinstance(t, Tensor) and t.is_floating_point())


@contextmanager
def _watching(method: nn.Module) -> Iterator[list[tuple[str, str]]]:
    """Collects modules whose output is not finite; the innermost, earliest one comes first."""
    seen: list[tuple[str, str]] = []

    def watch(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not _finite(output):
                seen.append((name, f"the output of this {type(module).__name__} is not finite"))

        return hook

    handles = [m.register_forward_hook(watch(name or type(m).__name__)) for name, m in method.named_modules()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


# What trains on without a sign: a network that died in its first steps, and weights that no gradient reaches.
#
# The loss of a dead network is that of knowing nothing, and finite.


MIN_SPREAD = 1e-4  # by how much predictions differ, in units of how unsure they are


@torch.no_grad()
def check_constant_predictions(method: Method, batch: Batch) -> None:
    """Warns where predictions are the same for all points though targets are not.

    Args:
        method: what was trained.
        batch: points that it learned from.
    """
    if not _spread(batch.y.double().nan_to_num()) > 0:
        return
    method.eval()
    found = method.predict(batch.x)
    if _spread(found.mean.double().flatten(0, -2)) <= MIN_SPREAD * found.variance.double().amax().sqrt():
        warnings.warn(
            f"predictions for {len(batch.y)} training points with different targets are all the same: the network has "
            "learned nothing of its inputs. Its units may have died in the first steps: lower the learning rate, or "
            "let it rise from 0 (schedule='warmup' of estimators, schedule=Warmup() of fit)",
            stacklevel=2,
        )


def _spread(values: Tensor) -> Tensor:
    """The greatest difference between two rows, over all columns. shape: ()"""
    return (values.amax(0) - values.amin(0)).amax()


def warn_of_missing_gradients(method: Method) -> None:
    """Warns of Gaussian weights without a gradient, by name; called after a backward.

    Args:
        method: what is trained.
    """
    missing = [
        f"{name}.{weight}"
        for name, layer in method.named_modules()
        if isinstance(layer, GaussianLayer)
        for weight in layer.gaussian_parameters
        if (mean := layer._parameters.get(f"{weight}_mean")) is not None and mean.requires_grad and mean.grad is None
    ]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        warnings.warn(
            f"no gradient reaches {shown}: these weights stay as they are. The network does not use them, or code "
            "behind them stops gradients (torch.no_grad, .detach, values of .loc made into new Moments). "
            "bedl.check(net, example_input) tells the two apart; exclude= of bayesianize leaves layers out",
            stacklevel=2,
        )
