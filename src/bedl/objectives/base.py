"""What objectives have in common: each averages something over points, then says what that average costs.

    cost = Σ_t value_t( mean over points of statistic_t )

Splitting the two is what makes the cost exact when the points are spread over processes or accumulated batches: the
means are gathered, and only then the roots are taken. A cost whose `value` is the mean itself is *additive*.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bedl.moments import Moments
from bedl.nn.calling import Output, count_points, join_parts, outputs_of
from bedl.objectives.batch import Batch

if TYPE_CHECKING:
    from bedl.heads import Head
    from bedl.heads.base import Evidence

__all__ = ["ForwardPass", "Objective", "Sum"]


class ForwardPass:
    """What a network and its head say about a batch, computed once and only if some objective asks for it.

    Args:
        net: the network; a tensor or Moments in, Moments out.
        head: the head on top of it.
        batch: the points.
        evidence: set where both the likelihood and the divergence (of this evidence) of the points will be asked
            for: a head can share most of the work between the two.
        copies: set where the outputs for the copies will be asked for, too: whoever asks for those of the points first
            gets both of one pass, unless a layer of the network averages over the batch.
        output: which of the network's outputs the head reads, see `bedl.nn.calling.pick`.
    """

    def __init__(
        self,
        net: nn.Module,
        head: Head,
        batch: Batch,
        evidence: Evidence | None = None,
        copies: bool = False,
        output: Output = None,
    ):
        y, weight = head.counted(batch.y, batch.weight)
        batch = batch._replace(y=y, weight=weight)
        self.net, self.head, self.batch, self.evidence, self.output = net, head, batch, evidence, output
        self.together = copies and not any(isinstance(module, _BatchNorm) for module in net.modules())
        # not functools.cached_property: its lock stops torch.compile
        self._outputs: Moments | None = None
        self._perturbed: Moments | None = None
        self._both: tuple[Tensor, Tensor] | None = None

    @property
    def outputs(self) -> Moments:
        """What the head reads, for `batch.x`. shape: (n, n_outputs)"""
        if self._outputs is None and self.together:
            both = self._call(join_parts(self.batch.x, self.batch.perturbed))
            self._outputs, self._perturbed = both.split(count_points(self.batch.x))
        elif self._outputs is None:
            self._outputs = self._call(self.batch.x)
        return self._outputs

    @property
    def outputs_perturbed(self) -> Moments:
        """The same for `batch.perturbed`. shape: (n, n_outputs)"""
        if self._perturbed is None:
            self._perturbed = self._call(self.batch.perturbed)
        return self._perturbed

    def _call(self, x: Any) -> Moments:
        return outputs_of(self.net, x, self.output)

    def log_marginal(self) -> Tensor:
        """log p(y_n | x_n). shape: (n,)"""
        if self.evidence is None:
            return self.head.log_marginal(self.outputs, self.batch.y)
        return self._joint(self.evidence)[0]

    def kl(self, evidence: Evidence) -> Tensor:
        """The divergence from the prior at each point. shape: (n,)"""
        if evidence != self.evidence:
            return self.head.kl(self.outputs, self.batch.y, evidence=evidence)
        return self._joint(evidence)[1]

    def _joint(self, evidence: Evidence) -> tuple[Tensor, Tensor]:
        if self._both is None:
            self._both = self.head.log_marginal_and_kl(self.outputs, self.batch.y, evidence=evidence)
        return self._both


class Objective(abc.ABC):
    """One term of a training cost; a value without state. `a + b` is the sum of two."""

    additive: ClassVar[bool] = True
    reads_outputs_only: ClassVar[bool] = False  # of the network it sees what that says, never the network itself

    @property
    def asks_divergence(self) -> Evidence | None:
        """Of which evidence this term wants the divergence at the points themselves, if it does."""
        return None

    @property
    def asks_copies(self) -> bool:
        """Whether this term looks at the batch's perturbed copies, which may then go through the network with it."""
        return False

    def prepare(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """Draw whatever is random in this term, once per batch, and put it into the batch."""
        return batch

    @property
    def prepares_many(self) -> bool:
        """Whether `prepare` also takes batches of many networks at once, stacked along a dimension in front."""
        return type(self).prepare is Objective.prepare

    @abc.abstractmethod
    def statistic(self, forward: ForwardPass) -> Tensor:
        """What is averaged over the points of all batches and processes; differentiable. shape: ()"""

    def value(self, statistic: Tensor, n_train: int | Tensor) -> Tensor:
        """The cost, of the statistic's mean over *all* points of a step. Must not touch parameters.

        Args:
            statistic: the mean. shape: ()
            n_train: size of the training set. shape: ()
        """
        return statistic

    def __add__(self, other: Objective | Sum) -> Sum:
        return Sum(self) + other

    def __call__(self, net: nn.Module, head: Head, batch: Batch) -> Tensor:
        """The cost of one batch by itself. shape: ()"""
        return Sum(self)(net, head, batch)


class Sum:
    """Objectives, added up.

    Example:
        >>> from bedl.objectives import PAC, HyperPrior, MarginalLikelihood
        >>> MarginalLikelihood() + PAC(strength=0.5) + HyperPrior()
        MarginalLikelihood() + PAC(delta=0.05, kl_scale='sum', ...strength=0.5...) + HyperPrior(...)
    """

    def __init__(self, *terms: Objective | Sum):
        flat: list[Objective] = []
        for term in terms:
            flat.extend(term.terms if isinstance(term, Sum) else [term])
        for term in flat:
            if not isinstance(term, Objective):
                raise TypeError(f"objectives are added to objectives, not to {type(term).__name__}")
        self.terms: tuple[Objective, ...] = tuple(flat)

    def __add__(self, other: Objective | Sum) -> Sum:
        return Sum(self, other)

    def __iter__(self) -> Iterator[Objective]:
        return iter(self.terms)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Sum) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.terms)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms))

    @property
    def additive(self) -> bool:
        """Whether the cost of many points is the mean of the costs of its parts."""
        return all(term.additive for term in self.terms)

    @property
    def prepares_many(self) -> bool:
        """Whether `prepare` also takes batches of many networks at once; see `Objective`."""
        return all(term.prepares_many for term in self.terms)

    def prepare(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """Every term's random choices for this batch."""
        for term in self.terms:
            batch = term.prepare(batch, generator)
        return batch

    def statistics(self, net: nn.Module, head: Head, batch: Batch, output: Output = None) -> Tensor:
        """What each term averages over the points. shape: (n_terms,)"""
        asked = [term.asks_divergence for term in self.terms if term.asks_divergence is not None]
        copies = any(term.asks_copies for term in self.terms)
        forward = ForwardPass(net, head, batch, asked[0] if asked else None, copies, output)
        return torch.stack([term.statistic(forward) for term in self.terms])

    def of_outputs(self, head: Head, batch: Batch, outputs: Moments, perturbed: Moments | None) -> Tensor:
        """The cost of one prepared batch, where all terms read outputs only and these are known. shape: ()"""
        asked = [term.asks_divergence for term in self.terms if term.asks_divergence is not None]
        forward = ForwardPass(nn.Identity(), head, batch, asked[0] if asked else None)
        forward._outputs, forward._perturbed = outputs, perturbed
        statistics = torch.stack([term.statistic(forward) for term in self.terms])
        return self.combine(statistics, batch.n_train)

    def combine(self, statistics: Tensor, n_train: int | Tensor) -> Tensor:
        """The cost, of the means over all points. statistics: shape (n_terms,); result: shape ()"""
        values = [term.value(mean, n_train) for term, mean in zip(self.terms, statistics.unbind(), strict=True)]
        return torch.stack(values).sum()

    def __call__(self, net: nn.Module, head: Head, batch: Batch) -> Tensor:
        """The cost of one batch by itself. shape: ()"""
        return self.combine(self.statistics(net, head, self.prepare(batch)), batch.n_train)
