"""What an objective sees: some points, and how many there are in all."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Batch"]


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
        epoch: how often each point had been seen before this batch, where the method is `paced`; None: often. shape: ()

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
