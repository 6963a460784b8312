"""What turns the moments of a network's outputs into a prediction: by sampling, unless a subclass knows better."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from bedl.moments import Moments, as_moments
from bedl.predictive import Predictive

__all__ = ["Evidence", "Head"]

Evidence = Literal["all", "misleading"]


class Head(nn.Module):
    """Base of the heads.

    A subclass says three things about a *known* output f: the likelihood of the target, the divergence from the prior,
    and what a set of draws predicts. This class integrates over f ~ N(loc, variance) by reparameterised draws; closed
    forms override its public methods and are tested against it.

    Args:
        samples: draws of f per point.
    """

    task: ClassVar[str]
    n_outputs: int

    def __init__(self, samples: int = 100):
        super().__init__()
        if samples < 1:
            raise ValueError(f"{type(self).__name__}: samples must be at least 1, not {samples}")
        self.samples = samples

    # -- what a subclass must say -----------------------------------------------------------------
    @property
    def complexity(self) -> float | Tensor:
        """log B / N of the PAC bound, from the range of the log-likelihood."""
        raise NotImplementedError

    def log_likelihood(self, f: Tensor, y: Tensor) -> Tensor:
        """log p(y | f) of known outputs. f shape: (S, *batch, n_outputs) -> (S, *batch)"""
        raise NotImplementedError

    def divergence(self, f: Tensor, y: Tensor | None, evidence: Evidence) -> Tensor:
        """KL to the prior for known outputs. f shape: (S, *batch, n_outputs) -> (S, *batch)"""
        raise NotImplementedError

    def summarise(self, f: Tensor) -> Predictive:
        """The prediction that draws of f make. f shape: (S, *batch, n_outputs)"""
        raise NotImplementedError

    def check_targets(self, y: Tensor, batch: torch.Size) -> Tensor:
        """The targets in the shape the likelihood expects; an error that names the remedy if they cannot be."""
        raise NotImplementedError

    # -- by sampling -------------------------------------------------------------------------------
    def forward(self, f: Moments | Tensor) -> Predictive:
        """The prediction. f shape: (*batch, n_outputs)"""
        return self.summarise(self.draw(f))

    def log_marginal(self, f: Moments | Tensor, y: Tensor) -> Tensor:
        """log p(y | x) = log E_f p(y | f), per point: log-mean-exp over the draws.

        Args:
            f: moments of the network's outputs. shape: (*batch, n_outputs)
            y: targets. shape: (*batch) or (*batch, D)

        Returns:
            shape: (*batch)
        """
        draws = self.draw(f)
        y = self.check_targets(y, draws.shape[1:-1])
        values = self.log_likelihood(draws, y)
        return torch.logsumexp(values, 0) - torch.log(values.new_tensor(float(len(values))))

    def kl(self, f: Moments | Tensor, y: Tensor | None = None, evidence: Evidence = "all") -> Tensor:
        """Divergence of what f says about the target's parameters from the prior, per point.

        Args:
            f: moments of the network's outputs. shape: (*batch, n_outputs)
            y: targets, needed where ``evidence="misleading"``. shape: (*batch) or (*batch, D)
            evidence: ``"all"`` of it, or only the ``"misleading"``, that for wrong classes.

        Returns:
            shape: (*batch)
        """
        draws = self.draw(f)
        return self.divergence(draws, self._targets_for(y, evidence, draws.shape[1:-1]), evidence).mean(0)

    def log_marginal_and_kl(self, f: Moments | Tensor, y: Tensor, evidence: Evidence = "all") -> tuple[Tensor, Tensor]:
        """`log_marginal` and `kl` at once: a head may share the work between them. shapes: (*batch), (*batch)"""
        return self.log_marginal(f, y), self.kl(f, y, evidence)

    def draw(self, f: Moments | Tensor) -> Tensor:
        """Reparameterised draws of the outputs. f shape: (*batch, n_outputs) -> (S, *batch, n_outputs)"""
        loc, variance = self.check_outputs(f)
        random = variance > 0
        std = torch.where(random, variance, 1.0).sqrt() * random  # sqrt has no slope at 0
        return loc + std * torch.randn((self.samples, *loc.shape), dtype=loc.dtype, device=loc.device)

    # -- what all heads check ----------------------------------------------------------------------
    def check_outputs(self, f: Moments | Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances in one precision, at least float32. shapes: (*batch, n_outputs)"""
        f = as_moments(f)
        if f.ndim == 0 or f.shape[-1] != self.n_outputs:
            last = f.shape[-1] if f.ndim else "none"
            raise ValueError(
                f"{self}: needs {self.n_outputs} network outputs along the last dimension, got {last} "
                f"(shape {tuple(f.shape)}); the network's last layer should have {self.n_outputs} outputs"
            )
        return f.loc.to(f.variance.dtype), f.variance

    def _targets_for(self, y: Tensor | None, evidence: Evidence, batch: torch.Size) -> Tensor | None:
        if evidence not in ("all", "misleading"):
            raise ValueError(f'{self}: evidence must be "all" or "misleading", not {evidence!r}')
        if evidence == "all":
            return None
        if y is None:
            raise ValueError(f'{self}: evidence="misleading" needs the targets y')
        return self.check_targets(y, batch)
