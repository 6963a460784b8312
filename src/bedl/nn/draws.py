"""Weights that are drawn once though a layer is called more than once, without keeping the weights.

A data point's own weights are far more numbers than its values. So a second call draws them again, from the same random
numbers; or, where outputs are drawn in place of weights, draws the outputs given those of the first call.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl.moments import Moments
from bedl.special import std

__all__ = ["noise_of_rows", "point_value", "same_numbers", "seeded"]


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
