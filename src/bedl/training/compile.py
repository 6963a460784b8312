"""`torch.compile` and the precision of the training step: what pays off, and how to go on where it cannot be done.

Whether to compile follows from the network and the number of steps, not from a clock: the same call has to give the
same numbers twice, and compiled code rounds differently.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bedl import _kernels
from bedl.methods import Batch
from bedl.moments import Moments
from bedl.nn import GaussianLayer
from bedl.training.data import Points, cast

Compile = bool | str  # True, False or "auto"

logger = logging.getLogger("bedl")

# On one CPU core, from benchmarks/: what compiling costs once, and saves with each step.
# seconds, with the head; max-pooling and ELU, whose formulas are long, come on top
COST, COST_PER_LAYER = (20.0, 6.0) if _kernels.is_built() else (35.0, 15.0)
SAVED_PER_STEP = 1.5e-3  # seconds: calls that are no longer made one by one
MIN_STEPS = 50  # of which none is long enough
SAVED_PER_ACTIVATION = 1e-8 if _kernels.is_built() else 3e-8  # seconds: intermediate results that stay in cache


def should_compile(choice: Compile, method: Any, points: Points, batch_size: int, steps: int, device: str) -> bool:
    """Whether to compile a run.

    Args:
        choice: the user's: True, False or "auto".
        method: what is trained.
        points: on what.
        batch_size: points per step.
        steps: of the whole run.
        device: the kind it runs on, such as "cpu".
    """
    if choice not in (True, False, "auto"):
        raise ValueError(f'compile must be True, False or "auto", not {choice!r}')
    if choice != "auto":
        return bool(choice)
    if steps < MIN_STEPS:
        return False
    layers, activations = _size(method, points)
    cost = COST + COST_PER_LAYER * layers
    saved = SAVED_PER_STEP + (SAVED_PER_ACTIVATION * activations * batch_size if device == "cpu" else 0)
    if steps * saved < 2 * cost:
        return False
    if device == "cpu" and not _has_compiler():
        logger.warning("no C++ compiler was found, so training goes on uncompiled, at about half the speed")
        return False
    precision = "" if device != "cpu" or has_fast_bfloat16() else "; variances stay in float32, bfloat16 is slow here"
    about = "a minute or so" if cost < 90 else f"about {cost / 60:.0f} minutes"
    logger.warning("compiling the training step (%s, once); compile=False goes without%s", about, precision)
    return True


def variance_precision(choice: str, compiled: bool, device: str) -> torch.dtype | None:
    """What the operands of products that make variances are rounded to; None: they are not.

    Args:
        choice: the user's: "float32", "bfloat16" or "auto": bfloat16 in compiled runs on CPUs with instructions for it.
        compiled: whether the run is.
        device: the kind it runs on, such as "cpu".
    """
    if choice not in ("auto", "float32", "bfloat16"):
        raise ValueError(f'variance_products must be "auto", "float32" or "bfloat16", not {choice!r}')
    if choice == "bfloat16" and device == "cpu" and not has_fast_bfloat16():
        logger.warning("this processor has no instructions for bfloat16: variance_products='float32' would be faster")
    wanted = choice == "bfloat16" or (choice == "auto" and compiled and device == "cpu" and has_fast_bfloat16())
    return torch.bfloat16 if wanted else None


def has_fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 matrices by instructions of its own."""
    known = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")  # not public; where they are gone: float32
    return any(getattr(torch.cpu, name, bool)() for name in known)


def _size(method: Any, points: Points) -> tuple[int, int]:
    """Gaussian layers that take part in a prediction, and how many numbers they give for one point."""
    given: list[int] = []
    hooks = [
        layer.register_forward_hook(lambda _, __, y: given.append(y.numel() if isinstance(y, Moments) else 0))
        for layer in method.modules()
        if isinstance(layer, GaussianLayer)
    ]
    try:
        fetched = next(points.fetch([np.zeros(1, dtype=int)]))
        method.predict(cast(*fetched, method).x)
    finally:
        for hook in hooks:
            hook.remove()
    return len(given), sum(given)


def _has_compiler() -> bool:
    from torch._inductor import config

    names = config.cpp.cxx if isinstance(config.cpp.cxx, (tuple, list)) else [config.cpp.cxx]
    return any(name and shutil.which(name) for name in [*names, "g++", "clang++"])


class Compiled:
    """A function of a batch, compiled for batches of the first one's size; other sizes are rare.

    Args:
        function: of a batch and what else it takes.
    """

    def __init__(self, function: Callable[..., Tensor]):
        self.plain, self.compiled = function, torch.compile(function, dynamic=False)
        self.shape: torch.Size | None = None
        self.works = True

    def __call__(self, batch: Batch, *options: Any) -> Tensor:
        first, shape = self.shape is None, batch.y.shape
        self.shape = shape if first else self.shape
        if not self.works or shape != self.shape:
            return self.plain(batch, *options)
        if not first:
            return self.compiled(batch, *options)
        try:
            return self.compiled(batch, *options)
        except Exception as error:
            result = self.plain(batch, *options)  # what is wrong with the batch itself is said by this
            self.works = False
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            logger.warning("torch.compile failed, so training goes on uncompiled: %s", reason)
            return result


# How many threads: small steps are over before several have met, and those that wait for others compute meanwhile.


MULTITHREADED_MULTIPLICATIONS = 2**26  # multiplications from which several threads pay; some milliseconds of one


@contextmanager
def limit_threads(multiplications: float) -> Iterator[None]:
    """One thread inside the block, if a pass takes so few multiplications; then as many as before.

    Decided from the work alone, so that the same call gives the same numbers. A step of ten networks of a table takes
    half as much again of two processors' time as of one's, and ten times as much where others use them, too.

    Args:
        multiplications: of one pass through all networks; parameters times rows, where each is used once for a row.

    Example:
        >>> with limit_threads(1000 * 64):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    alone = before > 1 and multiplications < MULTITHREADED_MULTIPLICATIONS
    if alone:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if alone:
            torch.set_num_threads(before)
