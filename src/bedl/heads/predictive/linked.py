"""Predictions of positive and of bounded targets: a link function of a mixture of normals."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from bedl.heads.predictive.base import register
from bedl.heads.predictive.normal import NormalMixturePredictive, _like, _RealPredictive
from bedl.moments import numerics

NODES = 32  # of Gauss-Hermite quadrature, for each member


@dataclasses.dataclass
class LinkedPredictive(_RealPredictive):
    """Prediction of y = g(u), where u is a mixture of normals and g rises.

    Density, quantiles and intervals are exact. Mean and variance are found by quadrature; `data`, `distributional` and
    `model` have the shares of the variance that they have for u.

    Args:
        means, members_data, members_distributional, members_model, log_weights: of u, as in `NormalMixturePredictive`.
        knee: what else g depends on, for each target. shape: (*batch, D)
    """

    means: Tensor
    members_data: Tensor
    members_distributional: Tensor
    members_model: Tensor
    log_weights: Tensor
    knee: Tensor

    link_name: ClassVar[str]

    @classmethod
    def of(cls, base: NormalMixturePredictive, knee: Tensor) -> LinkedPredictive:
        """The prediction of g(u). knee: shape (D,)"""
        parts = (base.means, base.members_data, base.members_distributional, base.members_model, base.log_weights)
        return cls(*parts, knee.to(base.means).expand(base.means.shape[:-1]))

    @property
    def base(self) -> NormalMixturePredictive:
        """The prediction of u."""
        parts = (self.means, self.members_data, self.members_distributional, self.members_model)
        return NormalMixturePredictive(*parts, self.log_weights)

    # -- the link -----------------------------------------------------------------------------------
    def link(self, u: Tensor) -> Tensor:
        """g(u). shape: (…, *batch, D)"""
        raise NotImplementedError

    def inverse(self, y: Tensor) -> Tensor:
        """u, of which y is g; infinite where y can be no g of anything. shape: (…, *batch, D)"""
        raise NotImplementedError

    def log_slope(self, u: Tensor) -> Tensor:
        """log g'(u). shape: (…, *batch, D)"""
        raise NotImplementedError

    # -- moments ------------------------------------------------------------------------------------
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of y. shapes: (*batch, D)"""
        base = self.base
        first, second = torch.zeros_like(self.knee), torch.zeros_like(self.knee)
        centre = self.link(base.mean)  # squares about it do not cancel
        stds = base._stds
        for node, weight in zip(*numerics.tensors(numerics.hermite(NODES), self.means), strict=True):
            each = self.link((self.means + stds * node).movedim(-1, 0)).movedim(0, -1) - centre[..., None]
            first = first + weight * base._average(each)
            second = second + weight * base._average(each.square())
        return centre + first, (second - first.square()).clamp_min(torch.finfo(second.dtype).tiny)

    @property
    def mean(self) -> Tensor:
        """shape: (*batch, D)"""
        return self._moments()[0]

    @property
    def variance(self) -> Tensor:
        return self._moments()[1]

    @property
    def total(self) -> Tensor:
        return self._moments()[1]

    @property
    def data(self) -> Tensor:
        """shape: (*batch, D)"""
        return self.variance * self.base.data / self.base.variance

    @property
    def distributional(self) -> Tensor:
        """shape: (*batch, D)"""
        return self.variance * self.base.distributional / self.base.variance

    @property
    def model(self) -> Tensor:
        """shape: (*batch, D)"""
        return self.variance * self.base.model / self.base.variance

    def outputs(self) -> dict[str, Tensor]:
        base, (mean, variance) = self.base, self._moments()  # once, for the sake of exported graphs
        share = variance / base.variance
        data, distributional, model = (share * part for part in (base.data, base.distributional, base.model))
        parts = {"data": data, "distributional": distributional, "model": model}
        return {"mean": mean, "std": variance.sqrt(), "aleatoric": data, "epistemic": distributional + model, **parts}

    # -- density ------------------------------------------------------------------------------------
    def log_prob(self, y: Tensor) -> Tensor:
        """Log-density of the targets, -inf where g takes no such value. y shape: (*batch, D) -> (*batch)"""
        u = self.inverse(self._targets(y))
        known = u.isfinite()
        safe = torch.where(known, u, 0.0)
        value = self.base.log_prob(safe) - self.log_slope(safe).sum(-1)
        return torch.where(known.all(-1), value, -torch.inf)

    def cdf(self, y: Tensor) -> Tensor:
        return self.base.cdf(self.inverse(self._targets(y)))

    def quantile(self, q: float | Tensor) -> Tensor:
        _like(q, self.means)
        return self.link(self.base.quantile(q))

    @property
    def entropy(self) -> Tensor:
        """Differential entropy, in nats. shape: (*batch)"""
        base, found = self.base, torch.zeros_like(self.knee)
        for node, weight in zip(*numerics.tensors(numerics.hermite(NODES), self.means), strict=True):
            u = (self.means + base._stds * node).movedim(-1, 0)
            found = found + weight * base._average(self.log_slope(u).movedim(0, -1))
        return base.entropy + found.sum(-1)

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """``n`` draws; each takes one member for all its targets. shape: (n, *batch, D)"""
        return self.link(self.base.sample(n, generator))

    def mixed(self) -> LinkedPredictive:
        return type(self).of(self.base.mixed(), self.knee[0, 0])

    def marginal(self) -> LinkedPredictive:
        """Each member by itself, with the moments of its predictions of u."""
        return type(self).of(self.base.marginal(), self.knee[0, 0])


class LogNormalPredictive(LinkedPredictive):
    """Prediction of D positive targets: mixtures of log-normals.

    Beyond `knee`, the logarithm of the largest target that was seen, g goes on as the tangent of exp, so that a large
    variance of u makes no absurd mean.

    Example:
        >>> parts = (torch.full((1, 1, 1), part) for part in (0.0, 0.25, 0.0, 0.0))
        >>> p = LogNormalPredictive.of(NormalMixturePredictive(*parts), torch.tensor([9.0]))
        >>> round(p.mean.item(), 4), [round(end.item(), 3) for end in p.interval(0.9)]  # exp(1/8), exp(±1.645/2)
        (1.1331, [0.439, 2.276])
    """

    link_name = "log"

    def link(self, u: Tensor) -> Tensor:
        return u.minimum(self.knee).exp() * (1 + (u - self.knee).clamp_min(0.0))

    def inverse(self, y: Tensor) -> Tensor:
        positive = y > 0
        log_y = torch.where(positive, y, 1.0).log()
        beyond = self.knee + y * (-self.knee).exp() - 1
        return torch.where(positive, torch.where(log_y < self.knee, log_y, beyond), -torch.inf)

    def log_slope(self, u: Tensor) -> Tensor:
        return u.minimum(self.knee)


class LogitNormalPredictive(LinkedPredictive):
    """Prediction of D targets between 0 and 1: mixtures of logit-normals; `knee` says nothing.

    Example:
        >>> parts = (torch.full((1, 1, 1), part) for part in (0.0, 1.0, 0.0, 0.0))
        >>> p = LogitNormalPredictive.of(NormalMixturePredictive(*parts), torch.zeros(1))
        >>> round(p.mean.item(), 3), [round(end.item(), 3) for end in p.interval(0.9)]
        (0.5, [0.162, 0.838])
    """

    link_name = "logit"

    def link(self, u: Tensor) -> Tensor:
        return torch.sigmoid(u)

    def inverse(self, y: Tensor) -> Tensor:
        inside = (y > 0) & (y < 1)
        return torch.where(inside, torch.logit(torch.where(inside, y, 0.5)), (y - 0.5) * torch.inf)

    def log_slope(self, u: Tensor) -> Tensor:
        return -torch.nn.functional.softplus(u) - torch.nn.functional.softplus(-u)


register(LogNormalPredictive)
register(LogitNormalPredictive)
