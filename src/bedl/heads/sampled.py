"""A head whose integrals are done by sampling, as in the paper."""

from __future__ import annotations

import torch
from torch import Tensor

from bedl.heads.base import Evidence, Head
from bedl.moments import Moments
from bedl.predictive import Predictive

__all__ = ["Sampled"]


class Sampled(Head):
    """Another head, with draws of the outputs in place of its closed forms: a reference, and second derivatives.

    Args:
        head: the head; what it says about known outputs is all that is used.
        samples: draws for each point.

    Example:
        >>> import torch
        >>> from bedl.heads import Dirichlet, Sampled
        >>> from bedl.moments import Moments
        >>> f = Moments(torch.tensor([[2.0, 0.0, -1.0]]), 1.0)
        >>> torch.allclose(Sampled(Dirichlet(3), 100_000)(f).probabilities, Dirichlet(3)(f).probabilities, atol=5e-3)
        True
    """

    def __init__(self, head: Head, samples: int = 100):
        super().__init__()
        if samples < 1:
            raise ValueError(f"Sampled: samples must be at least 1, not {samples}")
        self.head, self.samples = head, samples

    @property
    def task(self) -> str:  # type: ignore[override]
        """That of the head."""
        return self.head.task

    @property
    def scaled_targets(self) -> bool:  # type: ignore[override]
        """As the head wants them."""
        return self.head.scaled_targets

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """As many as the head reads."""
        return self.head.n_outputs

    @property
    def dim(self) -> int:  # type: ignore[override]
        """Where the head reads."""
        return self.head.dim

    @property
    def complexity(self) -> float | Tensor:
        return self.head.complexity

    def given(self, f: Tensor) -> Predictive:
        return self.head.given(f)

    def divergence(self, f: Tensor, y: Tensor | None, evidence: Evidence) -> Tensor:
        return self.head.divergence(f, y, evidence)

    def log_ignorance(self, f: Moments | Tensor) -> Tensor:
        return self.head.log_ignorance(f)

    def check_targets(self, y: Tensor, batch: torch.Size) -> Tensor:
        return self.head.check_targets(y, batch)

    def counted(self, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.head.counted(y, weight)

    def targets_last(self, y: Tensor, n_dims: int) -> Tensor:
        return self.head.targets_last(y, n_dims)

    def doubts(self, y: Tensor) -> str | None:
        return self.head.doubts(y)

    def prepare(self, y: Tensor) -> None:
        self.head.prepare(y)

    def extra_repr(self) -> str:
        return f"samples={self.samples}"
