"""The two parts of an evidence lower bound: expected log-likelihood, and the divergence of weights from their prior."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor, nn

from bedl.errors import BEDLError
from bedl.objectives.base import ForwardPass, Objective
from bedl.objectives.hyperprior import gaussian_pairs

__all__ = ["EmpiricalPrior", "ExpectedLikelihood"]


@dataclasses.dataclass(frozen=True)
class ExpectedLikelihood(Objective):
    """−mean E_f log p(y_n | f): the likelihood's part of the evidence lower bound, by the head's closed form.

    Example:
        >>> import torch
        >>> from bedl import GaussianLinear
        >>> from bedl.heads import ExpectedSoftmax
        >>> from bedl.objectives import Batch
        >>> batch = Batch(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), n_train=4)
        >>> ExpectedLikelihood()(GaussianLinear(2, 2), ExpectedSoftmax(2), batch)  # an untrained bias of 0: log 2
        tensor(0.6931, grad_fn=...)
    """

    def statistic(self, forward: ForwardPass) -> Tensor:
        expected = getattr(forward.head, "expected_log_prob", None)
        if expected is None:
            raise BEDLError(f"{forward.head} has no expected_log_prob; use ExpectedMeanVariance or ExpectedSoftmax")
        return -forward.batch.mean(expected(forward.outputs, forward.batch.y))


@dataclasses.dataclass(frozen=True)
class EmpiricalPrior(Objective):
    """strength/N · min_s [ KL(q ‖ N(0, s)) − log InvGamma(s; alpha, beta) ], s the prior variance of each layer.

        s* = (Σ_i (mu_i² + sigma_i²) + 2 beta) / (n + 2 alpha + 2),  n the number of the layer's weights

    The prior variance follows the weights ("empirical Bayes"), held by a hyperprior; s* is the minimum, so its own
    gradient vanishes. A. Wu et al., "Deterministic Variational Inference for Robust Bayesian Neural Networks", ICLR
    2019, section 5. ``variance`` fixes s instead: a plain normal prior.

    Args:
        strength: a factor on the divergence; 1 is the evidence lower bound.
        alpha: shape of the hyperprior.
        beta: its scale.
        variance: the prior variance, where it is not to be learned.
        ramp: epochs in which the divergence rises to its full weight; 0: it has it from the start.

    Example:
        >>> from bedl import GaussianLinear
        >>> net = GaussianLinear(10, 10)
        >>> bool(EmpiricalPrior().divergence(net) < EmpiricalPrior(variance=100.0).divergence(net))
        True
    """

    strength: float = 1.0
    alpha: float = 1.0
    beta: float = 10.0
    variance: float | None = None
    ramp: float = 0.0

    def __post_init__(self) -> None:
        numbers = {"alpha": self.alpha, "beta": self.beta, "variance": self.variance}
        for name, value in numbers.items():
            if value is not None and not isinstance(value, Tensor) and not value > 0:
                raise ValueError(f"EmpiricalPrior: {name} must be positive, not {value}")

    def statistic(self, forward: ForwardPass) -> Tensor:
        # No sum over points: the same in every batch, hence its own mean.
        share = forward.batch.ramp(self.ramp) if self.ramp else 1.0
        return self.strength * share * self.divergence(forward.net) / forward.batch.n_train

    def divergence(self, net: nn.Module) -> Tensor:
        """Summed over the Gaussian weights of `net`. shape: ()"""
        terms = [self._of_layer(mean, logvar.expand(mean.shape)) for mean, logvar in gaussian_pairs(net)]
        if not terms:
            raise BEDLError(
                "EmpiricalPrior: this network has no Gaussian weights; make some with bedl.bayesianize(net)"
            )
        return torch.stack(terms).sum()

    def _of_layer(self, mean: Tensor, logvar: Tensor) -> Tensor:
        """shapes: (*), (*) -> ()"""
        n, square = mean.numel(), (mean.square() + logvar.exp()).sum()
        if self.variance is not None:
            s = torch.as_tensor(self.variance, dtype=mean.dtype, device=mean.device)
            return 0.5 * (square / s + n * s.log() - n - logvar.sum())
        a, b = self.alpha, self.beta
        s = (square + 2 * b) / (n + 2 * a + 2)
        hyper = a * math.log(b) - math.lgamma(a) - (a + 1) * s.log() - b / s
        return 0.5 * (square / s + n * s.log() - n - logvar.sum()) - hyper
