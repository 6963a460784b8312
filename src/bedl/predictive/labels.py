"""How class labels are checked, once: for heads, predictions and validation sets."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["can_look", "check_class_numbers", "check_shares", "mean_log_probability"]

SHARES = 1e-3  # how far the shares of a soft label may be from adding up to 1


def can_look(y: Tensor) -> bool:
    """Whether values may be read: not while tracing, not inside vmap, not at the price of waiting for a GPU."""
    if torch.compiler.is_compiling() or y.device.type != "cpu":
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(y)


def check_class_numbers(y: Tensor, n_classes: int, whose: str = "") -> Tensor:
    """Class numbers as 64-bit integers; an error that names the remedy if they are none, or beyond the last class.

    Args:
        y: labels. shape: any
        n_classes: how many classes there are.
        whose: words in front of the error.

    Example:
        >>> import torch
        >>> check_class_numbers(torch.tensor([0, 2], dtype=torch.int8), 3)
        tensor([0, 2])
    """
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TypeError(
            f"{whose}class labels must be integers, not {y.dtype}; convert them with y.long(), or give each "
            f"point a row of {n_classes} shares that add up to 1"
        )
    if y.numel() and can_look(y) and not 0 <= int(y.min()) <= int(y.max()) < n_classes:
        low, high = int(y.min()), int(y.max())
        marked = low if low < 0 else high
        remedy = f"; to leave out those of {marked}: ignore_index={marked}" if marked in (-100, -1, 254, 255) else ""
        raise ValueError(f"{whose}class labels must lie between 0 and {n_classes - 1}, got {low} to {high}{remedy}")
    return y.long()


def check_shares(y: Tensor, whose: str = "") -> Tensor:
    """Soft labels, each class's share of a point; an error if they are none. shape: (*batch, C)"""
    if can_look(y) and y.numel():
        sums = y.detach().sum(-1)
        if not bool((y >= 0).all() & ((sums - 1).abs() < SHARES).all()):
            worst = float(sums[(sums - 1).abs() == (sums - 1).abs().max()].flatten()[0])
            raise ValueError(
                f"{whose}soft labels are shares of at least 0 that add up to 1 for each point, not {worst:g}"
            )
    return y


def mean_log_probability(log_p: Tensor, shares: Tensor) -> Tensor:
    """Σ_c shares_c log p_c, a class without a share left out. shapes: (*batch, C) -> (*batch)"""
    return torch.where(shares > 0, shares * log_p, 0.0).sum(-1)
