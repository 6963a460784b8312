"""Predictions of real targets: a normal, or a mixture of normals."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bedl.heads.predictive.base import PaperSplit, Predictive, register
from bedl.moments import numerics
from bedl.moments.numerics import normal_log_density


class _RealPredictive(Predictive):
    """What predictions of real targets share: everything that follows from cdf and quantile."""

    task = "regression"
    output_names = ("mean", "std", "aleatoric", "epistemic", "data", "distributional", "model")

    @property
    def variance(self) -> Tensor:
        """All uncertainty together: ``total``. shape: (*batch, D)"""
        return self.total

    @property
    def aleatoric_std(self) -> Tensor:
        """Square root of ``aleatoric``. shape: (*batch, D)"""
        return self.aleatoric.sqrt()

    @property
    def epistemic_std(self) -> Tensor:
        """Square root of ``epistemic``. shape: (*batch, D)"""
        return self.epistemic.sqrt()

    def paper_split(self) -> PaperSplit:
        return PaperSplit(self.data + self.distributional, self.model)

    def cdf(self, y: Tensor) -> Tensor:
        """P(target <= y), per target. y shape: (*batch, D) -> (*batch, D)"""
        raise NotImplementedError

    def _targets(self, y: Any) -> Tensor:
        """Targets in the shape of the prediction; never broadcast, which would compare every point with every other."""
        shape = self.mean.shape
        if not isinstance(y, Tensor):  # an array, a list, a column of a frame
            y = torch.from_numpy(np.array(y, dtype=np.float64)).to(self.mean)
        if y.shape == shape[:-1] and shape[-1] == 1:
            return y[..., None]
        if y.shape[-len(shape) :] != shape:  # several values for each point may stand in front
            raise ValueError(f"targets of shape {tuple(y.shape)} do not fit predictions of shape {tuple(shape)}")
        return y

    def quantile(self, q: float | Tensor) -> Tensor:
        """The value below which the target lies with probability ``q``.

        Args:
            q: a number, or several. shape: () or (Q,)

        Returns:
            shape: (*batch, D), or (Q, *batch, D)
        """
        raise NotImplementedError

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval that holds the target with probability ``level``.

        shapes: (*batch, D)
        """
        if not 0 < level < 1:
            raise ValueError(f"interval: level must lie between 0 and 1, not {level}")
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def _columns(self) -> dict[str, Tensor]:
        lower, upper = self.interval(0.9)
        spread = {name: getattr(self, name) for name in ("mean", "std", "aleatoric_std", "epistemic_std")}
        parts = {f"{name}_std": getattr(self, name).sqrt() for name in ("data", "distributional", "model")}
        return {**spread, **parts, "lower_90": lower, "upper_90": upper}


def _like(q: float | Tensor, leaf: Tensor) -> Tensor:
    """Probabilities as a tensor with as many trailing dimensions as the leaf. shape: (*q, 1, ..., 1)"""
    q = torch.as_tensor(q, dtype=leaf.dtype, device=leaf.device)
    if not torch.compiler.is_compiling() and not bool(((q > 0) & (q < 1)).all()):
        raise ValueError("quantile: q must lie strictly between 0 and 1")
    return q.reshape(q.shape + (1,) * leaf.ndim)


