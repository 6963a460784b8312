"""A prior on the weights themselves, as a divergence: it keeps their variances alive."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from bedl.errors import BEDLError
from bedl.objectives.base import ForwardPass, Objective
from bedl.objectives.hyperprior import gaussian_pairs

__all__ = ["WeightPrior"]


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
