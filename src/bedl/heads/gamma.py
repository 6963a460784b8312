"""Integrals over f1, f2 ~ N of a negative binomial of mean mu(f1) and shape k(f2), without sampling.

*Mean.* mu = exp(f1) up to a knee, its tangent beyond: where the network knows nothing, E exp(f1) = exp(m + v/2) would
grow beyond all counts; this grows like the standard deviation. Its first two moments are closed forms.

*Shape.* k = exp(f2) + 1e-3, the floor of the evidence of `bedl.heads.integrals`; above exp(20) it is a Poisson.

*Likelihood.* For a count of 1e5 the likelihood as a function of f1 is a thousand times narrower than the prior, and may
lie fifty standard deviations away from its centre. So the nodes follow the product of the two: in f2 they cover what
matters of its profile, and for each of these they lie in f1 around the mode given f2, on a scale that the curvature
says, with spacings that grow outwards (sinh). Where an analytic function vanishes at both ends the trapezoidal rule
converges exponentially. In float64, relative errors of the log-likelihood are below 1e-4 for counts up to 1e5 and stds
up to 3; gradients are those of the integral, through nodes that stay where they are relative to the prior.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl.evaluation import metrics
from bedl.heads.base import Evidence, Head, serves
from bedl.heads.integrals import LOG_FLOOR
from bedl.heads.integrals.kl import expected_inverse, gamma_terms
from bedl.heads.predictive import Predictive
from bedl.heads.predictive.base import PaperSplit, register
from bedl.heads.predictive.categorical import can_look
from bedl.moments import Moments, numerics
from bedl.moments.numerics import mills, normal_cdf, normal_pdf, standardize, std

MAX_LOG_SHAPE = 20.0
OUTER = 41  # nodes for f2
INNER, REACH, GROWTH = 35, 6.0, 0.3  # nodes for f1
ZOOMS, GRID = 5, 17  # of the search for what matters in f2
DEPTH, SIDES = 18.0, 6.0  # what is exp(-18) of the largest value does not matter: it lies six standard deviations away
STEPS, FEWER = 8, 4  # of Newton's method for f1; fewer where its mode is needed roughly
COUNTS_PER_CHUNK = 2**11  # counts that are computed at a time: each takes some thousand numbers
LOWEST = -25.0  # below this f2 the shape is its floor


class Outputs(NamedTuple):
    """What is known of the network's outputs for a target, and the knee of its mean. shapes: (*shape)

    Attributes:
        m1, v1: mean and variance of f1, the logarithm of the mean.
        m2, v2: mean and variance of f2, the logarithm of the shape.
        knee: where exp(f1) goes on as its tangent.
    """

    m1: Tensor
    v1: Tensor
    m2: Tensor
    v2: Tensor
    knee: Tensor


# -- known outputs -----------------------------------------------------------------------------------
def log_mean(f: Tensor, knee: Tensor) -> Tensor:
    """log mu. shapes: (*shape)"""
    return torch.minimum(f, knee) + torch.log1p((f - knee).clamp_min(0.0))


def log_shape(f: Tensor) -> Tensor:
    """log k. shape: (*shape)"""
    return torch.logaddexp(f, f.new_tensor(LOG_FLOOR)).clamp(max=MAX_LOG_SHAPE)


def log_pmf(y: Tensor, log_mu: Tensor, log_k: Tensor) -> Tensor:
    """log P(y) of a negative binomial; needs float64 for large counts. shapes: (*shape)"""
    return _choices(y, log_k) + _rest(y, log_mu, log_k)


def _choices(y: Tensor, log_k: Tensor) -> Tensor:
    k = log_k.exp()
    return torch.lgamma(y + k) - torch.lgamma(k) - torch.lgamma(y + 1)


def _rest(y: Tensor, log_mu: Tensor, log_k: Tensor) -> Tensor:
    """The part of log P(y) that depends on the mean."""
    odds = log_mu - log_k
    return -log_k.exp() * F.softplus(odds) - y * F.softplus(-odds)


# -- moments -----------------------------------------------------------------------------------------
def rate_moments(f: Outputs) -> tuple[Tensor, Tensor, Tensor]:
    """E mu, Var mu and E[mu² / k]: noise, model and distributional part of the variance. shapes: (*shape)"""
    m, v, c = f.m1, f.v1, f.knee
    s, a = std(v), f.m1 - f.knee
    z = standardize(-a, s)  # of the knee
    beyond, density = normal_cdf(-z), normal_pdf(z)
    mean = torch.exp(c) * ((1 + a) * beyond + s * density) + _below(m, v, s, z, c, 1)
    square = torch.exp(2 * c) * (((1 + a).square() + v) * beyond + s * density * (2 + a)) + _below(m, v, s, z, c, 2)
    # three forms of the variance: all below the knee; hardly any variance; the difference of moments
    free = z - 2 * s > 6
    low = torch.minimum(m, c)
    log_normal = torch.exp(torch.where(free, 2 * m + v, 2 * low)) * torch.expm1(torch.where(free, v, 0.0))
    little = torch.exp(2 * low) * v
    variance = torch.where(free, log_normal, torch.where(v < 1e-3, little, (square - mean.square()).clamp_min(0.0)))
    inverse_shape, _, _ = expected_inverse(f.m2, f.v2)
    return mean, variance, (variance + mean.square()) * inverse_shape


def _below(m: Tensor, v: Tensor, s: Tensor, z: Tensor, c: Tensor, n: int) -> Tensor:
    """E[exp(n f); f < c] = exp(n m + n² v/2) Φ(z - n s), in the tail by Mills' ratio. shapes: (*shape)"""
    x = n * s - z
    tail = x > 0
    exponent = torch.where(tail, n * c, n * m + 0.5 * n * n * v)
    return torch.exp(exponent) * torch.where(tail, normal_pdf(z) * mills(x.clamp_min(0.0)), normal_cdf(-x))


