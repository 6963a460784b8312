"""Ensembles: several networks that learn independently, as an equal mixture.

B. Lakshminarayanan, A. Pritzel, C. Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep
Ensembles", NeurIPS 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bedl.heads.predictive import mixture
from bedl.methods.base import Method
from bedl.methods.plain import BOTH, deterministic
from bedl.methods.registry import Problem, register
from bedl.moments import Moments

if TYPE_CHECKING:
    from bedl.heads.predictive import Predictive


class Ensemble(Method):
    """Methods of the same build whose predictions are mixed with equal weights.

    The mixture's mean is the mean of the members' means. By the law of total variance, its aleatoric variance is
    the mean of the members', and its epistemic variance is the mean of theirs plus the variance of their means: what
    they disagree about is what they do not know.

    `bedl.training.fit_replicas` trains all members in one vectorised run.

    Args:
        members: the methods; `Ensemble.of` makes them.

    Example:
        >>> import torch
        >>> from bedl import GaussianLinear
        >>> from bedl.heads import Normal
        >>> from bedl.methods import BEDL, Ensemble
        >>> ensemble = Ensemble.of(3, lambda: BEDL(GaussianLinear(2, 2), Normal(1)), seed=0)
        >>> len(ensemble.members), ensemble.predict(torch.zeros(4, 2)).mean.shape
        (3, torch.Size([4, 1]))
    """

    def __init__(self, members: Sequence[Method]):
        super().__init__()
        if not members:
            raise ValueError("an ensemble has at least one member")
        for member in members:
            if not isinstance(member, Method):
                raise TypeError(f"members are methods (bedl.methods.Method), not {type(member).__name__}")
        self._members = nn.ModuleList(members)

    @classmethod
    def of(cls, size: int, make: Callable[[], Method], seed: int = 0) -> Ensemble:
        """`size` members made by `make`, each with random numbers of its own; the global generator is left alone."""
        members = []
        for number in range(size):
            with torch.random.fork_rng():
                # not seed + number: ensembles of neighbouring seeds would share members
                torch.manual_seed(int(np.random.SeedSequence([seed, number]).generate_state(1)[0]))
                members.append(make())
        return cls(members)

    @property
    def members(self) -> Sequence[Any]:
        return list(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def forward(self, x: Tensor | Moments) -> Predictive:
        """The mixture, in the members' present mode and with gradients. x: shape (n, *input)"""
        return mixture([member(x) for member in self._members])

    def fit(self, x: Tensor, y: Tensor) -> Ensemble:
        """Let each member learn by itself, if that is how it learns. x: shape (n, *input); y: shape (n,) or (n, D)"""
        for member in self.members:
            member.fit(x, y)
        return self


@register("ensemble", "deep ensemble (Lakshminarayanan et al. 2017): several plain networks, mixed", tasks=BOTH)
def ensemble(problem: Problem, size: int = 5) -> Ensemble:
    """Plain networks of the method "deterministic", without the paper's adversarial examples.

    Args:
        size: how many; 5 in the paper.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size is a number of networks, at least 1, not {size!r}")
    return Ensemble([deterministic(problem) for _ in range(size)])