@dataclasses.dataclass
class NormalPredictive(_RealPredictive):
    """Prediction of D real targets, each normal and independent of the others.

    Args:
        mean: the expected target. shape: (*batch, D)
        data: variance of the noise. shape: (*batch, D)
        distributional: variance for lack of evidence. shape: (*batch, D)
        model: variance of the mean over what the network may be. shape: (*batch, D)

    Example:
        >>> import torch
        >>> p = NormalPredictive(*(torch.full((2, 1), part) for part in (0.0, 0.75, 0.125, 0.125)))
        >>> p.std[0].item(), [round(end[0].item(), 3) for end in p.interval(0.9)]
        (1.0, [-1.645, 1.645])
        >>> p.rescale(20.0, 5.0).mean[0].item(), p.rescale(20.0, 5.0).std[0].item()
        (20.0, 5.0)
    """

    mean: Tensor
    data: Tensor
    distributional: Tensor
    model: Tensor

    def log_prob(self, y: Tensor) -> Tensor:
        """Log-density of the targets, summed over the D of them. y shape: (*batch, D) -> (*batch)"""
        return normal_log_density(self._targets(y), self.mean, self.variance.log()).sum(-1)

    def cdf(self, y: Tensor) -> Tensor:
        y = self._targets(y)
        return torch.special.ndtr((y - self.mean) / self.std)

    def quantile(self, q: float | Tensor) -> Tensor:
        return self.mean + self.std * torch.special.ndtri(_like(q, self.mean))

    @property
    def entropy(self) -> Tensor:
        """Differential entropy, in nats. shape: (*batch)"""
        return normal_entropy(self.variance).sum(-1)

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """``n`` draws. shape: (n, *batch, D)"""
        noise = torch.randn((n, *self.mean.shape), dtype=self.mean.dtype, device=self.mean.device, generator=generator)
        return self.mean + self.std * noise

    def mixed(self) -> NormalMixturePredictive:
        parts = (self.mean, self.data, self.distributional, self.model)
        return NormalMixturePredictive(*(part.movedim(0, -1) for part in parts))

    def marginal(self) -> NormalPredictive:
        between = self.mean.var(0, correction=0)
        mean, data, distributional, model = (part.mean(0) for part in _leaves(self))
        return NormalPredictive(mean, data, distributional + between, model)

    def scaled(self, scales: Tensor, log_weights: Tensor) -> NormalMixturePredictive:
        """The mixture of normals about the same mean whose variances are `scales` times as large.

        scales, log_weights: shapes (M,)
        """
        means = self.mean[..., None].expand(*self.mean.shape, len(scales))
        data, distributional, model = (
            part[..., None] * scales for part in (self.data, self.distributional, self.model)
        )
        weights = log_weights.expand(*means.shape[:-2], 1, -1)
        return NormalMixturePredictive(means, data, distributional, model, weights)

    def rescale(self, loc: float | Tensor, scale: float | Tensor) -> NormalPredictive:
        """The prediction of ``loc + scale * target``: back to the target's own units. loc, scale shape: () or (D,)"""
        parts = (part * scale**2 for part in (self.data, self.distributional, self.model))
        return NormalPredictive(loc + scale * self.mean, *parts)


def _leaves(prediction: Any) -> list[Tensor]:
    return [getattr(prediction, field.name) for field in dataclasses.fields(prediction)]


def normal_entropy(variance: Tensor) -> Tensor:
    """Differential entropy of a normal. shape: (*shape)"""
    return 0.5 * (variance.log() + math.log(2 * math.pi) + 1)


