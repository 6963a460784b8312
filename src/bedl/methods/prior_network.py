"""Prior networks: a Dirichlet that is told to be sharp on the data and flat off it.

A. Malinin, M. Gales, "Predictive Uncertainty Estimation via Prior Networks", NeurIPS 2018; "Reverse KL-Divergence
Training of Prior Networks", NeurIPS 2019.

    alpha = exp f
    data:      KL of Dir(alpha) and Dir(target),  target = 1 + precision for the true class, 1 for the others
    outside:   KL of Dir(alpha) and Dir(1)

"forward" is KL(target ‖ model), the 2018 paper's; "reverse" is KL(model ‖ target), the 2019 paper's, which has one mode
where the former spreads. A set of one's own stands for what is outside; without one, perturbed copies of the data do.
``data`` and ``distributional`` are the Dirichlet's; nothing is ``model``.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from bedl.heads import Dirichlet
from bedl.methods.base import Method
from bedl.methods.edl import CLASSES_ONLY, dirichlet_divergence, known, one_hot
from bedl.methods.networks import plain_network
from bedl.methods.registry import Problem, register
from bedl.moments import Moments
from bedl.objectives import Batch
from bedl.objectives.perturbations import Perturbation, around_and_beyond, takes_many, with_copies
from bedl.predictive import CategoricalPredictive

__all__ = ["PriorNetwork"]

STEEP = 12.0  # log evidence from which on exp goes on as a straight line: targets are far below


class PriorNetwork(Method):
    """A network with ordinary weights and exp evidence, trained by divergences on the data and off it.

    Args:
        net: a tensor in, outputs of shape (n, C) out.
        n_classes: number of classes.
        kl: ``"reverse"`` or ``"forward"``.
        precision: evidence for the true class on the data; 100 in the papers.
        outside: what is not the data: rows like x, of which some are drawn for each batch, shape (m, *input), or a
            function (x, generator) -> x that makes them; None: perturbed copies.
        strength: factor on the divergence of what is outside.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> method = PriorNetwork(nn.Linear(2, 3), 3, outside=torch.randn(50, 2) + 9)
        >>> method.predict(torch.zeros(4, 2)).probabilities.shape
        torch.Size([4, 3])
    """

    def __init__(
        self,
        net: nn.Module,
        n_classes: int,
        kl: Literal["reverse", "forward"] = "reverse",
        precision: float = 100.0,
        outside: Tensor | np.ndarray | Perturbation | None = None,
        strength: float = 1.0,
    ):
        super().__init__()
        if kl not in ("reverse", "forward"):
            raise ValueError(f"kl must be 'reverse' or 'forward', not {kl!r}")
        if not precision > 0 or not strength >= 0:
            raise ValueError(f"precision must be positive and strength at least 0, not {precision!r} and {strength!r}")
        self.net, self.head = net, Dirichlet(n_classes)
        self.kl, self.precision, self.strength = kl, precision, strength
        own = outside is not None and not callable(outside)
        self._rows: Tensor | None = torch.as_tensor(outside) if own else None
        self._perturbation: Any = outside if callable(outside) else None

    def forward(self, x: Tensor | Moments) -> CategoricalPredictive:
        return self.head.given(known(self.net(x)))

    def prepare(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """Draw what is outside, as many rows as there are points."""
        if self._rows is None:
            return with_copies(batch, self._perturbation or self._default(batch.x), generator)
        device = torch.device("cpu") if generator is None else generator.device
        chosen = torch.randint(len(self._rows), (len(batch.x),), generator=generator, device=device)
        x: Any = batch.x
        return batch._replace(perturbed=self._rows[chosen.to(self._rows.device)].to(x.device, x.dtype))

    @staticmethod
    def _default(x: Tensor | Moments) -> Perturbation | None:
        return around_and_beyond if x.ndim == 2 else None

    @property
    def prepares_many(self) -> bool:
        return self._rows is None and takes_many(self._perturbation)

    def loss(self, batch: Batch) -> Tensor:
        """The mean divergence on the data and off it. shape: ()"""
        return self.statistics(self.prepare(batch)).sum()

    def statistics(self, batch: Batch) -> Tensor:
        """shape: (1,)"""
        f = known(self.net(batch.x))
        y = one_hot(self.head.check_targets(batch.y, f.shape[:-1]), f)
        inside = self._divergence(f, 1 + self.precision * y)
        off = known(self.net(batch.perturbed))
        outside = self._divergence(off, torch.ones_like(off))
        return batch.mean(inside + self.strength * outside).reshape(1)

    def _divergence(self, f: Tensor, target: Tensor) -> Tensor:
        """shapes: (n, C), (n, C) -> (n,)"""
        alpha = torch.exp(f.clamp(max=STEEP)) * (1 + (f - STEEP).clamp_min(0.0)) + 1e-4
        pair = (alpha, target) if self.kl == "reverse" else (target, alpha)
        return dirichlet_divergence(*pair) / self.precision  # so that gradients are of the size of a likelihood's


@register(
    "prior-network",
    "prior network (Malinin & Gales 2018): a Dirichlet that is sharp on the data and flat off it",
    tasks=("classification",),
    reason=CLASSES_ONLY,
)
def prior_network(
    problem: Problem,
    kl: Literal["reverse", "forward"] = "reverse",
    precision: float = 100.0,
    outside: Tensor | np.ndarray | Perturbation | None = None,
    strength: float = 1.0,
) -> PriorNetwork:
    """See `PriorNetwork` for the options."""
    net = plain_network(problem, problem.n_targets)
    return PriorNetwork(net, problem.n_targets, kl, precision, outside, strength)
