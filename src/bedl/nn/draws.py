"""Weights that are drawn once though a layer is called more than once, without keeping the weights.

A data point's own weights are far more numbers than its values. So a second call draws them again, from the same random
numbers; or, where outputs are drawn in place of weights, draws the outputs given those of the first call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from bedl._utils.errors import BEDLError
from bedl.moments import Moments
from bedl.moments.numerics import std


class RowLayout(NamedTuple):
    """How a first axis holds the rows of data points: beside each other, or one of each point after the other."""

    per_point: int = 1
    strided: bool = False

    def by_point(self, x: Any) -> Any:
        """shape: (points·per_point, …) -> (points, per_point, …)"""
        points = len(x) // self.per_point
        if self.strided:
            return x.unflatten(0, (self.per_point, points)).transpose(0, 1)
        return x.unflatten(0, (points, self.per_point))

    def by_row(self, x: Any) -> Any:
        """shape: (points, per_point, …) -> (points·per_point, …)"""
        return (x.transpose(0, 1) if self.strided else x).flatten(0, 1)


@dataclasses.dataclass(frozen=True)
class Sharing:
    """How a weight is drawn: for all points at once, and why; or for each, whose rows are these."""

    reason: str = "there is one data point"
    rows: dict[int, RowLayout] = dataclasses.field(default_factory=dict)  # by their number per point
    draws_outputs: bool = False  # one row of each point at each call: outputs may be drawn in place of weights


class Draws:
    """What one weight, of one layer or of several that share it, has drawn in a pass.

    Args:
        sharing: between the points.
        points: how many there are.
        inside: how many layers are at work, one within the other; of all layers together.
        once: per pass, or at each use.
    """

    def __init__(self, sharing: Sharing, points: int, inside: list[int], once: bool):
        self.sharing, self.points, self.inside, self.once = sharing, points, inside, once
        self.states: dict[Any, Any] = {}
        self.outputs: list[list[Any]] = []
        self.values: dict[str, Any] = {}

    @property
    def for_all(self) -> bool:
        """Whether all points share a draw."""
        return bool(self.sharing.reason)

    @contextmanager
    def call(self, layer: Any, args: tuple, kwargs: dict) -> Iterator[None]:
        """Inside the block the layer is at work: its random numbers are those of its first call in this pass."""
        self.inside[0] += 1
        try:
            if self.for_all or not self.once or self.sharing.draws_outputs:
                yield
            else:
                with same_numbers(self.states, "weights", layer._device()):
                    yield
        finally:
            self.inside[0] -= 1

    def rows(self, layer: Any, n_rows: int) -> RowLayout:
        """How so many rows belong to the points."""
        rows = self.sharing.rows.get(n_rows // self.points) if n_rows % self.points == 0 else None
        return (
            self.refuse(layer, f"is called with {n_rows} rows for {self.points} data points") if rows is None else rows
        )

    def refuse(self, layer: Any, why: str) -> Any:
        raise BEDLError(
            f"sampled: {type(layer).__name__} {why}, which it was not when the network was tried out, so that "
            "weights cannot be drawn for each data point; use bedl.sampled(net, per='call'), one draw for all of them"
        )

    def read(self, layer: Any, name: str) -> Any:
        """What reading a weight gives: the draw that all points share."""
        if not self.for_all:
            pair = layer.random_weight(name)
            if not isinstance(pair, Moments):
                return pair
            return WatchedWeight.of(pair.loc, lambda: self.refuse(layer, "has its weight used other than by a call"))
        if name not in self.values or not self.once:
            self.values[name] = point_value(layer.gaussian(name))
        value = self.values[name]
        return value if value is None else layer.usable(value)


_DESCRIPTIONS = {
    getattr(Tensor, name).__get__
    for name in ("shape", "device", "dtype", "ndim", "layout", "requires_grad", "is_cuda", "is_nested", "is_leaf")
} | {Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.__len__, Tensor.get_device}


class WatchedWeight(Tensor):
    """A weight that says when it is used for more than to ask for its shape."""

    on_use: Callable[[], Any]

    @classmethod
    def of(cls, value: Tensor, on_use: Callable[[], Any]) -> WatchedWeight:
        watched = value.as_subclass(cls)
        watched.on_use = on_use
        return watched

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func not in _DESCRIPTIONS:
            for x in pytree.tree_leaves((args, kwargs)):
                if isinstance(x, cls):
                    vars(x)["on_use"]()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def point_value(x: Any) -> Any:
    """A draw of Moments; anything else as it is."""
    return x.sample() if isinstance(x, Moments) else x


@contextmanager
def same_numbers(states: dict[Any, Any], key: Hashable, device: torch.device) -> Iterator[None]:
    """Random numbers inside the block are those of the first block with this key, whose state is kept in `states`."""
    generator = torch.random if device.type == "cpu" else torch.get_device_module(device)
    now = generator.get_rng_state()
    generator.set_rng_state(states.setdefault(key, now))
    try:
        yield
    finally:
        if states[key] is not now:
            generator.set_rng_state(now)


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Random numbers from a seed inside the block; the generators go on afterwards as if nothing had been drawn."""
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield
    else:
        everywhere = range(torch.get_device_module(device).device_count())
        with torch.random.fork_rng(devices=everywhere, device_type=device.type):
            torch.manual_seed(seed)
            yield


def noise_of_rows(x: Tensor, variance: Tensor, earlier: list[list[Any]]) -> Tensor:
    """What noise of the weights adds to x @ Wᵀ, given what it added to earlier rows of the same points.

    Rows x_1, x_2, … of one point meet the same weights, so the noise of an output is jointly normal with covariances
    Σ_i x_ai x_bi s_i². Its Cholesky factor is computed row by row, in double precision: rows may be the same.

    Args:
        x: the next row of every point. shape: (n, inputs)
        variance: of the weights. shape: (outputs, inputs)
        earlier: for each earlier call its rows, its standard normal numbers and its part of the factor; the new call
            is added.

    Returns:
        shape: (n, outputs)
    """
    z = torch.randn(len(x), len(variance), dtype=variance.dtype, device=x.device)
    if not earlier:
        earlier.append([x, z, None])
        return std(F.linear(x.to(variance.dtype).square(), variance)) * z
    wide, s2 = x.double(), variance.double()
    if earlier[0][2] is None:
        earlier[0][2] = [std(F.linear(earlier[0][0].double().square(), s2))]
    factor: list[Tensor] = []
    for j, (x_j, _, factor_j) in enumerate(earlier):
        covariance = F.linear(wide * x_j.double(), s2)
        for own, other in zip(factor, factor_j[:j], strict=True):
            covariance = covariance - own * other
        known = factor_j[j] > 0
        factor.append(torch.where(known, covariance / torch.where(known, factor_j[j], 1.0), 0.0))
    left = F.linear(wide.square(), s2)
    for own in factor:
        left = left - own.square()
    factor.append(std(left.clamp_min(0)))
    earlier.append([x, z, factor])
    noise = torch.zeros_like(left)
    for own, (_, z_j, _) in zip(factor, earlier, strict=True):
        noise = noise + own * z_j
    return noise
