"""A prior on the weights' means and variances: BEDL-Hyper."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from bedl._utils.errors import BEDLError
from bedl.nn import GaussianLayer
from bedl.objectives.base import ForwardPass, Objective


@dataclasses.dataclass(frozen=True)
class HyperPrior(Objective):
    """−(1/N) log p(phi), with mu_i ~ N(0, 1/alpha0) and sigma_i² ~ InvGamma(a0, b0) for every Gaussian weight i.

        log p(phi) = Σ_i  ½ log(alpha0/2π) − ½ alpha0 mu_i²
                        + a0 log b0 − log Γ(a0) − (a0 + 1) log sigma_i² − b0/sigma_i²

    The density is one in sigma², as the paper writes it, although networks are parametrised by log sigma². The most
    probable phi depends on that choice: here the prior alone pulls sigma² to b0/(a0 + 1), in log sigma² it would be
    b0/a0. A variance that several weights share (``variances="output"``) counts once. Biases and point parameters
    have no prior. Haussmann et al., AABI 2020, appendix.

    Args:
        a0: shape of the inverse gamma.
        b0: its scale.
        alpha0: precision of the means.

    Example:
        >>> from bedl import GaussianLinear
        >>> net = GaussianLinear(10, 10)
        >>> bool(HyperPrior(b0=0.1).log_density(net) < HyperPrior(b0=0.001).log_density(net))  # sigma² is exp(−9)
        True
    """

    a0: float = 1.0
    b0: float = 0.01
    alpha0: float = 1.0

    def __post_init__(self) -> None:
        for name in ("a0", "b0", "alpha0"):
            value = getattr(self, name)
            if not isinstance(value, Tensor) and not value > 0:
                raise ValueError(f"HyperPrior: {name} must be positive, not {value}")

    def statistic(self, forward: ForwardPass) -> Tensor:
        # No sum over points: the same in every batch, hence its own mean.
        return -self.log_density(forward.net) / forward.batch.n_train

    def log_density(self, net: nn.Module) -> Tensor:
        """log p(phi), summed over the Gaussian weights of `net`. shape: ()"""
        terms = [self._log_density(mean, logvar) for mean, logvar in gaussian_pairs(net)]
        if not terms:
            raise BEDLError("HyperPrior: this network has no Gaussian weights; make some with bedl.bayesianize(net)")
        return torch.stack(terms).sum()

    def _log_density(self, mean: Tensor, logvar: Tensor) -> Tensor:
        """One weight tensor's part; a variance that weights share counts once. mean, logvar: shape (*); result: ()"""
        a0, b0, alpha0 = (
            torch.as_tensor(v, dtype=mean.dtype, device=mean.device) for v in (self.a0, self.b0, self.alpha0)
        )
        of_means = 0.5 * (alpha0.log() - math.log(2 * math.pi)) - 0.5 * alpha0 * mean.square()
        of_variances = a0 * b0.log() - torch.lgamma(a0) - (a0 + 1) * logvar - b0 * (-logvar).exp()
        return of_means.sum() + of_variances.sum()


def gaussian_pairs(net: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """(mean, log-variance) of each Gaussian weight; one that several layers share, once. shapes: (*)"""
    seen: set[int] = set()
    for layer in net.modules():
        if not isinstance(layer, GaussianLayer):
            continue
        for name in layer.gaussian_parameters:
            mean, logvar = layer._parameters.get(f"{name}_mean"), layer._parameters.get(f"{name}_logvar")
            if mean is not None and logvar is not None and id(mean) not in seen:
                seen.add(id(mean))
                yield mean, logvar


# A prior on the weights themselves, as a divergence: it keeps their variances alive.


@dataclasses.dataclass(frozen=True)
class WeightPrior(Objective):
    """strength/N · KL(N(mu, sigma²) ‖ N(0, 1)), summed over the Gaussian weights.

    Args:
        strength: a factor on the divergence; 1 would be that of a variational posterior.

    Example:
        >>> import torch
        >>> from bedl import GaussianLinear
        >>> net = GaussianLinear(1, 1)
        >>> with torch.no_grad():
        ...     _ = net.weight_mean.fill_(1.0), net.weight_logvar.fill_(0.0)
        >>> WeightPrior().divergence(net).item()
        0.5
    """

    strength: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.strength, Tensor) and not self.strength >= 0:
            raise ValueError(f"WeightPrior: strength must be at least 0, not {self.strength}")

    def statistic(self, forward: ForwardPass) -> Tensor:
        # No sum over points: the same in every batch, hence its own mean.
        return self.strength * self.divergence(forward.net) / forward.batch.n_train

    def divergence(self, net: torch.nn.Module) -> Tensor:
        """The divergence of all Gaussian weights of `net`. shape: ()"""
        terms = [0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum() for mean, logvar in _pairs(net)]
        if not terms:
            raise BEDLError("WeightPrior: this network has no Gaussian weights; make some with bedl.bayesianize(net)")
        return torch.stack(terms).sum()


def _pairs(net: torch.nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Means and log-variances of the same shape: a variance that weights share counts for each of them."""
    return [(mean, logvar.expand(mean.shape)) for mean, logvar in gaussian_pairs(net)]


# The two parts of an evidence lower bound: expected log-likelihood, and the divergence of weights from their prior.


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
