"""The PAC regulariser: the root of a mean divergence from "I do not know"."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from bedl.objectives.base import Batch, ForwardPass, Objective
from bedl.objectives.ood_samples import Perturbation, takes_batched, with_copies

if TYPE_CHECKING:
    from bedl.heads import Head
    from bedl.heads.base import Evidence


@dataclasses.dataclass(frozen=True)
class PAC(Objective):
    """sqrt( KL/N − log(delta)/N + logB/N ),  KL/N the mean over points of KL(posterior ‖ prior of the head).

    The root is taken once, of the mean over all points, never per point: across processes and accumulated batches
    the mean is gathered first. Haussmann, Gerwinn, Kandemir, "Bayesian Evidential Deep Learning with PAC
    Regularization", AABI 2020, equation for the bound; `head.complexity` is logB/N.

    Args:
        delta: the bound would hold with probability 1 − delta; in (0, 1].
        kl_scale: ``"sum"`` is the paper's formula above, in which KL is the sum over the N points.
            ``"authors-code"`` is what the authors' published code computes instead, sqrt((KL/N + log N − log delta)/N):
            the divergence is divided by N once more and pulls thousands of times weaker.
        evidence: ``"all"`` of it, or ``"misleading"``: evidence for the true class is not counted (classification).
        on: where the divergence is evaluated. ``"data"``: the points themselves, as in the paper. This makes the
            net unsure everywhere. ``"perturbed"``: off-manifold copies of them, so that the net may be sure where
            data are and is pulled to the prior where they are not.
        strength: a factor on the root; 1 in the paper.
        perturbation: how copies are made, ``(x, generator) -> x``; by default a choice that fits the input's shape,
            see `bedl.objectives.ood_samples`.

    Example:
        >>> import torch
        >>> PAC(delta=1.0).value(torch.tensor(4.0), n_train=1000)  # mean KL + complexity = 4
        tensor(2.)
    """

    delta: float = 0.05
    kl_scale: Literal["sum", "authors-code"] = "sum"
    evidence: Evidence = "all"
    on: Literal["data", "perturbed"] = "data"
    strength: float = 1.0
    perturbation: Perturbation | None = None

    additive: ClassVar[bool] = False
    reads_outputs_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, choices in (
            ("kl_scale", ("sum", "authors-code")),
            ("evidence", ("all", "misleading")),
            ("on", ("data", "perturbed")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"PAC: {name} must be {' or '.join(map(repr, choices))}, not {getattr(self, name)!r}")
        if not isinstance(self.delta, Tensor) and not 0 < self.delta <= 1:
            raise ValueError(f"PAC: delta is a probability in (0, 1], not {self.delta}")
        if not isinstance(self.strength, Tensor) and not self.strength >= 0:
            raise ValueError(f"PAC: strength must be at least 0, not {self.strength}")
        if self.on == "perturbed" and self.evidence == "misleading":
            raise ValueError("PAC: a perturbed copy has no true class; use evidence='all' with on='perturbed'")

    @property
    def asks_divergence(self) -> Evidence | None:
        return self.evidence if self.on == "data" else None

    @property
    def prepares_batched(self) -> bool:
        return self.on == "data" or takes_batched(self.perturbation)

    def prepare(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        return batch if self.on == "data" else with_copies(batch, self.perturbation, generator)

    def divergence(self, forward: ForwardPass) -> Tensor:
        """KL/N: the mean of the points' divergences. shape: ()"""
        if self.on == "data":
            return forward.batch.mean(forward.kl(self.evidence))
        return forward.batch.mean_of_copies(forward.head.kl(forward.outputs_perturbed))

    def statistic(self, forward: ForwardPass) -> Tensor:
        # logB/N is the same for every point; as part of the mean it keeps its gradient where it has one (learned beta).
        complexity = forward.head.complexity if self.kl_scale == "sum" else 0.0
        return self.divergence(forward) + complexity

    def value(self, statistic: Tensor, n_train: int | Tensor) -> Tensor:
        n = torch.as_tensor(n_train, dtype=statistic.dtype, device=statistic.device)
        log_delta = torch.as_tensor(self.delta, dtype=statistic.dtype, device=statistic.device).log()
        if self.kl_scale == "sum":
            return self.strength * (statistic - log_delta / n).sqrt()
        return self.strength * ((statistic + n.log() - log_delta) / n).sqrt()

    @torch.no_grad()
    def bound(self, net: nn.Module, head: Head, batch: Batch) -> VacuousBound:
        """The bound's value for a training set, as a number; `VacuousBound` says what it is worth.

        Args:
            net: the network.
            head: its head.
            batch: the whole training set: the bound is about all N points.
        """
        if (self.kl_scale, self.evidence, self.on, self.strength) != ("sum", "all", "data", 1.0):
            raise ValueError(f"only PAC(delta=…) with the paper's settings is a bound; {self!r} is a regulariser")
        if len(batch.y) != batch.n_train:
            raise ValueError(f"the bound is of all {batch.n_train} training points; this batch has {len(batch.y)}")
        forward = ForwardPass(net, head, batch)
        log_p = forward.log_marginal()  # shape: (N,)
        penalty = self.value(self.statistic(forward), batch.n_train)
        largest_density = math.sqrt(float(head.complexity))  # of y given x; its square is logB/N
        return VacuousBound(
            risk=-float(log_p.exp().mean()),
            penalty=float(penalty),
            objective=float(penalty - log_p.mean()),
            least_risk=-largest_density,
            delta=float(self.delta),
        )


@dataclasses.dataclass(frozen=True)
class VacuousBound:
    """A bound on the risk −E[p(y|x)] that holds with probability 1 − delta and says nothing.

    The risk lies between `least_risk` and 0. The bound, `risk + penalty`, is never below 0, because the penalty
    alone is at least −least_risk: it holds for every network, good or bad. Its use is as a training objective.

    Attributes:
        risk: −mean p(y_n|x_n) on the training points.
        penalty: the PAC root.
        objective: −mean log p(y_n|x_n) + penalty, which training minimises.
        least_risk: the lowest risk that is possible.
        delta: one minus the probability with which it holds.
    """

    risk: float
    penalty: float
    objective: float
    least_risk: float
    delta: float

    @property
    def value(self) -> float:
        """The upper bound on the true risk, risk + penalty."""
        return self.risk + self.penalty

    @property
    def vacuous(self) -> bool:
        """Whether the bound allows the worst risk there is, 0."""
        return self.value >= 0

    def __str__(self) -> str:
        verdict = "vacuous: a risk is never above 0" if self.vacuous else "below the worst risk, 0"
        return f"risk <= {self.value:.4g} with probability {1 - self.delta:g} ({verdict})"
