"""Evidence asked for on the data and off it: what the likelihood does not see and the user wants to know.

The likelihood is blind to how much evidence there is: it sees the sum of the variances of a target, and logits up to a
constant. Two terms fix it. On the data lambda, the distribution of the target, is to be known about as well as N
observations can make it known (`Known`); off the data it is to be as unknown as the prior has it (`Unknown`, and for
copies that may be data, such as those of images, `Unsure`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl.objectives.base import Batch, ForwardPass, Objective
from bedl.objectives.ood_samples import Perturbation, takes_batched, with_copies


@dataclasses.dataclass(frozen=True)
class Known(Objective):
    """On the data, lambda is known as well as N points can make it known.

        strength · mean over points of  log cosh(½ log(u/t)),   t = observations / N

    u is how little is known: lambda's variance in units of the signal's for targets, 1/alpha_0 for classes
    (`Head.log_ignorance`). This is the Bhattacharyya distance of two normals of variance u and t: a parabola near u = t
    and linear in log u far away, so it can neither be satisfied by more noise nor collapse a network as a KL does.

    Args:
        strength: a factor on the term.
        observations: how many observations fix one quantity; 1/N is the variance of a mean.

    Example:
        >>> import torch
        >>> from bedl import GaussianLinear
        >>> from bedl.heads import Dirichlet
        >>> from bedl.objectives import Batch, Known
        >>> x, y = torch.randn(8, 2), torch.zeros(8, dtype=torch.long)
        >>> net, head = GaussianLinear(2, 3), Dirichlet(3)
        >>> few, many = (Known()(net, head, Batch(x, y, n_train=n)) for n in (10, 10_000))
        >>> bool(many > few)  # the same evidence is too little where there are more data
        True
    """

    strength: float = 0.2
    observations: float = 2.0

    reads_outputs_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("strength", "observations"):
            value = getattr(self, name)
            if not isinstance(value, Tensor) and not value >= 0:
                raise ValueError(f"Known: {name} must be at least 0, not {value}")

    def statistic(self, forward: ForwardPass) -> Tensor:
        log_ignorance = forward.head.log_ignorance(forward.outputs)  # shape: (n, k)
        n = torch.as_tensor(forward.batch.n_train, dtype=log_ignorance.dtype, device=log_ignorance.device)
        excess = log_ignorance + (n / self.observations).log()
        return forward.batch.mean(_log_cosh(excess).mean(-1))

    def value(self, statistic: Tensor, n_train: int | Tensor) -> Tensor:
        return self.strength * statistic


@dataclasses.dataclass(frozen=True)
class Unknown(Objective):
    """Off the data, lambda is as unknown as the prior has it: the PAC root of the divergence, on copies that are none.

        strength · sqrt(mean over copies of KL(lambda ‖ prior) + 1/1000)

    The bound's other terms are left out: they would only weaken the pull. For targets the divergence is that of the
    spread; where the mean goes off the data is left to the network. The PAC value on the data alone is `PAC()`.

    Args:
        strength: a factor on the root.
        perturbation: how copies are made, ``(x, generator) -> x``; by default a choice that fits the input's shape.
        share: of the points that copies are made of; with fewer the same is said with more noise, and sooner.
    """

    strength: float = 0.2
    perturbation: Perturbation | None = None
    share: float = 1.0

    additive: ClassVar[bool] = False
    reads_outputs_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.strength, Tensor) and not self.strength >= 0:
            raise ValueError(f"{type(self).__name__}: strength must be at least 0, not {self.strength}")
        if not 0 < self.share <= 1:
            raise ValueError(f"{type(self).__name__}: share must lie above 0, and be at most 1, not {self.share}")

    @property
    def asks_copies(self) -> bool:
        return True

    @property
    def prepares_batched(self) -> bool:
        return takes_batched(self.perturbation)

    def prepare(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        return with_copies(batch, self.perturbation, generator, self.share)

    def statistic(self, forward: ForwardPass) -> Tensor:
        return forward.batch.mean_of_copies(forward.head.kl_centred(forward.outputs_perturbed))

    def value(self, statistic: Tensor, n_train: int | Tensor) -> Tensor:
        return self.strength * (statistic.clamp_min(0.0) + 1e-3).sqrt()


@dataclasses.dataclass(frozen=True)
class Unsure(Unknown):
    """Off the data, classes are equally likely and hardly anything is behind it. For copies some of which are data.

        strength · mean over copies of  KL(1/C ‖ p) + log cosh(½ log(alpha_0 / evidence))

    Some copies are data: a 0 that was turned is a 0. There the two have to find a balance, so each copy pulls no more
    at the logits than a label does, and at log alpha_0 half as much. The root of `Unknown` becomes steep where copies
    are told from data, and its divergence grows like 1/alpha where they are not: both pull at the data near them.

    Args:
        strength: a factor on the mean.
        perturbation: how copies are made, ``(x, generator) -> x``; by default a choice that fits the input's shape.
        share: of the points that copies are made of.
        evidence: alpha_0 where nothing is known, in observations. By default one in all, 1/C for each class (W. Perks
            1947). C observations, one for each class, would already rule out that some class is nearly certain: what
            is not known would mostly be called noise.

    Example:
        >>> import torch
        >>> from bedl.heads import Dirichlet
        >>> from bedl.moments import Moments
        >>> nothing = Dirichlet(10)(Moments(torch.full((1, 10), 0.1).log(), 0.0))
        >>> flat = Dirichlet(10)(Moments(torch.zeros(1, 10), 0.0))
        >>> [round(float(p.epistemic / p.total), 2) for p in (nothing, flat)]
        [0.63, 0.16]
    """

    strength: float = 0.5
    evidence: float = 1.0

    additive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.evidence, Tensor) and not self.evidence > 0:
            raise ValueError(f"Unsure: evidence must be positive, not {self.evidence}")

    def statistic(self, forward: ForwardPass) -> Tensor:
        head, outputs = forward.head, forward.outputs_perturbed
        ignorance = head.log_ignorance(outputs)  # shape: (n, k)
        prior = torch.as_tensor(self.evidence, dtype=ignorance.dtype, device=ignorance.device)
        return forward.batch.mean_of_copies(head.kl_from_uniform(outputs) + _log_cosh(ignorance + prior.log()).mean(-1))

    def value(self, statistic: Tensor, n_train: int | Tensor) -> Tensor:
        return self.strength * statistic


def _log_cosh(excess: Tensor) -> Tensor:
    """log cosh(½ excess), finite for all. shape: (*shape)"""
    return F.softplus(excess) - 0.5 * excess - math.log(2)