@dataclasses.dataclass
class NormalMixturePredictive(_RealPredictive):
    """Prediction of D real targets by M members, each a normal.

    The variances follow the law of total variance: each part is the members' mean, and the variance of their means
    comes on top of ``model``. Density, quantiles and intervals are those of the mixture itself, which
    need not be normal.

    Args:
        means: members' means. shape: (*batch, D, M)
        members_data: members' variances of the noise. shape: (*batch, D, M)
        members_distributional: members' variances for lack of evidence. shape: (*batch, D, M)
        members_model: members' variances of the mean. shape: (*batch, D, M)
        log_weights: logarithms of the members' weights, which add up to 1; equal ones by default. A member speaks for
            all D targets, so it has one weight. shape: (*batch, 1, M)

    Example:
        >>> import torch
        >>> means, ones = torch.tensor([[[0.0, 4.0]]]), torch.ones(1, 1, 2)
        >>> p = NormalMixturePredictive(means, ones, 0 * ones, 0 * ones, torch.tensor([[[0.75, 0.25]]]).log())
        >>> p.mean.item(), p.data.item(), p.model.item()
        (1.0, 1.0, 3.0)
    """

    means: Tensor
    members_data: Tensor
    members_distributional: Tensor
    members_model: Tensor
    log_weights: Tensor = None  # type: ignore[assignment]  # a tensor from the start on

    def __post_init__(self) -> None:
        if self.log_weights is None:
            self.log_weights = torch.full_like(self.means[..., :1, :], -math.log(self.means.shape[-1]))

    def _average(self, values: Tensor) -> Tensor:
        """The weighted mean over the members. values: shape (*batch, D, M) -> (*batch, D)"""
        return (self.log_weights.exp() * values).sum(-1)

    @property
    def mean(self) -> Tensor:
        """shape: (*batch, D)"""
        first = self.means[..., :1]  # weights add up to 1 but for rounding, which a large mean would show
        return first[..., 0] + self._average(self.means - first)

    @property
    def data(self) -> Tensor:
        """shape: (*batch, D)"""
        return self._average(self.members_data)

    @property
    def distributional(self) -> Tensor:
        """shape: (*batch, D)"""
        return self._average(self.members_distributional)

    @property
    def model(self) -> Tensor:
        """shape: (*batch, D)"""
        return self._average(self.members_model + (self.means - self.mean[..., None]).square())

    @property
    def _stds(self) -> Tensor:
        return (0.5 * self._log_variances).exp()

    @property
    def _log_variances(self) -> Tensor:
        return (self.members_data + self.members_distributional + self.members_model).log()

    def log_prob(self, y: Tensor) -> Tensor:
        """Log-density of the targets jointly: a member speaks for all D of them. y shape: (*batch, D) -> (*batch)"""
        members = normal_log_density(self._targets(y)[..., None], self.means, self._log_variances).sum(-2)
        return torch.logsumexp(members + self.log_weights[..., 0, :], -1)

    def cdf(self, y: Tensor) -> Tensor:
        probability = self._average(torch.special.ndtr((self._targets(y)[..., None] - self.means) / self._stds))
        return probability.clamp_max(1.0)  # weights add up to 1 but for rounding

    def quantile(self, q: float | Tensor) -> Tensor:
        """By bisection between the members' own quantiles, which enclose the mixture's; see the base class."""
        probability = _like(q, self.mean)
        ends = self.means + self._stds * torch.special.ndtri(probability)[..., None]
        lower, upper = ends.amin(-1), ends.amax(-1)
        for _ in range(60 if lower.dtype == torch.float64 else 30):
            middle = 0.5 * (lower + upper)
            below = self.cdf(middle) < probability
            lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
        return 0.5 * (lower + upper)

    @property
    def entropy(self) -> Tensor:
        """Differential entropies, summed over the targets, by 32 Gauss-Hermite nodes per member. shape: (*batch)"""
        own = self.means[..., None, :], self._log_variances[..., None, :]
        entropy = torch.zeros_like(self.mean)
        for node, weight in zip(*numerics.tensors(numerics.hermite(32), self.means), strict=True):
            y = self.means + self._stds * node  # one node at a time: there may be a hundred members
            density = normal_log_density(y[..., None], *own) + self.log_weights[..., None, :]
            entropy = entropy - weight * self._average(torch.logsumexp(density, -1))
        return entropy.sum(-1)

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """``n`` draws; each takes one member for all its targets. shape: (n, *batch, D)"""
        device, dtype = self.means.device, self.means.dtype
        batch, members = self.means.shape[:-2], self.means.shape[-1]
        shares = self.log_weights.exp().cumsum(-1)
        place = torch.rand((n, *batch, 1, 1), dtype=dtype, device=device, generator=generator)
        member = (place > shares).sum(-1, keepdim=True).clamp(max=members - 1).expand(n, *self.means.shape[:-1], 1)
        noise = torch.randn((n, *self.means.shape[:-1]), dtype=dtype, device=device, generator=generator)
        mean, std = (leaf.expand(n, *leaf.shape).gather(-1, member)[..., 0] for leaf in (self.means, self._stds))
        return mean + std * noise

    def mixed(self) -> NormalMixturePredictive:
        log_weights = self.log_weights - math.log(len(self.means))
        parts = (self.means, self.members_data, self.members_distributional, self.members_model, log_weights)
        return NormalMixturePredictive(*(part.movedim(0, -2).flatten(-2) for part in parts))

    def marginal(self) -> NormalMixturePredictive:
        """Each member by itself, with the moments of its predictions."""
        between = self.means.var(0, correction=0)
        means, data, distributional, model, _ = (part.mean(0) for part in _leaves(self))
        return NormalMixturePredictive(means, data, distributional + between, model, self.log_weights[0])

    def rescale(self, loc: float | Tensor, scale: float | Tensor) -> NormalMixturePredictive:
        """The prediction of ``loc + scale * target``, as for `NormalPredictive`. loc, scale shape: () or (D,)"""
        loc, scale = (
            torch.as_tensor(x, dtype=self.means.dtype, device=self.means.device)[..., None] for x in (loc, scale)
        )
        square = scale.square()
        parts = (self.members_data, self.members_distributional, self.members_model)
        data, distributional, model = (part * square for part in parts)
        return NormalMixturePredictive(loc + scale * self.means, data, distributional, model, self.log_weights)


register(NormalPredictive)
register(NormalMixturePredictive)


# Predictions of real targets whose noise is itself uncertain: Student's t.


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

    def marginal(self) -> StudentPredictive:
        between = self.mean.var(0, correction=0)
        mean, data, distributional, model, df = (part.mean(0) for part in _leaves(self))
        return StudentPredictive(mean, data, distributional + between, model, df)

    def rescale(self, loc: float | Tensor, scale: float | Tensor) -> StudentPredictive:
        """The prediction of ``loc + scale * target``: back to the target's own units. loc, scale shape: () or (D,)"""
        data, distributional, model = (part * scale**2 for part in (self.data, self.distributional, self.model))
        return StudentPredictive(loc + scale * self.mean, data, distributional, model, self.df)


register(StudentPredictive)
