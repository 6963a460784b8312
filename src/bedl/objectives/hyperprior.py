"""A prior on the weights' means and variances: BEDL-Hyper."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from bedl.errors import BEDLError
from bedl.nn import GaussianLayer
from bedl.objectives.base import ForwardPass, Objective

__all__ = ["HyperPrior"]


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
