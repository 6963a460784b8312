"""The Dirichlet head by itself: likelihood and PAC term, forward and backward, and how far off it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bedl import Dirichlet, Moments
from bedl.bench.util import medians, threads

__all__ = ["measure"]


def outputs(classes: int, points: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means, variances and labels as trained networks have them: stds of 0.1 to 5."""
    generator = torch.Generator().manual_seed(0)
    m = 2 * torch.randn(points, classes, generator=generator)
    s = torch.empty(points, classes).uniform_(0.1, 5.0, generator=generator)
    return m, s.square(), torch.randint(classes, (points,), generator=generator)


def measure(classes: int = 10, points: int = 1000, repeats: int = 15) -> dict[str, float]:
    """Microseconds per point, forward and backward, on one thread."""
    head = Dirichlet(classes)
    m, v, y = outputs(classes, points)
    m, v = m.requires_grad_(), v.requires_grad_()

    def likelihood(m: Tensor, v: Tensor, y: Tensor) -> Tensor:
        return head.log_marginal(Moments(m, v), y).mean()

    def with_pac(m: Tensor, v: Tensor, y: Tensor) -> Tensor:
        log_p, kl = head.log_marginal_and_kl(Moments(m, v), y)
        return (kl - log_p).mean()

    def backward(function: Callable[..., Any]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(function(m, v, y), [m, v])

    runs: dict[str, Callable[[], object]] = {
        "softmax": lambda: torch.autograd.grad(torch.nn.functional.cross_entropy(m, y), [m])
    }
    for name, function in (("likelihood", likelihood), ("likelihood and PAC", with_pac)):
        compiled: Any = torch.compile(function, dynamic=False)
        runs |= {f"{name}, eager": backward(function), f"{name}, compiled": backward(compiled)}
    with threads(1):
        return {name: value / points * 1e6 for name, value in medians(runs, repeats).items()}
