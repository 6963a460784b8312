"""Losses of many networks' outputs in C, for the heads and the terms that tables are trained with."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import vmap

from bedl import _kernels
from bedl.heads import Dirichlet, Head, Normal
from bedl.heads.integrals import CURVES, nodes
from bedl.methods import Batch
from bedl.moments import Moments
from bedl.objectives import PAC, ForwardPass, Known, MarginalLikelihood, Sum, Unknown, WeightPrior
from bedl.training.engines.fused.layers import Pair


class KernelLoss:
    """Losses and their derivatives by the outputs, in one call.

    Args:
        head: it.
        terms: by what they are; `MarginalLikelihood` is one of them.
        strengths: those that differ between replicas, by the kind of term. shapes: (R,)
    """

    knows: ClassVar[set[type]]  # terms

    def __init__(self, head: Any, terms: dict[type, Any], strengths: dict[type, Tensor]):
        self.head, self.terms, self.strengths = head, terms, strengths
        self.n_train = torch.empty(0)
        self.numbers = torch.empty(0)

    def supported(self, outputs: Pair, batch: Batch) -> bool:
        assert outputs.variance is not None
        copies = outputs.loc.shape[1] - batch.y.shape[1]
        fits = copies == 0 or (Unknown in self.terms and (batch.weight is None or copies <= batch.y.shape[1]))
        return fits and self.takes(batch.y) and _kernels.supported(outputs.loc, outputs.variance)

    def __call__(self, outputs: Pair, batch: Batch) -> tuple[Tensor, Pair]:
        """Losses, shape (R,), and their derivatives by the outputs, as `OutputLoss` gives them."""
        loc, variance = outputs
        assert variance is not None
        assert isinstance(batch.n_train, Tensor)
        if not torch.equal(self.n_train, batch.n_train):
            self.n_train, self.numbers = batch.n_train, self._numbers(batch.n_train)
        y = self.head.check_targets(batch.y, loc.shape[:1] + batch.y.shape[1:2]).contiguous()
        weight = None if batch.weight is None else batch.weight.float().contiguous()
        by = torch.empty_like(loc), torch.empty_like(loc)
        return self.losses(loc, variance, y, weight, by), Pair(*by)

    def _numbers(self, n_train: Tensor) -> Tensor:
        """What the kernel wants to know of each replica, see there. shape: (R, k)"""
        return torch.stack(self.of_replicas(n_train), 1).float().contiguous()

    def strength(self, kind: type, n_train: Tensor) -> Tensor:
        """shape: (R,)"""
        term = self.terms.get(kind)
        return self.strengths.get(kind, torch.zeros_like(n_train) + (0.0 if term is None else term.strength))

    def excess(self, n_train: Tensor) -> Tensor:
        """What `Known` adds to the logarithm of what is not known. shape: (R,)"""
        known = self.terms.get(Known)
        return torch.zeros_like(n_train) if known is None else (n_train / known.observations).log()

    # -- what differs between heads ---------------------------------------------------------------
    def takes(self, y: Tensor) -> bool:
        """Whether the kernel can read such targets."""
        raise NotImplementedError

    def of_replicas(self, n_train: Tensor) -> list[Tensor]:
        """The kernel's `strengths`. shapes: (R,)"""
        raise NotImplementedError

    def losses(
        self, loc: Tensor, variance: Tensor, y: Tensor, weight: Tensor | None, by: tuple[Tensor, Tensor]
    ) -> Tensor:
        """shape: (R,)"""
        raise NotImplementedError


class NormalLoss(KernelLoss):
    """That of `Normal`."""

    knows: ClassVar[set[type]] = {MarginalLikelihood, PAC, Known, Unknown}

    def takes(self, y: Tensor) -> bool:
        return y.dtype is torch.float32

    def of_replicas(self, n_train: Tensor) -> list[Tensor]:
        pac = self.terms.get(PAC)
        rest = torch.zeros_like(n_train) if pac is None else self.head.complexity - math.log(pac.delta) / n_train
        strengths = [self.strength(kind, n_train) for kind in (PAC, Known, Unknown)]
        return [strengths[0], rest, strengths[1], self.excess(n_train), strengths[2]]

    def losses(
        self, loc: Tensor, variance: Tensor, y: Tensor, weight: Tensor | None, by: tuple[Tensor, Tensor]
    ) -> Tensor:
        learned, log_beta = self.head.noise == "learned", float(self.head.log_beta)
        return _kernels.training.normal_loss(
            loc, variance, y, weight, self.numbers, learned, log_beta, self.head.prior_precision, *by
        )


class DirichletLoss(KernelLoss):
    """That of `Dirichlet`."""

    knows: ClassVar[set[type]] = {MarginalLikelihood, Known, Unknown}

    def takes(self, y: Tensor) -> bool:
        return y.dtype is torch.int64

    def of_replicas(self, n_train: Tensor) -> list[Tensor]:
        return [self.strength(Known, n_train), self.excess(n_train), self.strength(Unknown, n_train)]

    def losses(
        self, loc: Tensor, variance: Tensor, y: Tensor, weight: Tensor | None, by: tuple[Tensor, Tensor]
    ) -> Tensor:
        mixture = nodes.NUMBERS[self.head.components]
        return _kernels.training.dirichlet_loss(
            loc, variance, y, weight, self.numbers, self.head.nodes, mixture, CURVES, *by
        )


