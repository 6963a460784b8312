"""Counts: a Gamma over the rate of a Poisson, its log mean and log shape the network's outputs."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from bedl import metrics
from bedl.heads.base import Evidence, Head, serves
from bedl.heads.negative_binomial import (
    Outputs,
    expected_shape_terms,
    log_expected_pmf,
    log_mean,
    log_pmf,
    log_shape,
    rate_moments,
)
from bedl.moments import Moments
from bedl.predictive import Predictive
from bedl.predictive.base import PaperSplit, register
from bedl.predictive.labels import can_look

__all__ = ["CountPredictive", "Gamma"]

KNEE = 10.0  # of the mean, in logarithms above the level, until targets have been seen


@serves("count")
class Gamma(Head):
    """Head for D counts: lambda ~ Gamma(shape k, mean mu), y ~ Poisson(lambda), f = (f1, f2) ~ N(loc, variance).

    mu = level · exp(f1) and k = exp(f2), so y is negative binomial given f; `bedl.heads.negative_binomial` integrates
    over f without sampling, and says how both are bounded. The level is 1, or, after `prepare`, the mean of the
    targets, from where the network starts; from e times the largest target on, mu grows linearly.

    Args:
        n_targets: number of targets D. The network needs 2 D outputs: first all f1, then all f2.
        prior_mean: mean of the prior of lambda, in units of the level: an exponential law, Gamma(1, mean), for `kl`.
        dim: the dimension that the outputs, and several targets, lie along: 1 for maps with channels first.

    Example:
        >>> import torch
        >>> from bedl.moments import Moments
        >>> head = Gamma(1)
        >>> p = head(Moments(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.1, 0.0]])))
        >>> p.mean, p.data + p.distributional + p.model - p.variance
        (tensor([[2.8577]]), tensor([[0.]]))
        >>> head.log_marginal(torch.tensor([[0.0, 0.0]]), torch.tensor([[0]])).exp()  # geometric
        tensor([0.4999])
    """

    log_level: Tensor
    log_knee: Tensor

    def __init__(self, n_targets: int = 1, prior_mean: float = 1.0, dim: int = -1):
        super().__init__()
        if n_targets < 1:
            raise ValueError(f"Gamma: n_targets must be at least 1, not {n_targets}")
        if not 0 < prior_mean < math.inf:
            raise ValueError(f"Gamma: prior_mean must be positive, not {prior_mean}")
        self.n_targets, self.dim = n_targets, dim
        self.prior_mean = prior_mean
        self.register_buffer("log_level", torch.zeros(n_targets))
        self.register_buffer("log_knee", torch.full((n_targets,), KNEE))

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """Two network outputs per target."""
        return 2 * self.n_targets

    def extra_repr(self) -> str:
        return f"n_targets={self.n_targets}"

    def prepare(self, y: Tensor) -> None:
        """Start from the mean of the targets, and take their range for that of the mean. y shape: as targets"""
        if self.dim != -1 and self.n_targets > 1:
            y = y.movedim(self.dim, -1)
        counts = y.reshape(-1, self.n_targets)
        counts = self.check_targets(counts, counts.shape[:1]).double()
        self.log_level.copy_(counts.mean(0).clamp_min(1e-3).log())
        self.log_knee.copy_(counts.amax(0).clamp_min(1.0).log() + 1)

    # -- closed forms --------------------------------------------------------------------------------
    def forward(self, f: Moments | Tensor) -> CountPredictive:
        """The prediction. f shape: (*batch, 2 D)"""
        return CountPredictive(*(x[..., None] for x in self._outputs(f)))

    def log_marginal(self, f: Moments | Tensor, y: Tensor) -> Tensor:
        """log p(y | x), summed over the targets. f shape: (*batch, 2 D), y shape: (*batch, D) -> (*batch)"""
        outputs = self._outputs(f)
        return log_expected_pmf(self.check_targets(y, outputs.m1.shape[:-1]), outputs).sum(-1)

    def kl(self, f: Moments | Tensor, y: Tensor | None = None, evidence: Evidence = "all") -> Tensor:
        """E KL(Gamma(k, mean mu) || Gamma(1, mean prior_mean · level)), summed over the targets.

        Args:
            f: moments of the network's outputs. shape: (*batch, 2 D)
            y: not needed; no evidence about a count is misleading in itself.
            evidence: ``"all"``.

        Returns:
            shape: (*batch)
        """
        return self._divergence(self._outputs(f), evidence)

    def _divergence(self, outputs: Outputs, evidence: Evidence) -> Tensor:
        self.only_all(evidence)
        mean, _, _ = rate_moments(outputs)
        log_prior = self._log_prior(mean)
        log_mu = log_mean(outputs.m1, outputs.knee)  # the bend of the link between m1 - s1 and m1 + s1 is left out
        terms = expected_shape_terms(outputs.m2, outputs.v2) + mean * torch.exp(-log_prior) + log_prior - log_mu
        return terms.sum(-1)

    def log_ignorance(self, f: Moments | Tensor) -> Tensor:
        """log(1 / k) at the means: the shape counts observations. f shape: (*batch, 2 D) -> (*batch, D)"""
        return -log_shape(self._outputs(f).m2)

    # -- for known f ---------------------------------------------------------------------------------
    def given(self, f: Tensor) -> CountPredictive:
        return CountPredictive(*(x[..., None] for x in self._outputs(f, -1)))

    def divergence(self, f: Tensor, y: Tensor | None, evidence: Evidence) -> Tensor:
        return self._divergence(self._outputs(f, -1), evidence)

    def check_targets(self, y: Tensor, batch: torch.Size) -> Tensor:
        y = self.as_columns(y, batch, self.n_targets)
        if can_look(y) and not bool(((y >= 0) & (y == y.floor() if y.is_floating_point() else y >= 0)).all()):
            raise ValueError(f"{self}: targets are counts, whole numbers from 0 on")
        return y

    def _log_prior(self, like: Tensor) -> Tensor:
        return self.log_level.to(like.dtype) + math.log(self.prior_mean)

    def _outputs(self, f: Moments | Tensor, dim: int | None = None) -> Outputs:
        m, v = self.check_outputs(f, dim)
        (m1, m2), (v1, v2) = m.split(self.n_targets, -1), v.split(self.n_targets, -1)
        level, knee = self.log_level.to(m.dtype), self.log_knee.to(m.dtype)
        return Outputs(m1 + level, v1, m2, v2, knee.expand(m1.shape))


@dataclasses.dataclass
class CountPredictive(Predictive):
    """Prediction of D counts by M members of equal weight; variances in units of counts squared.

    ``variance = data + distributional + model``: the noise of a Poisson whose rate is known; what the evidence leaves
    open about the rate; and what is not known about the network. The last two are ``epistemic``. Likelihoods are those
    of the mixture itself; `cdf`, `quantile` and `interval` those of the negative binomial with its mean and variance.

    Args:
        log_means: means of f1, the logarithm of the members' means. shape: (*batch, D, M)
        log_mean_variances: variances of f1. shape: (*batch, D, M)
        log_shapes: means of f2, the logarithm of the members' shapes. shape: (*batch, D, M)
        log_shape_variances: variances of f2. shape: (*batch, D, M)
        log_knees: where the means go on as a tangent. shape: (*batch, D, M)

    Example:
        >>> import torch
        >>> p = Gamma(1)(torch.tensor([[3.0, 1.0]]))
        >>> [end.item() for end in p.interval(0.9)]
        [4.0, 45.0]
    """

    log_means: Tensor
    log_mean_variances: Tensor
    log_shapes: Tensor
    log_shape_variances: Tensor
    log_knees: Tensor

    task = "count"
    output_names = ("mean", "std", "aleatoric", "epistemic", "data", "distributional", "model")

    @property
    def _members(self) -> Outputs:
        return Outputs(
            self.log_means, self.log_mean_variances, self.log_shapes, self.log_shape_variances, self.log_knees
        )

    @property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, and distributional and model part of the variance. shapes: (*batch, D)"""
        means, variances, within = rate_moments(self._members)
        return means.mean(-1), within.mean(-1), variances.mean(-1) + means.var(-1, correction=0)

    def outputs(self) -> dict[str, Tensor]:
        mean, distributional, model = self._parts  # once, for the sake of exported graphs
        std = (mean + distributional + model).sqrt()
        parts = {"data": mean, "distributional": distributional, "model": model}
        return {"mean": mean, "std": std, "aleatoric": mean, "epistemic": distributional + model, **parts}

    @property
    def mean(self) -> Tensor:
        """shape: (*batch, D)"""
        return self._parts[0]

    @property
    def data(self) -> Tensor:
        """Variance of a Poisson whose rate is known: its mean. shape: (*batch, D)"""
        return self.mean

    @property
    def distributional(self) -> Tensor:
        """Variance of the rate given the network's outputs. shape: (*batch, D)"""
        return self._parts[1]

    @property
    def model(self) -> Tensor:
        """Variance of the mean of the rate, over what is not known of the network. shape: (*batch, D)"""
        return self._parts[2]

    @property
    def variance(self) -> Tensor:
        """The same as ``total``. shape: (*batch, D)"""
        return self.total

    def paper_split(self) -> PaperSplit:
        mean, distributional, model = self._parts
        return PaperSplit(mean + distributional, model)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log-probability of the counts jointly: a member speaks for all D. y shape: (*batch, D) -> (*batch)"""
        y, members = self._targets(y)[..., None].double(), self._members
        if can_look(members.v1) and not (members.v1.any() or members.v2.any()):
            means, shapes = log_mean(members.m1.double(), members.knee.double()), log_shape(members.m2.double())
            values = log_pmf(y, means, shapes)
        else:
            values = _log_probs(y, members)
        log_p = torch.logsumexp(values.sum(-2), -1) - math.log(self.log_means.shape[-1])
        return log_p.to(self.log_means.dtype)

    def _targets(self, y: Tensor) -> Tensor:
        """Targets in the shape of the prediction, several values for each point in front if there are."""
        shape = self.log_means.shape[:-1]
        if y.shape == shape[:-1] and shape[-1] == 1:
            return y[..., None]
        if y.shape[-len(shape) :] != shape:
            raise ValueError(f"targets of shape {tuple(y.shape)} do not fit predictions of shape {tuple(shape)}")
        return y

    def cdf(self, y: Tensor) -> Tensor:
        """P(target <= y), per target. y shape: (*batch, D) -> (*batch, D)"""
        mean, std = self._mean_and_std()
        return self._tensor(metrics.negative_binomial_cdf(self._targets(y).cpu().numpy(), mean, std))

    def quantile(self, q: float) -> Tensor:
        """The smallest count that the target exceeds with probability at most 1 - q. shape: (*batch, D)"""
        return self._tensor(metrics.negative_binomial_quantile(q, *self._mean_and_std()))

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Ends of the central interval, counts that belong to it. shapes: (*batch, D)"""
        if not 0 < level < 1:
            raise ValueError(f"interval: level must lie between 0 and 1, not {level}")
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def _mean_and_std(self) -> tuple:
        return tuple(x.detach().double().cpu().numpy() for x in (self.mean, self.std))

    def _tensor(self, values: object) -> Tensor:
        return torch.as_tensor(values, dtype=self.log_means.dtype, device=self.log_means.device)

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """``n`` draws; each takes one member for all its targets. shape: (n, *batch, D)"""
        shape, members, device = self.log_means.shape, self.log_means.shape[-1], self.log_means.device
        chosen = torch.randint(members, (n, *shape[:-2], 1, 1), device=device, generator=generator)
        chosen = chosen.expand(n, *shape[:-1], 1)
        m1, v1, m2, v2, knee = (x.expand(n, *shape).gather(-1, chosen)[..., 0].double() for x in self._members)
        noise = [torch.randn(m1.shape, dtype=m1.dtype, device=device, generator=generator) for _ in range(2)]
        mean = log_mean(m1 + v1.sqrt() * noise[0], knee).exp()
        shape_of = log_shape(m2 + v2.sqrt() * noise[1]).exp()
        rate = torch._standard_gamma(shape_of, generator=generator) * mean / shape_of
        return torch.poisson(rate, generator=generator).to(self.log_means.dtype)

    def mixed(self) -> CountPredictive:
        return CountPredictive(*(part.movedim(0, -2).flatten(-2) for part in self._members))

    def _columns(self) -> dict[str, Tensor]:
        lower, upper = self.interval(0.9)
        parts = ("aleatoric", "epistemic", "data", "distributional", "model")
        spread = {"mean": self.mean, "std": self.std, **{f"{part}_std": getattr(self, part).sqrt() for part in parts}}
        return {**spread, "lower_90": lower, "upper_90": upper}


def _log_probs(y: Tensor, members: Outputs) -> Tensor:
    """Of each member. shapes: (*more, *batch, D, 1), (*batch, D, M) -> (*more, *batch, D, M)"""
    y, *outputs = torch.broadcast_tensors(y, *members)
    return log_expected_pmf(y, Outputs(*outputs))


register(CountPredictive)