def expected_shape_terms(m: Tensor, v: Tensor) -> Tensor:
    """E[k psi(k) - log Gamma(k) - k - psi(k) + log k]: what the shape adds to the divergence. shapes: (*shape)"""
    z, weight = numerics.tensors(numerics.hermite(32), m)
    log_k = torch.logaddexp(m[..., None] + std(v)[..., None] * z, m.new_tensor(LOG_FLOOR))
    total, digamma_after = gamma_terms(log_k)
    return ((total - digamma_after + torch.exp(-log_k) + log_k) * weight).sum(-1)


# -- likelihood --------------------------------------------------------------------------------------
def log_expected_pmf(y: Tensor, outputs: Outputs) -> Tensor:
    """log E P(y | f), in float64 inside. shapes: (*shape) -> (*shape)"""
    if can_look(y) and y.numel() > COUNTS_PER_CHUNK:
        parts = zip(*(x.reshape(-1).split(COUNTS_PER_CHUNK) for x in (y, *outputs)), strict=True)
        return torch.cat([_log_expected_pmf(first, Outputs(*rest)) for first, *rest in parts]).reshape(y.shape)
    return _log_expected_pmf(y, outputs)


def _log_expected_pmf(y: Tensor, outputs: Outputs) -> Tensor:
    dtype = outputs.m1.dtype
    y, f = y.double(), Outputs(*(x.double() for x in outputs))
    s1, s2 = std(f.v1), std(f.v2)
    with torch.no_grad():
        fixed = _Problem(y.detach(), *(x.detach() for x in (f.m1, s1, f.m2, s2, f.knee)))
        t2, log_weight2 = _outer_nodes(*_outer_window(fixed))  # shapes: (*shape, A)
        t1, log_weight1 = _inner_nodes(*_inner_mode(_expanded(fixed), t2, STEPS))  # shapes: (*shape, A, B)
    log_k = log_shape(f.m2[..., None] + s2[..., None] * t2)
    log_mu = log_mean(f.m1[..., None, None] + s1[..., None, None] * t1, f.knee[..., None, None])
    inner = torch.logsumexp(_rest(y[..., None, None], log_mu, log_k[..., None]) + log_weight1, -1)
    return torch.logsumexp(_choices(y[..., None], log_k) + inner + log_weight2, -1).to(dtype)


def _weights(t: Tensor, spacing: Tensor) -> Tensor:
    """Logarithms of the weights of nodes t, in stds, times the prior's density. shapes: (*shape)"""
    return spacing.log() - 0.5 * t.square() - 0.5 * math.log(2 * math.pi)


