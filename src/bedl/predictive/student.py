"""Predictions of real targets whose noise is itself uncertain: Student's t."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from bedl.predictive.base import register
from bedl.predictive.normal import NormalMixturePredictive, _like, _RealPredictive

__all__ = ["StudentPredictive"]

NODES = 96  # of the precision that a t is a mixture over; distribution functions are good to 1e-6
REACH = 45.0  # asinh of the farthest quantile


@dataclasses.dataclass
class StudentPredictive(_RealPredictive):
    """Prediction of D real targets, each Student's t and independent of the others: wider tails than a normal's.

    Args:
        mean: the expected target. shape: (*batch, D)
        data: variance of the noise. shape: (*batch, D)
        distributional: variance for lack of evidence. shape: (*batch, D)
        model: variance of the mean over what the network may be. shape: (*batch, D)
        df: degrees of freedom, above 2. shape: (*batch, D)

    Example:
        >>> import torch
        >>> p = StudentPredictive(*(torch.full((1, 1), part) for part in (0.0, 1.5, 0.5, 0.0, 4.0)))
        >>> p.total.item(), [round(end.item(), 3) for end in p.interval(0.9)]  # scale² is 2 · (4 − 2)/4
        (2.0, [-2.132, 2.132])
    """

    mean: Tensor
    data: Tensor
    distributional: Tensor
    model: Tensor
    df: Tensor

    @property
    def scale(self) -> Tensor:
        """Of the t: its variance is scale² · df/(df − 2). shape: (*batch, D)"""
        return (self.total * (self.df - 2) / self.df).sqrt()

    def log_prob(self, y: Tensor) -> Tensor:
        """Log-density of the targets, summed over the D of them. y shape: (*batch, D) -> (*batch)"""
        t, half = (self._targets(y) - self.mean) / self.scale, 0.5 * self.df
        constant = torch.lgamma(half + 0.5) - torch.lgamma(half) - 0.5 * (self.df * math.pi).log() - self.scale.log()
        return (constant - (half + 0.5) * torch.log1p(t.square() / self.df)).sum(-1)

    def cdf(self, y: Tensor) -> Tensor:
        return self._cdf((self._targets(y) - self.mean) / self.scale)

    def _cdf(self, t: Tensor) -> Tensor:
        """P(T <= t) = E Phi(t sqrt(tau)), tau ~ Gamma(df/2, df/2), by equal steps in log tau. shape: (*batch, D)"""
        a = (0.5 * self.df.double())[..., None]
        low, high = -(16 / a + 7 / a.sqrt()), (1 + 30 / a).log() + 5 / a.sqrt()
        u = low + (high - low) * torch.linspace(0, 1, NODES, dtype=torch.float64, device=t.device)
        weight = torch.softmax(a * (u - u.exp()), -1)
        below = (weight * torch.special.ndtr(t.double()[..., None] * (0.5 * u).exp())).sum(-1)
        return below.clamp_max(1.0).to(t.dtype)  # weights add up to 1 but for rounding

    def quantile(self, q: float | Tensor) -> Tensor:
        """By bisection on asinh of the t; see the base class."""
        probability = _like(q, self.mean)
        lower = torch.full(torch.broadcast_shapes(probability.shape, self.mean.shape), -REACH).to(self.mean)
        upper = -lower
        for _ in range(60):
            middle = 0.5 * (lower + upper)
            below = self._cdf(middle.sinh()) < probability
            lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
        return self.mean + self.scale * (0.5 * (lower + upper)).sinh()

    @property
    def entropy(self) -> Tensor:
        """Differential entropy, in nats. shape: (*batch)"""
        half = 0.5 * self.df
        own = (half + 0.5) * (torch.digamma(half + 0.5) - torch.digamma(half)) + 0.5 * self.df.log()
        return (own + torch.lgamma(half) + 0.5 * math.log(math.pi) - torch.lgamma(half + 0.5) + self.scale.log()).sum(
            -1
        )

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """``n`` draws. shape: (n, *batch, D)"""
        noise = torch.randn((n, *self.mean.shape), dtype=self.mean.dtype, device=self.mean.device, generator=generator)
        half = (0.5 * self.df).expand(noise.shape)
        precision = torch._standard_gamma(half, generator=generator) / half
        return self.mean + self.scale * noise * precision.rsqrt()

    def mixed(self) -> NormalMixturePredictive:
        """Each member is taken for the normal of its mean and variance."""
        parts = (self.mean, self.data, self.distributional, self.model)
        return NormalMixturePredictive(*(part.movedim(0, -1) for part in parts))

    def rescale(self, loc: float | Tensor, scale: float | Tensor) -> StudentPredictive:
        """The prediction of ``loc + scale * target``: back to the target's own units. loc, scale shape: () or (D,)"""
        data, distributional, model = (part * scale**2 for part in (self.data, self.distributional, self.model))
        return StudentPredictive(loc + scale * self.mean, data, distributional, model, self.df)


register(StudentPredictive)
