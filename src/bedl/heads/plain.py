"""Classification without evidence: the outputs are the logits of the class probabilities, and nothing lies between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl.heads.base import Head
from bedl.heads.dirichlet import Dirichlet
from bedl.heads.normal import soft_exp
from bedl.heads.predictive import CategoricalPredictive, NormalPredictive
from bedl.moments import Moments
from bedl.moments.numerics import normal_log_density


class Softmax(Head[CategoricalPredictive]):
    """Head for C classes of an ordinary network: y ~ Cat(softmax f), where f may be f ~ N(loc, variance).

    p(y = c | x) = E[softmax(f)_c], by the race of `Dirichlet`. There is no distribution between the outputs and the
    label that could be unknown: ``distributional`` is 0, ``data`` is the entropy that is left once f is known, and what
    the label would tell about f is ``model``.

    Args:
        n_classes: number of classes, at least 2.
        dim, ignore_index, class_weight, label_smoothing: as in `Dirichlet`, and in PyTorch's cross-entropy.

    Example:
        >>> import torch
        >>> from bedl.moments import Moments
        >>> p = Softmax(2)(Moments(torch.zeros(1, 2), torch.tensor([[4.0, 4.0]])))
        >>> p.probabilities
        tensor([[0.5000, 0.5000]])
        >>> bool(p.data + p.model == p.entropy), bool(p.model > 0.1), p.distributional.item()
        (True, True, 0.0)
    """

    task = "classification"

    def __init__(
        self,
        n_classes: int,
        *,
        dim: int = -1,
        ignore_index: int | None = None,
        class_weight: Tensor | Sequence[float] | None = None,
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        self.dim = dim
        self.race = Dirichlet(
            n_classes, dim=dim, ignore_index=ignore_index, class_weight=class_weight, label_smoothing=label_smoothing
        )

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """One network output per class."""
        return self.race.n_classes

    def forward(self, f: Moments | Tensor) -> CategoricalPredictive:
        """The prediction. f shape: (*batch, C)"""
        if isinstance(f, Tensor):  # known logits need no integral
            return self.given(self.check_outputs(f)[0])
        p = self.race(f)
        return _without_evidence(p.log_probabilities, p.data + p.distributional, p.spread)

    def log_marginal(self, f: Moments | Tensor, y: Tensor) -> Tensor:
        """log E[softmax(f)_y] per point; of soft and smoothed labels the mean over classes, by their shares.

        f shape: (*batch, C), y shape: (*batch), integers, or (*batch, C), shares -> (*batch)
        """
        if isinstance(f, Moments):
            return self.race.log_marginal(f, y)
        p = self.forward(f)
        return p.log_prob(self.race.smoothed(self.check_targets(y, p.log_probabilities.shape[:-1])))

    def given(self, f: Tensor) -> CategoricalPredictive:
        log_p = torch.log_softmax(f, -1)
        return _without_evidence(log_p, -(log_p.exp() * log_p.clamp_min(-1e4)).sum(-1), torch.zeros_like(log_p))

    def check_targets(self, y: Tensor, batch: torch.Size) -> Tensor:
        return self.race.check_targets(y, batch)

    def counted(self, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.race.counted(y, weight)

    def extra_repr(self) -> str:
        return self.race.extra_repr()


def _without_evidence(log_p: Tensor, data: Tensor, spread: Tensor) -> CategoricalPredictive:
    """All that is known about lambda is f: no vacuity, nothing distributional. shapes: (*batch, C), (*batch)"""
    zero = torch.zeros_like(data)
    return CategoricalPredictive(log_p, data, zero, zero, spread)


# Regression without evidence: the outputs are the mean of the target and, if it varies, the logarithm of its noise.


MIN_NOISE, MAX_NOISE = 1e-6, 10.0  # variances, of targets whose variance is 1


class MeanVariance(Head[NormalPredictive]):
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
        least_noise: float = MIN_NOISE,
    ):
        super().__init__()
        if noise not in ("varying", "shared", "fixed"):
            raise ValueError(f'MeanVariance: noise must be "varying", "shared" or "fixed", not {noise!r}')
        if n_targets < 1 or not 0 < precision < math.inf:
            raise ValueError(f"MeanVariance: needs a target and a positive precision, not {n_targets} and {precision}")
        if not 0 < least_noise < MAX_NOISE:
            raise ValueError(f"MeanVariance: least_noise must lie between 0 and {MAX_NOISE:g}, not {least_noise}")
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
        bounded = math.log(MAX_NOISE) - F.softplus(math.log(MAX_NOISE) - raw)
        return m1, v1, torch.logaddexp(bounded, bounded.new_tensor(math.log(self.least_noise)))

    def extra_repr(self) -> str:
        return f"n_targets={self.n_targets}, noise={self.noise!r}"


# Heads that know E_f log p(y|f), f ~ N(loc, variance): the likelihood's part of an evidence lower bound.


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
        log_noise = (m + 0.5 * v)[..., self.n_targets :].clamp(math.log(self.least_noise), math.log(MAX_NOISE))
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
