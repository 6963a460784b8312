"""The loss of many networks' outputs, and its derivatives by them."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from bedl.heads import Dirichlet, Head
from bedl.methods import Batch
from bedl.moments import Moments
from bedl.objectives import ForwardPass, Sum, WeightPrior
from bedl.training.batched.kernel_losses import kernel_loss
from bedl.training.batched.layers import Pair

__all__ = ["OutputLoss", "with_numbers"]


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
        if self.kernel is not None and self.kernel.suits(outputs, batch):
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
        objective = with_numbers(self.objective, self.numbers) if self.numbers else self.objective
        n = batch.y.shape[1]
        asked = [term.asks_divergence for term in objective if term.asks_divergence is not None]
        sizes = torch.as_tensor(batch.n_train)
        points = _SideBySide(batch.x, batch.y, sizes.reshape(-1, 1, 1), batch.weight)
        forward = ForwardPass(nn.Identity(), self.head, points, asked[0] if asked else None)
        forward._outputs, forward._perturbed = outputs.split([n, outputs.shape[1] - n], 1)
        return torch.stack([term.value(term.statistic(forward), sizes) for term in objective]).sum(0)

    def _one(self, outputs: Moments, batch: Batch, numbers: dict[tuple[int, str], Tensor]) -> Tensor:
        objective = with_numbers(self.objective, numbers) if numbers else self.objective
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


def with_numbers(objective: Any, numbers: dict[tuple[int, str], Tensor]) -> Any:
    """The same objective with other numbers in it."""
    terms = list(objective)
    for (number, field), value in numbers.items():
        terms[number] = dataclasses.replace(terms[number], **{field: value})
    return type(objective)(*terms)
