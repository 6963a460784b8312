"""Standardisation as a part of the network, so that it goes wherever the network goes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

__all__ = ["Standardize"]


class Standardize(nn.Module):
    """(x − loc) / scale, for tensors and Moments alike: a variance is divided by scale².

    Args:
        loc: what becomes 0. shape: (*input), or what broadcasts to it
        scale: what becomes 1; positive. shape: as `loc`

    Example:
        >>> import torch
        >>> from bedl import Moments
        >>> standardize = Standardize(torch.tensor([10.0]), torch.tensor([2.0]))
        >>> z = standardize(Moments(torch.tensor([[14.0]]), 1.0))
        >>> z.loc.item(), z.variance.item()
        (2.0, 0.25)
    """

    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Tensor, scale: Tensor):
        super().__init__()
        if loc.shape != scale.shape or not bool((scale > 0).all() & scale.isfinite().all()):
            raise ValueError("Standardize: loc and scale have the same shape, and scale is positive and finite")
        self.register_buffer("loc", loc)
        self.register_buffer("scale", scale)

    def forward(self, x: Any) -> Any:
        """x: shape (n, *input)"""
        return (x - self.loc) / self.scale

    def extra_repr(self) -> str:
        return f"shape={tuple(self.loc.shape)}"
