"""Probabilistic backpropagation: points are taken in one after the other, weights stay normal.

A network of ReLU layers  z = W [h, 1] / √(fan-in + 1),  W_ij ~ N(m_ij, v_ij) independent, and y ~ N(z, 1/gamma). With
(mean, variance) of the output from the moments that the engine propagates,

    log Z = log N(y; mean, variance + b/(a − 1)),  gamma ~ Gamma(a, b)
    m ← m + v ∂logZ/∂m,   v ← v − v² [(∂logZ/∂m)² − 2 ∂logZ/∂v]
    a ← 1 / (Z2 Z / Z1² · (a + 1)/a − 1),   b ← 1 / (Z2/Z1 · (a + 1)/b − Z1/Z · a/b)

where Z1 and Z2 are Z with a + 1 and a + 2: the moments of the exact posterior are matched. An update that would make a
variance negative is left out. After each pass over the points, the factors of the prior W_ij ~ N(0, 1/lambda),
lambda ~ Gamma, are refined by expectation propagation.

J. M. Hernández-Lobato, R. Adams, "Probabilistic Backpropagation for Scalable Learning of Bayesian Neural Networks",
ICML 2015. As there: 40 passes, all gamma distributions start at a = b = 6, means at N(0, 1/(fan-in + 1)). Regression
only: a class has no Gaussian log Z.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl import _kernels
from bedl.heads.predictive import NormalPredictive
from bedl.methods.base import Method
from bedl.methods.networks import widths_of
from bedl.methods.registry import Problem, register
from bedl.moments import Moments, as_moments
from bedl.moments.numerics import normal_cdf, normal_pdf

START = 6.0  # shape and rate of the gamma distributions: as if three numbers of variance 1 had been seen
MIN_VARIANCE, MAX_VARIANCE = 1e-100, 1e6  # variances: of weights, and of a cavity


class PBP(Method):
    """Probabilistic backpropagation; learns by itself.

    Args:
        n_features: of a point.
        hidden: widths of the ReLU layers.
        n_targets: how many targets there are; each has a noise of its own.
        front: what stands in front of the network.
        passes: over all points.

    Example:
        >>> import torch
        >>> x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
        >>> method = PBP(1, [10], passes=10).double()
        >>> method.fit(x, 2 * x)
        >>> bool((method.predict(x).mean - 2 * x).abs().mean() < 0.3)
        True
    """

    noise_shape: Tensor
    noise_rate: Tensor

    def __init__(
        self,
        n_features: int,
        hidden: Sequence[int] = (50,),
        n_targets: int = 1,
        front: nn.Module | None = None,
        passes: int = 40,
    ):
        super().__init__()
        if passes < 1:
            raise ValueError(f"PBP: passes must be at least 1, not {passes}")
        self.front, self.passes = nn.Identity() if front is None else front, passes
        sizes = [n_features, *hidden, n_targets]
        self.n_layers = len(sizes) - 1
        for number, (fan_in, width) in enumerate(pairwise(sizes)):
            mean = torch.randn(width, fan_in + 1) / math.sqrt(fan_in + 1)
            self.register_buffer(f"mean_{number}", mean)
            self.register_buffer(f"variance_{number}", torch.full_like(mean, START / (START - 1)))
        self.register_buffer("noise_shape", torch.full((n_targets,), START))
        self.register_buffer("noise_rate", torch.full((n_targets,), START))
        self.seed = int(torch.randint(2**62, ()))  # of the order of the points

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Means and variances of the weights, the last column those of the bias. shapes: (width, fan-in + 1)"""
        return [(getattr(self, f"mean_{i}"), getattr(self, f"variance_{i}")) for i in range(self.n_layers)]

    # -- predicting -------------------------------------------------------------------------------
    def forward(self, x: Tensor | Moments) -> NormalPredictive:
        f = self.outputs(x)
        noise = self.noise_rate / (self.noise_shape - 1)
        return NormalPredictive(f.loc, noise.expand(f.shape), torch.zeros_like(f.loc), f.variance)

    def outputs(self, x: Tensor | Moments) -> Moments:
        """Moments of the network's outputs. x: shape (n, features); result: shape (n, targets)"""
        h: Any = self.front(x)
        for number, (mean, variance) in enumerate(self.layers):
            h = F.relu(h) if number else h
            weight: Any = Moments(mean[:, :-1], variance[:, :-1])
            z: Any = F.linear(h, weight)
            z = z + Moments(mean[:, -1], variance[:, -1])
            h = z / math.sqrt(mean.shape[1])
        return as_moments(h)

    # -- learning ---------------------------------------------------------------------------------
    @torch.no_grad()
    def fit(self, x: Tensor, y: Tensor) -> None:
        x, y = self.front(x).double().contiguous(), y.reshape(len(y), -1).double().contiguous()
        order = torch.Generator().manual_seed(self.seed)
        posterior = Posterior(self.layers, self.noise_shape, self.noise_rate)
        for _ in range(self.passes):
            posterior.take_in(x, y, torch.randperm(len(x), generator=order))
            posterior.refine()
        for (m, v), (new_m, new_v) in zip(self.layers, posterior.layers, strict=True):
            m.copy_(new_m), v.copy_(new_v)
        self.noise_shape.copy_(posterior.noise_shape)
        self.noise_rate.copy_(posterior.noise_rate)


