"""Regression: a normal whose mean and log variance are the network's outputs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bedl.heads.base import Evidence, Head, serves
from bedl.moments import Moments
from bedl.predictive import NormalPredictive
from bedl.special import normal_log_density

__all__ = ["Normal"]

KNEE = 20.0  # exp goes on as a straight line from here: exp(20) is absurd as a variance of standardised targets


@serves("regression")
class Normal(Head):
    """Head for D real targets: lambda ~ N(f1, exp f2), y ~ N(lambda, 1/beta), f = (f1, f2) ~ N(loc, variance).

    Matching moments, y ~ N(m1, 1/beta + v1 + exp(m2 + v2/2)). Mean and variance are exact; the shape is normal although
    the true mixture has heavier tails where v2 is large. The likelihood runs on the logarithm of the variance, and
    where the variance itself is needed exp goes on as its tangent beyond exp(20): no overflow, no gradient that dies.

    Args:
        n_targets: number of targets D. The network needs 2 D outputs: first all f1, then all f2.
        beta: precision of the observation noise.
        learn_beta: whether ``log_beta`` is a parameter (else a buffer, saved and moved all the same).
        prior_precision: ``a`` of the prior N(0, 1/a) of lambda, for `kl`.

    Example:
        >>> import torch
        >>> from bedl.moments import Moments
        >>> head = Normal(1, beta=4.0)
        >>> p = head(Moments(torch.zeros(1, 2), torch.tensor([[0.75, 0.0]])))
        >>> p.epistemic.item(), p.aleatoric.item()
        (0.75, 1.25)
        >>> head.n_outputs, head.complexity
        (2, tensor(0.6366))
    """

    scaled_targets = True
    log_beta: Tensor

    def __init__(
        self,
        n_targets: int = 1,
        beta: float = 100.0,
        learn_beta: bool = False,
        prior_precision: float = 1.0,
    ):
        super().__init__()
        if n_targets < 1:
            raise ValueError(f"Normal: n_targets must be at least 1, not {n_targets}")
        if not 0 < beta < math.inf or not 0 < prior_precision < math.inf:
            raise ValueError(f"Normal: beta and prior_precision must be positive, got {beta} and {prior_precision}")
        self.n_targets = n_targets
        self.learn_beta = learn_beta
        self.prior_precision = prior_precision
        log_beta = torch.tensor(math.log(beta))
        if learn_beta:
            self.log_beta = nn.Parameter(log_beta)
        else:
            self.register_buffer("log_beta", log_beta)

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """Two network outputs per target."""
        return 2 * self.n_targets

    @property
    def beta(self) -> Tensor:
        """Precision of the observation noise; has a gradient where it is learned. shape: ()"""
        return self.log_beta.exp()

    @property
    def complexity(self) -> Tensor:
        """log B / N = beta / (2 pi). shape: ()"""
        return self.beta / (2 * math.pi)

    def extra_repr(self) -> str:
        learned = ", learn_beta=True" if self.learn_beta else ""
        return f"n_targets={self.n_targets}, beta={self.log_beta.exp().item():.4g}{learned}"

    # -- closed forms --------------------------------------------------------------------------------
    def forward(self, f: Moments | Tensor) -> NormalPredictive:
        """The prediction. f shape: (*batch, 2 D)"""
        (m1, m2), (v1, v2) = self._split(f)
        return NormalPredictive(mean=m1, aleatoric=soft_exp(m2 + 0.5 * v2) + torch.exp(-self.log_beta), epistemic=v1)

    def log_marginal(self, f: Moments | Tensor, y: Tensor) -> Tensor:
        """log N(y; m1, 1/beta + v1 + exp(m2 + v2/2)), summed over the targets.

        Args:
            f: moments of the network's outputs. shape: (*batch, 2 D)
            y: targets. shape: (*batch, D), or (*batch) where D = 1

        Returns:
            shape: (*batch)
        """
        (m1, m2), (v1, v2) = self._split(f)
        y = self.check_targets(y, m1.shape[:-1])
        log_variance = torch.logaddexp(torch.log(torch.exp(-self.log_beta) + v1), m2 + 0.5 * v2)
        return normal_log_density(y, m1, log_variance).sum(-1)

    def kl(self, f: Moments | Tensor, y: Tensor | None = None, evidence: Evidence = "all") -> Tensor:
        """KL(N(m1, v1 + exp(m2 + v2/2)) || N(0, 1/a)), summed over the targets.

        Args:
            f: moments of the network's outputs. shape: (*batch, 2 D)
            y: not needed; no evidence about a real target is misleading in itself.
            evidence: ``"all"``.

        Returns:
            shape: (*batch)
        """
        self.only_all(evidence)
        (m1, m2), (v1, v2) = self._split(f)
        log_noise = m2 + 0.5 * v2
        log_variance = torch.logaddexp(torch.log(v1.clamp_min(torch.finfo(v1.dtype).tiny)), log_noise)
        return self._normal_kl(m1, v1 + soft_exp(log_noise), log_variance).sum(-1)

    # -- for known f ---------------------------------------------------------------------------------
    def given(self, f: Tensor) -> NormalPredictive:
        mean, log_noise = f.split(self.n_targets, -1)
        return NormalPredictive(mean, soft_exp(log_noise) + torch.exp(-self.log_beta), torch.zeros_like(mean))

    def divergence(self, f: Tensor, y: Tensor | None, evidence: Evidence) -> Tensor:
        self.only_all(evidence)
        mean, log_noise = f.split(self.n_targets, -1)
        return self._normal_kl(mean, soft_exp(log_noise), log_noise).sum(-1)

    def check_targets(self, y: Tensor, batch: torch.Size) -> Tensor:
        if not y.is_floating_point():
            raise TypeError(f"{self}: targets must be floating point, not {y.dtype}; convert them with y.float()")
        if self.n_targets == 1 and y.shape == batch:
            y = y[..., None]
        if y.shape != (*batch, self.n_targets):
            raise ValueError(
                f"{self}: targets of shape {tuple(y.shape)} do not fit outputs for {tuple(batch)} points and "
                f"{self.n_targets} targets, shape {(*batch, self.n_targets)}"
            )
        return y

    def _split(self, f: Moments | Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        m, v = self.check_outputs(f)
        return m.split(self.n_targets, -1), v.split(self.n_targets, -1)

    def _normal_kl(self, mean: Tensor, variance: Tensor, log_variance: Tensor) -> Tensor:
        a = self.prior_precision
        return 0.5 * (a * (variance + mean.square()) - 1 - math.log(a) - log_variance)


def soft_exp(x: Tensor) -> Tensor:
    """exp(x) up to x = 20, from there on its tangent: finite, and with a gradient, for any x. shape: (*shape)"""
    return torch.exp(x.clamp(max=KNEE)) * (1 + (x - KNEE).clamp_min(0.0))
