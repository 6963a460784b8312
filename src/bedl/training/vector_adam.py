"""Adam on many networks at once: row r of every tensor belongs to network r."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bedl import native

__all__ = ["VectorAdam", "clipping", "norms"]


class VectorAdam:
    """`torch.optim.Adam`, row by row, with a learning rate for each row.

    D. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015; operations in torch's order, so that
    results agree to rounding.

    Args:
        parameters: one row of parameters per network; updated in place. shape: (R, P)
        betas: decay of the two running means.
        eps: added to the root.

    Example:
        >>> parameters = torch.zeros(2, 3)
        >>> VectorAdam(parameters).step(torch.ones(2, 3), [0.1, 0.2])
        >>> parameters[:, 0]
        tensor([-0.1000, -0.2000])
    """

    def __init__(self, parameters: Tensor, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8):
        self.parameters, self.betas, self.eps, self.count = parameters, betas, eps, 0
        self.mean, self.square = torch.zeros_like(parameters), torch.zeros_like(parameters)

    @torch.no_grad()
    def step(self, gradient: Tensor, lr: Sequence[float], scale: Sequence[float] | None = None) -> None:
        """Update all rows.

        Args:
            gradient: shape (R, P)
            lr: learning rates; a row with 0 stays exactly as it is.
            scale: a factor on each row's gradient, such as `clipping` gives.
        """
        beta1, beta2 = self.betas
        self.count += 1
        rates = [rate / (1 - beta1**self.count) for rate in lr]
        unbiased = math.sqrt(1 - beta2**self.count)
        if gradient.is_contiguous() and native.suits(self.parameters, gradient):
            how = (beta1, beta2, unbiased, self.eps)
            scales = [1.0] * len(rates) if scale is None else scale
            native.training.adam(scales, rates, *how, self.parameters, gradient, self.mean, self.square)
            return
        if scale is not None:
            gradient = gradient * gradient.new_tensor(scale).unsqueeze(1)
        self.mean.lerp_(gradient, 1 - beta1)
        self.square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (self.square.sqrt() / unbiased).add_(self.eps)
        self.parameters.addcmul_(-gradient.new_tensor(rates).unsqueeze(1), self.mean / root)


def norms(gradient: Tensor) -> Tensor:
    """The norm of each row. gradient: shape (R, P); result: shape (R,)"""
    if gradient.is_contiguous() and native.suits(gradient):
        return native.training.norms(gradient)
    return torch.linalg.vector_norm(gradient, dim=1)


def clipping(norms: Sequence[float], max_norm: float) -> list[float]:
    """Factors that scale rows to a norm of at most `max_norm`, as `torch.nn.utils.clip_grad_norm_` does."""
    return [min(1.0, max_norm / (norm + 1e-6)) for norm in norms]
