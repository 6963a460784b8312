"""Heads that know E_f log p(y|f), f ~ N(loc, variance): the likelihood's part of an evidence lower bound."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from bedl.heads.mean_variance import MOST_NOISE, MeanVariance
from bedl.heads.normal import soft_exp
from bedl.heads.softmax import Softmax
from bedl.moments import Moments

__all__ = ["ExpectedMeanVariance", "ExpectedSoftmax"]


class ExpectedMeanVariance(MeanVariance):
    """`MeanVariance` with the expected log-density in closed form.

        E log p(y|f) = −½ log 2π − ½ m2 − ½ ((y − m1)² + v1) exp(−m2 + v2/2)

    for outputs f1 ~ N(m1, v1) and f2 ~ N(m2, v2), the logarithm of the noise, that are independent. A. Wu et al.,
    "Deterministic Variational Inference for Robust Bayesian Neural Networks", ICLR 2019, section 4, without the
    covariance of f1 and f2. The noise is f2's exponential itself, cut off where `MeanVariance` bends it.

    Example:
        >>> import torch
        >>> f = Moments(torch.zeros(1, 2), torch.tensor([[0.5, 0.0]]))
        >>> round(ExpectedMeanVariance(1).expected_log_prob(f, torch.zeros(1, 1)).item(), 4)
        -1.1689
    """

    def expected_log_prob(self, f: Moments | Tensor, y: Tensor) -> Tensor:
        """E_f log p(y|f), summed over the targets. f shape: (*batch, n_outputs), y shape: (*batch, D) -> (*batch)"""
        m, v = self.check_outputs(f)
        m1, v1 = m[..., : self.n_targets], v[..., : self.n_targets]
        if self.noise == "varying":
            m2, v2 = m[..., self.n_targets :], v[..., self.n_targets :]
        else:
            m2, v2 = (-self.log_precision).to(m1.dtype).expand(m1.shape), torch.zeros_like(m1)
        error = (self.check_targets(y, m1.shape[:-1]) - m1).square() + v1
        return -0.5 * (math.log(2 * math.pi) + m2 + error * soft_exp(0.5 * v2 - m2)).sum(-1)

    def split(self, f: Moments | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.noise != "varying":
            return super().split(f)
        m, v = self.check_outputs(f)
        log_noise = (m + 0.5 * v)[..., self.n_targets :].clamp(math.log(self.least_noise), math.log(MOST_NOISE))
        return m[..., : self.n_targets], v[..., : self.n_targets], log_noise


class ExpectedSoftmax(Softmax):
    """`Softmax` with the expected log-probability, E log p(y|f) = m_y − E log Σ_c exp f_c.

    The last term has no closed form. ``"delta"`` expands it to second order in the outputs' deviations,
    log Σ exp m + ½ Σ_c p_c (1 − p_c) v_c with p = softmax m, as Wu et al., ICLR 2019, do; ``"samples"`` draws, as
    Haussmann et al., AABI 2020, do.

    Args:
        n_classes: number of classes, at least 2.
        expectation: ``"delta"`` or ``"samples"``.
        samples: draws for each point, for the latter.
        dim: the dimension that the classes lie along: 1 for maps with channels first.

    Example:
        >>> import torch
        >>> f = Moments(torch.zeros(1, 2), torch.ones(1, 2))
        >>> round(ExpectedSoftmax(2).expected_log_prob(f, torch.tensor([0])).item(), 4)
        -0.9431
    """

    def __init__(
        self, n_classes: int, expectation: Literal["delta", "samples"] = "delta", samples: int = 5, *, dim: int = -1
    ):
        super().__init__(n_classes, dim=dim)
        if expectation not in ("delta", "samples"):
            raise ValueError(f'ExpectedSoftmax: expectation must be "delta" or "samples", not {expectation!r}')
        if samples < 1:
            raise ValueError(f"ExpectedSoftmax: samples must be at least 1, not {samples}")
        self.expectation, self.samples = expectation, samples

    def expected_log_prob(self, f: Moments | Tensor, y: Tensor) -> Tensor:
        """E_f log p(y|f). f shape: (*batch, C), y shape: (*batch), integers -> (*batch)"""
        m, v = self.check_outputs(f)
        y = self.check_targets(y, m.shape[:-1])
        own = m.gather(-1, y[..., None])[..., 0]
        if self.expectation == "samples":
            return own - torch.logsumexp(self.draw(f), -1).mean(0)
        p = torch.softmax(m, -1)
        return own - torch.logsumexp(m, -1) - 0.5 * (p * (1 - p) * v).sum(-1)