def kernel_loss(head: Head, objective: Sum, numbers: dict[tuple[int, str], Tensor]) -> KernelLoss | None:
    """None where there is a head, a term or a number that no kernel knows.

    Args:
        head: the same for all replicas.
        objective: the first one's.
        numbers: what is another number in the others, by (term, field). shapes: (R,)
    """
    terms: dict[type, Any] = {type(term): term for term in objective}
    kind = _kind(head)
    if kind is None or len(terms) < len(objective.terms) or not terms.keys() <= kind.knows:
        return None
    pac = terms.get(PAC, PAC())
    if MarginalLikelihood not in terms or (pac.on, pac.evidence, pac.kl_scale) != ("data", "all", "sum"):
        return None
    if any(field != "strength" for _, field in numbers):
        return None
    return kind(head, terms, {type(objective.terms[n]): value for (n, _), value in numbers.items()})


def _kind(head: Any) -> type[KernelLoss] | None:
    if type(head) is Normal:
        return NormalLoss
    usual = type(head) is Dirichlet and head.class_weight is None and head.ignore_index is None
    return DirichletLoss if usual and not head.label_smoothing and head.nodes <= _kernels.training.MAX_NODES else None


# The loss of many networks' outputs, and its derivatives by them.


class OutputLoss:
    """What the terms of an objective that look at outputs cost, for each replica.

    Args:
        head: the same for all.
        objective: the first replica's.
        numbers: what is another number in the others, by (term, field). shapes: (R,)
    """

    def __init__(self, head: Head, objective: Sum, numbers: dict[tuple[int, str], Tensor]):
        kept = [number for number, term in enumerate(objective) if type(term) is not WeightPrior]
        self.head, self.objective = head, Sum(*(objective.terms[number] for number in kept))
        self.numbers = {(kept.index(n), field): value for (n, field), value in numbers.items() if n in kept}
        self.kernel = kernel_loss(head, self.objective, self.numbers)

    def __call__(self, outputs: Pair, batch: Batch) -> tuple[Tensor, Pair]:
        """Losses, shape (R,), and their derivatives by the outputs, shapes (R, n, n_outputs).

        Args:
            outputs: for the points and, behind them, their copies. shapes: (R, n, n_outputs)
            batch: as Batch, R in front.
        """
        if self.kernel is not None and self.kernel.supported(outputs, batch):
            return self.kernel(outputs, batch)
        with torch.enable_grad():
            given = [part.detach().requires_grad_() for part in outputs if part is not None]
            losses = self._by_torch(Moments(*given), batch)
            by = torch.autograd.grad(losses.sum(), given)
        return losses.detach(), Pair(*by)

    def _by_torch(self, outputs: Moments, batch: Batch) -> Tensor:
        """shape: (R,)"""
        if type(self.head) is Dirichlet and all(field == "strength" for _, field in self.numbers):
            return self._at_once(outputs, batch)
        batch = batch._replace(x=batch.y.new_empty(len(batch.y)))  # of which nothing is read
        axes: Any = Batch._make(None if part is None else 0 for part in batch)
        return vmap(self._one, (0, axes, 0), randomness="different")(outputs, batch, self.numbers)

    def _at_once(self, outputs: Moments, batch: Batch) -> Tensor:
        """The same without vmap, for a head that looks at each point by itself. shape: (R,)"""
        objective = with_coefficients(self.objective, self.numbers) if self.numbers else self.objective
        n = batch.y.shape[1]
        asked = [term.asks_divergence for term in objective if term.asks_divergence is not None]
        sizes = torch.as_tensor(batch.n_train)
        points = _SideBySide(batch.x, batch.y, sizes.reshape(-1, 1, 1), batch.weight)
        forward = ForwardPass(nn.Identity(), self.head, points, asked[0] if asked else None)
        forward._outputs, forward._perturbed = outputs.split([n, outputs.shape[1] - n], 1)
        return torch.stack([term.value(term.statistic(forward), sizes) for term in objective]).sum(0)

    def _one(self, outputs: Moments, batch: Batch, numbers: dict[tuple[int, str], Tensor]) -> Tensor:
        objective = with_coefficients(self.objective, numbers) if numbers else self.objective
        own, copies = outputs.split([len(batch.y), len(outputs) - len(batch.y)])
        return objective.of_outputs(self.head, batch, own, copies if len(copies) else None)


class _SideBySide(Batch):
    """A batch of several networks, with a mean for each. shapes: as in Batch, R in front; n_train: (R, 1, 1)"""

    def mean(self, values: Tensor) -> Tensor:
        """values: shape (R, n); result: shape (R,)"""
        if self.weight is None:
            return values.mean(1)
        return values.where(self.weight > 0, 0.0).mul(self.weight).sum(1) / self.weight.sum(1)

    def mean_of_copies(self, values: Tensor) -> Tensor:
        """values: shape (R, copies); result: shape (R,)"""
        return self._replace(weight=None if self.weight is None else self.weight[:, : values.shape[1]]).mean(values)


def with_coefficients(objective: Any, numbers: dict[tuple[int, str], Tensor]) -> Any:
    """The same objective with other numbers in it."""
    terms = list(objective)
    for (number, field), value in numbers.items():
        terms[number] = dataclasses.replace(terms[number], **{field: value})
    return type(objective)(*terms)
