"""Regression: a normal whose mean and log variance are the network's outputs."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from bedl import _kernels
from bedl.heads.base import Evidence, Head, serves
from bedl.heads.predictive import NormalPredictive
from bedl.moments import Moments
from bedl.moments.numerics import normal_log_density

MAX_LOG_EVIDENCE, MAX_LOG_NOISE = math.log(2.0), math.log(10.0)  # log variances, of targets whose variance is 1
SIGNAL = (0.02, 1.0)  # between which shares of the target's variance is explained
FAR, TOO_FLAT = 30.0, 0.5  # mean or std of targets that are hardly reached; std, in smallest noises, that hides in it
KNEE = 20.0  # exp goes on as a straight line from here: exp(20) is absurd as a variance of standardised targets


@serves("regression")
class Normal(Head[NormalPredictive]):
    """Head for D real targets: lambda ~ N(f1, exp f2), y ~ N(lambda, noise), the outputs f ~ N(loc, variance).

    The paper's noise is 1/beta, the same for all points: two outputs per target. ``noise="learned"`` reads it off a
    third output, f3. Matching moments, y ~ N(m1, noise + exp(m2 + v2/2) + v1): the three parts ``data``,
    ``distributional`` and ``model``. Mean and variance are exact; the shape is normal although the true mixture has
    heavier tails where v2 is large. The likelihood runs on the logarithm of the variance, and where the variance itself
    is needed exp goes on as its tangent beyond exp(20): no overflow, no gradient that dies. With learned noise both
    variances are bounded, at 2 (evidence) and 10 (noise) of the units of the target, which should have variance 1: no
    test point explodes.

    Args:
        n_targets: number of targets D. The network needs 2 D outputs, or 3 D with learned noise: first all f1, then all
            f2, then all f3.
        beta: precision of the observation noise, by default 100; with learned noise its largest precision, by default
            10,000.
        learn_beta: whether ``log_beta`` is a parameter (else a buffer, saved and moved all the same).
        prior_precision: ``a`` of the prior N(0, 1/a) of lambda, for `kl`.
        noise: ``"fixed"``, as in the paper, or ``"learned"``.
        dim: the dimension that the outputs, and several targets, lie along: 1 for maps with channels first.

    Example:
        >>> import torch
        >>> from bedl.moments import Moments
        >>> head = Normal(1, beta=4.0)
        >>> p = head(Moments(torch.zeros(1, 2), torch.tensor([[0.75, 0.0]])))
        >>> p.data.item(), p.distributional.item(), p.model.item()
        (0.25, 1.0, 0.75)
        >>> head.n_outputs, Normal(1, noise="learned").n_outputs, head.complexity
        (2, 3, tensor(0.6366))
    """

    scaled_targets = True
    log_beta: Tensor

    def __init__(
        self,
        n_targets: int = 1,
        beta: float | None = None,
        learn_beta: bool = False,
        prior_precision: float = 1.0,
        noise: Literal["fixed", "learned"] = "fixed",
        dim: int = -1,
    ):
        super().__init__()
        if n_targets < 1:
            raise ValueError(f"Normal: n_targets must be at least 1, not {n_targets}")
        if noise not in ("fixed", "learned"):
            raise ValueError(f'Normal: noise must be "fixed" or "learned", not {noise!r}')
        beta = (100.0 if noise == "fixed" else 1e4) if beta is None else beta
        if not 0 < beta < math.inf or not 0 < prior_precision < math.inf:
            raise ValueError(f"Normal: beta and prior_precision must be positive, got {beta} and {prior_precision}")
        self.n_targets, self.dim = n_targets, dim
        self.learn_beta = learn_beta
        self.prior_precision = prior_precision
        self.noise = noise
        log_beta = torch.tensor(math.log(beta))
        if learn_beta:
            self.log_beta = nn.Parameter(log_beta)
        else:
            self.register_buffer("log_beta", log_beta)

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """Two network outputs per target, or three."""
        return (2 if self.noise == "fixed" else 3) * self.n_targets

    @property
    def beta(self) -> Tensor:
        """Precision of the observation noise; has a gradient where it is learned. shape: ()"""
        return self.log_beta.exp()

    @property
    def complexity(self) -> Tensor:
        """log B / N = beta / (2 pi). shape: ()"""
        return self.beta / (2 * math.pi)

    def extra_repr(self) -> str:
        learned = (", learn_beta=True" if self.learn_beta else "") + (
            "" if self.noise == "fixed" else ", noise='learned'"
        )
        return f"n_targets={self.n_targets}, beta={self.log_beta.exp().item():.4g}{learned}"

    def scaling_warning(self, y: Tensor) -> str | None:
        """Whether the targets are far from mean 0 and variance 1, which the head takes them to have.

        y shape: (n, D) or (n,)

        Example:
            >>> print(Normal(1).scaling_warning(torch.tensor([1e5, 2e5, 3e5])))
            the targets have mean 2e+05 and standard deviation 8.16e+04, and Normal expects about 0 and 1: they may
            never be reached. Train on (y - y.mean()) / y.std() and take predictions back with prediction.rescale(mean,
            std); bedl.BEDLRegressor does both
        """
        columns = y.detach().float().reshape(len(y), -1)
        mean, std = columns.mean(0).abs().amax().item(), columns.std(0, correction=0)
        varied = std[std > 0]
        if not len(varied) or not math.isfinite(mean):
            return None
        floor = 0.0 if self.learn_beta else math.exp(-self.log_beta.item() / 2)
        smallest, largest = varied.min().item(), varied.max().item()
        if max(mean, largest) > FAR:
            spread, what = largest, "they may never be reached"
        elif smallest < TOO_FLAT * floor:
            spread, what = smallest, f"the noise is at least {floor:.3g} and would hide them"
        else:
            return None
        return (
            f"the targets have mean {mean:.3g} and standard deviation {spread:.3g}, and Normal expects about 0 and 1: "
            f"{what}. Train on (y - y.mean()) / y.std() and take predictions back with prediction.rescale(mean, std); "
            "bedl.BEDLRegressor does both"
        )

    # -- closed forms --------------------------------------------------------------------------------
    def forward(self, f: Moments | Tensor) -> NormalPredictive:
        """The prediction. f shape: (*batch, n_outputs)"""
        if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            m, v = self.check_outputs(f)
            if m.dim() == 2 and m.is_contiguous() and v.is_contiguous() and _kernels.supported(m, v):
                how = self.n_targets, self.noise == "learned", self.log_beta.item()
                return NormalPredictive(*_kernels.normal_parts(m, v, *how))
        m1, v1, log_evidence, log_noise = self._split(f)
        return NormalPredictive(mean=m1, data=log_noise.exp(), distributional=soft_exp(log_evidence), model=v1)

    def log_marginal(self, f: Moments | Tensor, y: Tensor) -> Tensor:
        """log N(y; m1, noise + v1 + exp(m2 + v2/2)), summed over the targets.

        Args:
            f: moments of the network's outputs. shape: (*batch, n_outputs)
            y: targets. shape: (*batch, D), or (*batch) where D = 1

        Returns:
            shape: (*batch)
        """
        m1, v1, log_evidence, log_noise = self._split(f)
        y = self.check_targets(y, m1.shape[:-1])
        log_variance = torch.logaddexp(torch.log(torch.exp(log_noise) + v1), log_evidence)
        return normal_log_density(y, m1, log_variance).sum(-1)

    def kl(self, f: Moments | Tensor, y: Tensor | None = None, evidence: Evidence = "all") -> Tensor:
        """KL(N(m1, v1 + exp(m2 + v2/2)) || N(0, 1/a)), summed over the targets.

        Args:
            f: moments of the network's outputs. shape: (*batch, n_outputs)
            y: not needed; no evidence about a real target is misleading in itself.
            evidence: ``"all"``.

        Returns:
            shape: (*batch)
        """
        self.only_all(evidence)
        m1, v1, log_evidence, _ = self._split(f)
        return self._normal_kl(m1, v1 + soft_exp(log_evidence), _log_sum(v1, log_evidence)).sum(-1)

    def log_ignorance(self, f: Moments | Tensor) -> Tensor:
        """log of lambda's variance, distributional and model, in units of the variance that the means have.

        Measured against the signal, not against the target: what is known about lambda does not depend on the noise.
        f shape: (*batch, n_outputs) -> (*batch, D)
        """
        m1, v1, log_evidence, _ = self._split(f)
        signal = m1.detach().flatten(0, -2).var(0, correction=0).clamp(*SIGNAL)
        return _log_sum(v1, log_evidence) - signal.log()

    def kl_centred(self, f: Moments | Tensor) -> Tensor:
        """KL(N(0, v1 + exp(m2 + v2/2)) || N(0, 1/a)), summed over the targets. shape: (*batch)"""
        _, v1, log_evidence, _ = self._split(f)
        zero = torch.zeros_like(v1)
        return self._normal_kl(zero, v1 + soft_exp(log_evidence), _log_sum(v1, log_evidence)).sum(-1)

    # -- for known f ---------------------------------------------------------------------------------
    def given(self, f: Tensor) -> NormalPredictive:
        mean, zero, log_evidence, log_noise = self._split(f, -1)
        return NormalPredictive(mean, log_noise.exp(), soft_exp(log_evidence), zero)

    def divergence(self, f: Tensor, y: Tensor | None, evidence: Evidence) -> Tensor:
        self.only_all(evidence)
        mean, _, log_evidence, _ = self._split(f, -1)
        return self._normal_kl(mean, soft_exp(log_evidence), log_evidence).sum(-1)

    def check_targets(self, y: Tensor, batch: torch.Size) -> Tensor:
        if not y.is_floating_point():
            raise TypeError(f"{self}: targets must be floating point, not {y.dtype}; convert them with y.float()")
        return self.as_columns(y, batch, self.n_targets)

    def _split(self, f: Moments | Tensor, dim: int | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean and variance of f1, log E exp f2, and the logarithm of the noise. shapes: (*batch, D)"""
        m, v = self.check_outputs(f, dim)
        _, *logs = (m + 0.5 * v).split(self.n_targets, -1)
        m1, v1 = m[..., : self.n_targets], v[..., : self.n_targets]
        if self.noise == "fixed":
            return m1, v1, logs[0], (-self.log_beta).to(m1.dtype).expand(m1.shape)
        log_noise = torch.logaddexp(_at_most(logs[1], MAX_LOG_NOISE), -self.log_beta)
        return m1, v1, _at_most(logs[0], MAX_LOG_EVIDENCE), log_noise

    def _normal_kl(self, mean: Tensor, variance: Tensor, log_variance: Tensor) -> Tensor:
        a = self.prior_precision
        return 0.5 * (a * (variance + mean.square()) - 1 - math.log(a) - log_variance)


def _log_sum(v: Tensor, log_w: Tensor) -> Tensor:
    """log(v + exp(log_w)), where v may be 0. shape: (*shape)"""
    return torch.logaddexp(torch.log(v.clamp_min(torch.finfo(v.dtype).tiny)), log_w)


def _at_most(x: Tensor, bound: float) -> Tensor:
    """x, bent so that it approaches the bound and never passes it. shape: (*shape)"""
    return bound - torch.nn.functional.softplus(bound - x)


def soft_exp(x: Tensor) -> Tensor:
    """exp(x) up to x = 20, from there on its tangent: finite, and with a gradient, for any x. shape: (*shape)"""
    return torch.exp(x.clamp(max=KNEE)) * (1 + (x - KNEE).clamp_min(0.0))