class Posterior:
    """What is known so far: a copy, in double precision, of weights and noise, and the factors of the prior.

    A point changes everything by a little and points are many: rounded to float32, small variances would not move.
    On a CPU a kernel does the work where there is one; what is below is its reference.

    Args:
        layers: means and variances of the weights. shapes: (width, fan-in + 1)
        noise_shape, noise_rate: of the targets' noise precisions. shape: (targets,)
    """

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]], noise_shape: Tensor, noise_rate: Tensor):
        self.mean, self.variance = (torch.cat([pair[k].reshape(-1).double() for pair in layers]) for k in (0, 1))
        counts, shapes = [m.numel() for m, _ in layers], [m.shape for m, _ in layers]
        parts = zip(self.mean.split(counts), self.variance.split(counts), shapes, strict=True)
        self.layers = [(m.view(shape), v.view(shape)) for m, v, shape in parts]
        self.noise_shape, self.noise_rate = noise_shape.double().clone(), noise_rate.double().clone()
        self.prior = _Prior(len(self.mean))
        self.sizes = [shapes[0][1] - 1, *(shape[0] for shape in shapes)]

    def take_in(self, x: Tensor, y: Tensor, order: Tensor) -> None:
        """All points, one after the other. shapes: (n, features), (n, targets), (n,)"""
        if _kernels.is_built() and x.device.type == "cpu":
            state = self.mean, self.variance, self.noise_shape, self.noise_rate
            _kernels.pbp.take_in(self.sizes, x, y, order, *state)
            return
        for number in order.tolist():
            self._take_in(x[number], y[number])

    def refine(self) -> None:
        """The prior's factors, each in turn."""
        if _kernels.is_built() and self.mean.device.type == "cpu":
            _kernels.pbp.refine(self.mean, self.variance, self.prior.factors, self.prior.both)
        else:
            self.prior.refine(self.mean, self.variance)

    def _take_in(self, x: Tensor, y: Tensor) -> None:
        """One point. shapes: (features,), (targets,)"""
        trace = _forward(self.layers, x)
        mean, variance = trace[-1][2:]
        a, b = self.noise_shape, self.noise_rate
        square = (y - mean).square()
        spreads = [variance + b / (a + k) for k in (-1, 0, 1)]
        z, z1, z2 = (-0.5 * (spread.log() + square / spread) for spread in spreads)
        slopes = (y - mean) / spreads[0], 0.5 * (square / spreads[0] - 1) / spreads[0]
        for (m, v), (by_m, by_v) in zip(self.layers, _backward(self.layers, trace, *slopes), strict=True):
            new_v = v - v.square() * (by_m.square() - 2 * by_v)
            new_m = m + v * by_m
            valid = (new_v > MIN_VARIANCE) & new_m.isfinite() & new_v.isfinite()
            m.copy_(torch.where(valid, new_m, m))
            v.copy_(torch.where(valid, new_v, v))
        new_a = 1 / ((z2 - 2 * z1 + z).exp() * (a + 1) / a - 1)
        new_b = 1 / ((z2 - z1).exp() * (a + 1) / b - (z1 - z).exp() * a / b)
        valid = (new_a > 1) & (new_b > 0) & new_a.isfinite() & new_b.isfinite()
        self.noise_shape.copy_(torch.where(valid, new_a, a))
        self.noise_rate.copy_(torch.where(valid, new_b, b))


Trace = tuple[Tensor, Tensor, Tensor, Tensor]


def _forward(layers: Sequence[tuple[Tensor, Tensor]], x: Tensor) -> list[Trace]:
    """For each layer: mean and variance of [h, 1], and those of z. x: shape (features,)

    The engine's own moments, for one point and without its bookkeeping, which would take most of the time.
    """
    trace: list[Trace] = []
    h, u = x, torch.zeros_like(x)
    for number, (m, v) in enumerate(layers):
        if number:
            h, u = _relu(*trace[-1][2:])
        h, u = F.pad(h, (0, 1), value=1.0), F.pad(u, (0, 1))
        n = m.shape[1]
        trace.append((h, u, m @ h / math.sqrt(n), (v @ (h * h + u) + (m * m) @ u) / n))
    return trace


