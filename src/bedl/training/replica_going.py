"""The replicas that still learn: once some have stopped, the others are a stack of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bedl.methods import Batch
from bedl.nn.calling import map_parts
from bedl.training.stacked import Stacked
from bedl.training.vector_adam import VectorAdam

__all__ = ["Going"]


class Going:
    """The part of a stack that is computed. What the stack of all replicas says is true after `write_back`.

    Args:
        whole: all replicas.
        adam: theirs.

    Attributes:
        numbers: which replicas of `whole` are computed.
        stacked, adam: those replicas.
    """

    def __init__(self, whole: Stacked, adam: VectorAdam):
        self.whole, self.adam_of_all = whole, adam
        self.numbers = list(range(len(whole.methods)))
        self.index = torch.tensor(self.numbers, device=whole.device)
        self.stacked, self.adam = whole, adam

    def keep(self, going: Sequence[bool]) -> None:
        """Compute the replicas that are going, and no others.

        Of builds that are known, that is: others may draw random numbers for all replicas together, or are compiled for
        as many as there are.
        """
        numbers = [number for number, on in enumerate(going) if on]
        if numbers == self.numbers or not numbers or self.whole.batched is None:
            return
        self.write_back()
        self.whole.write_back()
        self.numbers, self.index = numbers, torch.tensor(numbers, device=self.whole.device)
        self.stacked = Stacked([self.whole.methods[number] for number in numbers], self.whole.device)
        self.adam = VectorAdam(self.stacked.parameters, self.adam_of_all.betas, self.adam_of_all.eps)
        self.adam.mean, self.adam.square = self.adam_of_all.mean[numbers], self.adam_of_all.square[numbers]
        self.adam.count = self.adam_of_all.count

    @torch.no_grad()
    def write_back(self) -> None:
        """Put what is computed into the rows of all replicas."""
        if self.stacked is not self.whole:
            self.whole.parameters[self.numbers] = self.stacked.parameters
            self.adam_of_all.mean[self.numbers] = self.adam.mean
            self.adam_of_all.square[self.numbers] = self.adam.square
            self.adam_of_all.count = self.adam.count

    def of(self, batch: Batch) -> Batch:
        """These replicas' part of a batch for all."""
        if self.stacked is self.whole:
            return batch

        index = self.index
        parts: list[Any] = [
            None if part is None else map_parts(lambda tensor: tensor.index_select(0, index), part) for part in batch
        ]
        return Batch._make(parts)
