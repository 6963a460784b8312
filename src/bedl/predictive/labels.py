"""How class labels are checked, once: for heads, predictions and validation sets."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["can_look", "check_class_numbers"]


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
        raise TypeError(f"{whose}class labels must be integers, not {y.dtype}; convert them with y.long()")
    if y.numel() and can_look(y) and not 0 <= int(y.min()) <= int(y.max()) < n_classes:
        low, high = int(y.min()), int(y.max())
        raise ValueError(f"{whose}class labels must lie between 0 and {n_classes - 1}, got {low} to {high}")
    return y.long()
