"""What an objective sees: some points, and how many there are in all."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from bedl.moments import Moments

__all__ = ["Batch"]


class Batch(NamedTuple):
    """Points of a training set of `n_train` points.

    The size of the whole set is part of it because the PAC term and the hyper-prior weigh themselves by it, and no
    batch knows it by itself.

    Args:
        x: inputs, plain or random. shape: (n, *input)
        y: targets; classes as integers. shape: (n,) or (n, D)
        n_train: how many points the training set has; a tensor where several sets are trained on at once. shape: ()
        weight: how much each point counts in means, 1 each if left out. shape: (n,)
        perturbed: off-manifold copies of `x`, where an objective asked for them in `prepare`. shape: (n, *input)

    Example:
        >>> import torch
        >>> batch = Batch(torch.zeros(3, 2), torch.zeros(3), n_train=100, weight=torch.tensor([1.0, 1.0, 0.0]))
        >>> batch.mean(torch.tensor([1.0, 3.0, 9.0]))
        tensor(2.)
    """

    x: Tensor | Moments
    y: Tensor
    n_train: int | Tensor
    weight: Tensor | None = None
    perturbed: Tensor | Moments | None = None

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the points. values: shape (n,); result: shape ()"""
        if self.weight is None:
            return values.mean()
        # a point of weight 0 is padding: its value may be anything, infinite too
        return values.where(self.weight > 0, 0.0).mul(self.weight).sum() / self.weight.sum()
