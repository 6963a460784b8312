"""Regression without evidence: the outputs are the mean of the target and, if it varies, the logarithm of its noise."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl.heads.base import Head
from bedl.moments import Moments
from bedl.predictive import NormalPredictive
from bedl.special import normal_log_density

__all__ = ["MeanVariance"]

LEAST_NOISE, MOST_NOISE = 1e-6, 10.0  # variances, of targets whose variance is 1


class MeanVariance(Head):
    """Head for D real targets of an ordinary network: y ~ N(f1, noise), where f may be f ~ N(loc, variance).

    Matching moments, y ~ N(m1, noise + v1): ``data`` and ``model``; there is nothing ``distributional``. The noise is
    exp f2, read off a second output per target (D. Nix, A. Weigend, ICNN 1994), one learned number per target, or a
    fixed one. What a network says of the noise lies between `least_noise` and 10 in units of the target's variance,
    which should be 1: no test point explodes.

    Args:
        n_targets: number of targets D. The network needs 2 D outputs, first all f1, then all f2, or D where the noise
            does not vary.
        noise: ``"varying"`` with the input, ``"shared"`` by all points and learned, or ``"fixed"``.
        precision: of the noise; where it is learned, at the start.
        dim: the dimension that the outputs, and several targets, lie along: 1 for maps with channels first.
        least_noise: where it varies, the variance that is added to exp f2 (`ExpectedMeanVariance`: the least one).

    Example:
        >>> import torch
        >>> from bedl.moments import Moments
        >>> head = MeanVariance(1, noise="fixed", precision=4.0)
        >>> p = head(Moments(torch.zeros(1, 1), torch.tensor([[0.75]])))
        >>> p.data.item(), p.distributional.item(), p.model.item()
        (0.25, 0.0, 0.75)
        >>> head.n_outputs, MeanVariance(1).n_outputs
        (1, 2)
    """

    task = "regression"
    scaled_targets = True
    log_precision: Tensor

    def __init__(
        self,
        n_targets: int = 1,
        noise: Literal["varying", "shared", "fixed"] = "varying",
        precision: float = 1.0,
        dim: int = -1,
        least_noise: float = LEAST_NOISE,
    ):
        super().__init__()
        if noise not in ("varying", "shared", "fixed"):
            raise ValueError(f'MeanVariance: noise must be "varying", "shared" or "fixed", not {noise!r}')
        if n_targets < 1 or not 0 < precision < math.inf:
            raise ValueError(f"MeanVariance: needs a target and a positive precision, not {n_targets} and {precision}")
        if not 0 < least_noise < MOST_NOISE:
            raise ValueError(f"MeanVariance: least_noise must lie between 0 and {MOST_NOISE:g}, not {least_noise}")
        self.n_targets, self.noise, self.dim, self.least_noise = n_targets, noise, dim, least_noise
        log_precision = torch.full((n_targets,), math.log(precision))
        if noise == "shared":
            self.log_precision = nn.Parameter(log_precision)
        elif noise == "fixed":
            self.register_buffer("log_precision", log_precision)

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """Two network outputs per target where the noise varies, else one."""
        return (2 if self.noise == "varying" else 1) * self.n_targets

    def forward(self, f: Moments | Tensor) -> NormalPredictive:
        """The prediction. f shape: (*batch, n_outputs)"""
        m, v, log_noise = self.split(f)
        return NormalPredictive(m, log_noise.exp(), torch.zeros_like(m), v)

    def log_marginal(self, f: Moments | Tensor, y: Tensor) -> Tensor:
        """log N(y; m1, noise + v1), summed over the targets. y shape: (*batch, D) or (*batch) -> (*batch)"""
        m, v, log_noise = self.split(f)
        y = self.check_targets(y, m.shape[:-1])
        log_variance = log_noise if isinstance(f, Tensor) else torch.log(log_noise.exp() + v)
        return normal_log_density(y, m, log_variance).sum(-1)

    def given(self, f: Tensor) -> NormalPredictive:
        return self.forward(f)

    def check_targets(self, y: Tensor, batch: torch.Size) -> Tensor:
        if not y.is_floating_point():
            raise TypeError(f"{self}: targets must be floating point, not {y.dtype}; convert them with y.float()")
        return self.as_columns(y, batch, self.n_targets)

    def split(self, f: Moments | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance of f1, and the logarithm of the (expected) noise. shapes: (*batch, D)"""
        m, v = self.check_outputs(f)
        m1, v1 = m[..., : self.n_targets], v[..., : self.n_targets]
        if self.noise != "varying":
            return m1, v1, (-self.log_precision).to(m1.dtype).expand(m1.shape)
        raw = m[..., self.n_targets :] + 0.5 * v[..., self.n_targets :]
        bounded = math.log(MOST_NOISE) - F.softplus(math.log(MOST_NOISE) - raw)
        return m1, v1, torch.logaddexp(bounded, bounded.new_tensor(math.log(self.least_noise)))

    def extra_repr(self) -> str:
        return f"n_targets={self.n_targets}, noise={self.noise!r}"
