"""Parameters of many networks as rows of one matrix, seen as the tensors they are, and room for their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bedl import native

__all__ = ["Rows", "Weight", "in_rows"]


def in_rows(names: Sequence[str]) -> list[str]:
    """The order of parameters in a row: means, their log-variances in the same order, all others.

    What is done to all Gaussian weights can so be done in one go.

    Example:
        >>> in_rows(["0.weight_mean", "0.weight_logvar", "0.bias", "1.weight_mean", "1.weight_logvar"])
        ['0.weight_mean', '1.weight_mean', '0.weight_logvar', '1.weight_logvar', '0.bias']
    """
    means = [name for name in names if name.endswith("_mean")]
    logvars = [name.removesuffix("_mean") + "_logvar" for name in means]
    if not set(logvars) <= set(names):
        return list(names)
    return [*means, *logvars, *(name for name in names if name not in {*means, *logvars})]


class Weight(NamedTuple):
    """A Gaussian weight of all replicas, and where the derivatives go. shapes: (R, *shape)"""

    mean: Tensor
    variance: Tensor
    second_moment: Tensor
    by_mean: Tensor
    by_variance: Tensor
    by_second_moment: Tensor


class Rows:
    """A matrix of parameters with a row per replica, and what all layers share: variances, derivatives.

    Args:
        names, shapes: of the parameters, in the order of `in_rows`.
        parameters: shape (R, P)
        count: how many of the first names are means, which as many log-variances follow.

    Attributes:
        gradient: of each replica's loss. shape: (R, P)
        in_c: whether kernels do what they can.
    """

    def __init__(self, names: Sequence[str], shapes: Sequence[torch.Size], parameters: Tensor, count: int):
        sizes = [shape.numel() for shape in shapes]
        self.places = {
            name: (sum(sizes[:i]), size, shape)
            for i, (name, size, shape) in enumerate(zip(names, sizes, shapes, strict=True))
        }
        self.parameters, self.gradient = parameters, torch.zeros_like(parameters)
        self.in_c = False
        self.weights = sum(sizes[:count])
        made = [parameters.new_zeros(len(parameters), self.weights) for _ in range(4)]
        self.variance, self.second_moment, self.by_variance, self.by_second_moment = made
        self.mean, self.logvar = parameters[:, : self.weights], parameters[:, self.weights : 2 * self.weights]
        self.by_mean, self.by_logvar = (
            self.gradient[:, : self.weights],
            self.gradient[:, self.weights : 2 * self.weights],
        )

    def of(self, name: str) -> Tensor:
        """A parameter. shape: (R, *shape)"""
        return self._part(self.parameters, name)

    def by(self, name: str) -> Tensor:
        """Room for the derivatives by it. shape: (R, *shape)"""
        return self._part(self.gradient, name)

    def weight(self, name: str) -> Weight:
        """The Gaussian weight `name` + "_mean" and `name` + "_logvar"."""
        sources = (self.parameters, self.variance, self.second_moment, self.gradient, self.by_variance,
                   self.by_second_moment)  # fmt: skip
        return Weight(*(self._part(source, name + "_mean") for source in sources))

    def _part(self, source: Tensor, name: str) -> Tensor:
        start, size, shape = self.places[name]
        return source[:, start : start + size].unflatten(1, shape)

    def look_up(self) -> Tensor:
        """Compute what depends on the parameters alone: variances, second moments. Returns each replica's divergence
        of all Gaussian weights from N(0, 1). shape: (R,)"""
        if self.in_c:
            return native.training.weights(self.mean, self.logvar, self.variance, self.second_moment)
        torch.exp(self.logvar, out=self.variance)
        torch.addcmul(self.variance, self.mean, self.mean, out=self.second_moment)
        return 0.5 * (self.second_moment - 1 - self.logvar).sum(1)

    def pull_back(self, pull: Tensor) -> None:
        """Derivatives by means and log-variances, of those by variances and second moments.

        Args:
            pull: a factor on the derivatives of the divergence that `look_up` gives. shape: (R,)
        """
        if self.in_c:
            native.training.weights_gradients(
                pull.to(self.mean.dtype), self.mean, self.variance, self.by_variance, self.by_second_moment,
                self.by_mean, self.by_logvar,
            )  # fmt: skip
            return
        factor = pull.to(self.mean.dtype).unsqueeze(1)
        self.by_mean.addcmul_(self.by_second_moment, self.mean, value=2).addcmul_(factor, self.mean)
        by_variance = (self.by_variance + self.by_second_moment).mul_(self.variance)
        self.by_logvar.copy_(by_variance.add_(0.5 * factor * (self.variance - 1)))