def _inner_nodes(centre: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes around a mode, with spacings that grow outwards, and log weights. shapes: (*shape) -> (*shape, INNER)"""
    u = torch.linspace(-REACH, REACH, INNER, dtype=centre.dtype, device=centre.device)
    x, spacing = torch.sinh(GROWTH * u) / GROWTH, torch.cosh(GROWTH * u) * (2 * REACH / (INNER - 1))
    t = centre[..., None] + scale[..., None] * x
    return t, _weights(t, spacing * scale[..., None])


def _outer_nodes(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes between two ends, and log weights. shapes: (*shape) -> (*shape, OUTER)"""
    t = low[..., None] + (high - low)[..., None] * torch.linspace(0, 1, OUTER, dtype=low.dtype, device=low.device)
    return t, _weights(t, ((high - low) / (OUTER - 1))[..., None])


class _Problem(NamedTuple):
    """A count, and outputs as mean and standard deviation."""

    y: Tensor
    m1: Tensor
    s1: Tensor
    m2: Tensor
    s2: Tensor
    knee: Tensor


def _expanded(p: _Problem) -> _Problem:
    return _Problem(*(x[..., None] for x in p))


def _inner_mode(p: _Problem, t2: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Mode and scale in t1 given t2: Newton's method within a bracket. shapes: (*shape)"""
    log_k = log_shape(p.m2 + p.s2 * t2)
    k = log_k.exp()
    top = p.knee.exp()
    some = p.y.clamp_min(0.5)
    peak = torch.where(some < top, some.log(), p.knee + some / top - 1)  # where mu = y
    mu = log_mean(p.m1, p.knee).exp()
    to_peak = torch.where(p.s1 > 0, (peak - p.m1) / p.s1.clamp_min(1e-300), 0.0)
    end = torch.where(p.y > 0, to_peak, -p.s1 * k * mu / (k + mu)) + torch.zeros_like(t2)
    low, high = end.clamp(max=0.0), end.clamp_min(0.0)
    precision = p.s1.square() * some * k / (some + k)  # of the likelihood at its peak; the prior's is 1
    t = (to_peak * precision / (1 + precision)).clamp(low, high)
    curvature = torch.ones_like(end)
    for _ in range(steps):
        f = p.m1 + p.s1 * t
        mu = log_mean(f, p.knee).exp()
        slope = p.s1 / (1 + (f - p.knee).clamp_min(0.0))
        gradient = slope * k * (p.y - mu) / (k + mu) - t
        curvature = 1 + slope.square() * (p.y + k) * (mu / (k + mu)) * (k / (k + mu))
        low, high = torch.where(gradient > 0, t, low), torch.where(gradient > 0, high, t)
        newton = t + gradient / curvature
        t = torch.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
    return t, curvature.rsqrt()


def _profile(p: _Problem, t2: Tensor) -> Tensor:
    """log of the integral over t1, by Laplace's method, and the prior of t2; up to a constant. shapes: (*shape)"""
    t1, scale = _inner_mode(p, t2, FEWER)
    log_k = log_shape(p.m2 + p.s2 * t2)
    value = _choices(p.y, log_k) + _rest(p.y, log_mean(p.m1 + p.s1 * t1, p.knee), log_k)
    return value - 0.5 * t1.square() + scale.log() - 0.5 * t2.square()


def _outer_window(p: _Problem) -> tuple[Tensor, Tensor]:
    """Ends of what matters in t2, by grids that zoom in; there may be two modes. shapes: (*shape)"""
    many = _expanded(p)
    # The slope of the likelihood in f2 is at most 1; downwards it is bounded by the count, and ends at LOWEST.
    steepest = 20 * (p.y + 1) + log_shape(p.m2).exp() + log_mean(p.m1, p.knee).exp()
    lowest = torch.where(p.s2 > 0, (LOWEST - p.m2) / p.s2.clamp_min(1e-300), 0.0).clamp(max=0.0)
    low, high = torch.maximum(lowest, -p.s2 * steepest) - SIDES, p.s2 + SIDES
    steps = torch.linspace(0, 1, GRID, dtype=low.dtype, device=low.device)
    number = torch.arange(GRID, device=low.device)
    for _ in range(ZOOMS):
        values = _profile(many, low[..., None] + (high - low)[..., None] * steps)
        matters = values > values.amax(-1, keepdim=True) - DEPTH
        first = torch.where(matters, number, GRID).amin(-1) - 1
        last = torch.where(matters, number, -1).amax(-1) + 1
        width = (high - low) / (GRID - 1)
        low, high = low + width * first.clamp_min(0), low + width * last.clamp(max=GRID - 1)
    return low, high


# Counts: a Gamma over the rate of a Poisson, its log mean and log shape the network's outputs.


KNEE = 10.0  # of the mean, in logarithms above the level, until targets have been seen


@serves("count")
class Gamma(Head["CountPredictive"]):
    """Head for D counts: lambda ~ Gamma(shape k, mean mu), y ~ Poisson(lambda), f = (f1, f2) ~ N(loc, variance).

    mu = level · exp(f1) and k = exp(f2), so y is negative binomial given f; `bedl.heads.gamma` integrates
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

    def marginal(self) -> CountPredictive:
        """Each member by itself, with the mean and variance of its rates: the variance of means lowers its shape."""
        f = self._members
        means, variances, within = rate_moments(f)
        m1, v1, knee = torch.logsumexp(f.m1, 0) - math.log(len(f.m1)), f.v1.mean(0), f.knee[0]
        zero = torch.zeros_like(m1)
        mean, variance, _ = rate_moments(Outputs(m1, v1, zero, zero, knee))
        rest = (within + variances).mean(0) + means.var(0, correction=0) - variance
        return CountPredictive(m1, v1, -(rest / (variance + mean.square())).log(), zero, knee)

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
