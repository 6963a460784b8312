"""How cost grows: with points, classes, width and depth. One thread; what is shown is time per point."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import nn

from bedl import BEDL, Dirichlet, GaussianLinear, Moments, Normal, fit
from bedl.bench.util import threads

__all__ = ["measure"]

Curve = dict[int, float]


def _per_point(run: Callable[[], object], points: int, repeats: int = 5) -> float:
    """Median microseconds per point, after one run that does not count."""
    run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times) / points * 1e6


def _net(inputs: int, width: int, hidden: int, outputs: int) -> nn.Module:
    layers: list[nn.Module] = [GaussianLinear(inputs, width), nn.ReLU()]
    for _ in range(hidden - 1):
        layers += [GaussianLinear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, GaussianLinear(width, outputs))


def training(sizes: Iterable[int]) -> Curve:
    """One epoch of `fit` on a table of 20 columns that is read batch by batch; batch 256."""
    curve = {}
    for size in sizes:
        generator = np.random.default_rng(0)
        x = generator.standard_normal((size, 20), dtype=np.float32)
        y = x.sum(1)

        def run(x: np.ndarray = x, y: np.ndarray = y) -> None:
            torch.manual_seed(0)
            fit(
                BEDL(_net(20, 50, 1, 2), Normal(1)),
                (x, y),
                epochs=1,
                batch_size=256,
                compile=False,
                fabric={"accelerator": "cpu"},
            )

        curve[size] = _per_point(run, size, 3)
    return curve


def classes(counts: Iterable[int], points: int = 200) -> Curve:
    """The whole prediction of the head: probabilities, entropies, variances."""
    curve = {}
    for count in counts:
        f = Moments(torch.randn(points, count), torch.rand(points, count) * 4)
        head = Dirichlet(count)
        curve[count] = _per_point(lambda head=head, f=f: head(f), points)  # type: ignore[misc]
    return curve


def networks(shapes: Iterable[tuple[int, int]], points: int = 100) -> dict[tuple[int, int], float]:
    """Prediction of a fully connected network of some width and depth, 20 inputs and one target."""
    curve = {}
    for width, hidden in shapes:
        method = BEDL(_net(20, width, hidden, 2), Normal(1))
        x = torch.randn(points, 20)
        curve[width, hidden] = _per_point(lambda method=method, x=x: method.predict(x), points)  # type: ignore[misc]
    return curve


def measure() -> dict[str, Curve]:
    """Microseconds per point."""
    with threads(1):
        widths = networks([(width, 2) for width in (50, 100, 200, 500, 1000, 2000, 4000)])
        depths = networks([(100, hidden) for hidden in (2, 3, 5, 10, 20)])
        return {
            "training, by points": training([10**3, 10**4, 10**5, 10**6]),
            "prediction, by classes": classes([2, 5, 10, 30, 100, 300, 1000]),
            "prediction, by width (2 hidden layers)": {width: value for (width, _), value in widths.items()},
            "prediction, by depth (width 100)": {hidden: value for (_, hidden), value in depths.items()},
        }