def _relu(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of max(z, 0), z ~ N(m, v). shapes: (n,)"""
    sigma = v.sqrt()
    r = m / sigma
    p = normal_cdf(r)
    mean = (m * p + sigma * normal_pdf(r)).clamp_min(0.0)
    return mean, (v * p + mean * (m - mean)).clamp_min(0.0)


def _backward(
    layers: Sequence[tuple[Tensor, Tensor]], trace: list[Trace], by_mean: Tensor, by_variance: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """The gradients by all means and variances, from those by the outputs' moments. shapes: as `layers`"""
    gradients: list[tuple[Tensor, Tensor]] = []
    for number in range(len(layers) - 1, -1, -1):
        m, v = layers[number]
        h, u = trace[number][:2]
        a, b = by_mean / math.sqrt(m.shape[1]), by_variance / m.shape[1]
        gradients.append((torch.outer(a, h) + 2 * m * torch.outer(b, u), torch.outer(b, h * h + u)))
        if number == 0:
            break
        by_h = (a @ m + 2 * h * (b @ v))[:-1]
        by_u = (b @ (v + m * m))[:-1]
        z, spread = trace[number - 1][2:]
        sigma, mean = spread.sqrt(), h[:-1]
        p, pdf = normal_cdf(z / sigma), normal_pdf(z / sigma)
        by_mean = by_h * p + by_u * 2 * mean * (1 - p)
        by_variance = by_h * pdf / (2 * sigma) + by_u * (p - mean * pdf / sigma)
    return gradients[::-1]


class _Prior:
    """Factors of the prior, one per weight, as natural parameters: N(w; ·, ·) Gamma(lambda; ·, ·), and the posterior of
    lambda. Each factor is refined in turn, because all of them share lambda.
    """

    def __init__(self, n: int):
        self.linear, self.precision = array("d", [0.0]) * n, array("d", [(START - 1) / START]) * n
        self.factor_shape, self.factor_rate = array("d", [0.0]) * n, array("d", [0.0]) * n
        self.both = array("d", [START, START])  # shape and rate of lambda

    @property
    def factors(self) -> tuple[array[float], ...]:
        return self.linear, self.precision, self.factor_shape, self.factor_rate

    def refine(self, mean: Tensor, variance: Tensor) -> None:
        """One round over the factors; changes means and variances in place. shapes: (n,), (n,)"""
        pairs = zip(mean.tolist(), variance.tolist(), strict=True)
        new = torch.tensor([self._refined(i, m, v) for i, (m, v) in enumerate(pairs)], dtype=mean.dtype)
        mean.copy_(new[:, 0]), variance.copy_(new[:, 1])

    def _refined(self, i: int, m: float, v: float) -> tuple[float, float]:
        """The new mean and variance of weight i, and its factor."""
        precision, linear = 1 / v - self.precision[i], m / v - self.linear[i]
        shape, rate = self.both[0] - self.factor_shape[i], self.both[1] - self.factor_rate[i]
        if not (precision > 1 / MAX_VARIANCE and rate > 0 and shape > 1):
            return m, v
        mean, variance = linear / precision, 1 / precision
        spread = [variance + rate / (shape + k) for k in (-1, 0, 1)]
        z, z1, z2 = (-0.5 * (math.log(s) + mean**2 / s) for s in spread)
        by_mean, by_variance = -mean / spread[0], 0.5 * (mean**2 / spread[0] - 1) / spread[0]
        new_m = mean + variance * by_mean
        new_v = variance - variance**2 * (by_mean**2 - 2 * by_variance)
        a = _exp(z2 - 2 * z1 + z) * (shape + 1) / shape - 1
        b = _exp(z2 - z1) * (shape + 1) / rate - _exp(z1 - z) * shape / rate
        if not (new_v > 0 and 0 < a < math.inf and 0 < b < math.inf):
            return m, v
        self.precision[i], self.linear[i] = 1 / new_v - precision, new_m / new_v - linear
        self.factor_shape[i], self.factor_rate[i] = 1 / a - shape, 1 / b - rate
        self.both[:] = array("d", [1 / a, 1 / b])
        return new_m, new_v


def _exp(x: float) -> float:
    """e^x, infinite where it is too large for a number."""
    return math.exp(x) if x < 709 else math.inf


@register(
    "pbp",
    "probabilistic backpropagation (Hernández-Lobato & Adams 2015)",
    tasks=("regression",),
    reason="a class has no normal log Z; for classes take 'dvi'",
)
def pbp(problem: Problem, passes: int = 40) -> PBP:
    """Hernández-Lobato & Adams 2015, with the paper's one hidden layer of 50 units.

    See `PBP` for `passes`.
    """
    if problem.net is not None or len(problem.input_shape) != 1:
        raise ValueError("method 'pbp' has ReLU layers of its own, on tables; leave net out, or name another method")
    if problem.activation not in ("relu", nn.ReLU):
        raise ValueError(f"method 'pbp' knows ReLU only; activation is {problem.activation!r}")
    front = None if problem.front is None else problem.front()
    return PBP(problem.input_shape[0], widths_of(problem), problem.n_targets, front, passes)
