"""What an objective sees: some points, and how many there are in all."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bedl._utils.storage import RecordsArguments
from bedl.moments import Moments
from bedl.nn.calling import Output, count_points, join_parts, outputs_of

if TYPE_CHECKING:
    from bedl.heads import Head
    from bedl.heads.base import Evidence


class Batch(NamedTuple):
    """Points of a training set of `n_train` points.

    The size of the whole set is part of it because the PAC term and the hyper-prior weigh themselves by it, and no
    batch knows it by itself.

    Args:
        x: inputs, plain or random; several in a tuple, for ``net(*x)``, or by name, for ``net(**x)``.
            shape: (n, *input)
        y: targets; classes as integers, or as shares. shape: (n,) or (n, D), of dense outputs (n, *places)
        n_train: how many points the training set has; a tensor where several sets are trained on at once. shape: ()
        weight: how much each point counts in means, 1 each if left out; of dense outputs, also each place.
            shape: (n,) or (n, *places)
        perturbed: off-manifold copies of `x`, or of its first points, where an objective asked for them in `prepare`.
            shape: (copies, *input)
        epoch: how often each point had been seen before this batch, where it `uses_epoch`; None: often. shape: ()

    Example:
        >>> import torch
        >>> batch = Batch(torch.zeros(3, 2), torch.zeros(3), n_train=100, weight=torch.tensor([1.0, 1.0, 0.0]))
        >>> batch.mean(torch.tensor([1.0, 3.0, 9.0]))
        tensor(2.)
    """

    x: Any
    y: Tensor
    n_train: int | Tensor
    weight: Tensor | None = None
    perturbed: Any = None
    epoch: Tensor | None = None

    def ramp(self, epochs: float, start: float = 0.0) -> Tensor | float:
        """A factor that is 0 before epoch `start`, rises linearly and is 1 from `epochs` later on. shape: ()"""
        if self.epoch is None:
            return 1.0
        return ((self.epoch - start) / max(epochs, 1e-6)).clamp(0.0, 1.0)

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the points, and over the places of dense outputs. values: shape (n, *places); result: shape ()"""
        if self.weight is None:
            return values.mean()
        weight = self.weight
        if weight.ndim < values.ndim:  # one weight for all places of a point
            weight = weight.reshape(weight.shape + (1,) * (values.ndim - weight.ndim)).expand(values.shape)
        # a point of weight 0 is padding: its value may be anything, infinite too
        # and of nothing else but padding the mean is 0
        return values.where(weight > 0, 0.0).mul(weight).sum() / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)

    def mean_of_copies(self, values: Tensor) -> Tensor:
        """Mean over copies, each of which counts as its point. values: shape (copies, *places); result: shape ()"""
        return self._replace(weight=None if self.weight is None else self.weight[: len(values)]).mean(values)


# What objectives have in common: each averages something over points, then says what that average costs.
#
#     cost = Σ_t value_t( mean over points of statistic_t )
#
# Splitting the two is what makes the cost exact when the points are spread over processes or accumulated batches: the
# means are gathered, and only then the roots are taken. A cost whose `value` is the mean itself is *additive*.


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
    def prepares_batched(self) -> bool:
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


class Sum(RecordsArguments):
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
    def prepares_batched(self) -> bool:
        """Whether `prepare` also takes batches of many networks at once; see `Objective`."""
        return all(term.prepares_batched for term in self.terms)

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


# The marginal likelihood: what BEDL maximises.


@dataclasses.dataclass(frozen=True)
class MarginalLikelihood(Objective):
    """−mean log p(y_n | x_n), weights and evidence integrated out ("type 2 maximum likelihood").

    Every point has weights of its own, so the marginal likelihood of a set is a product over its points and the mean
    over a mini-batch is an unbiased estimate.

    Example:
        >>> import torch
        >>> from bedl import GaussianLinear
        >>> from bedl.heads import Dirichlet
        >>> from bedl.objectives import Batch
        >>> net, head = GaussianLinear(2, 3), Dirichlet(3)
        >>> batch = Batch(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), n_train=4)
        >>> MarginalLikelihood()(net, head, batch)  # an untrained bias of 0: log 3
        tensor(1.0986, grad_fn=...)
    """

    reads_outputs_only: ClassVar[bool] = True

    def statistic(self, forward: ForwardPass) -> Tensor:
        return -forward.batch.mean(forward.log_marginal())
