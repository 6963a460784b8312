"""What products know of a layer's weight beforehand, and the precision that their variances are computed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from bedl.moments import Moments

__all__ = ["LayerWeight", "are_rounded", "rounded", "variance_products"]


class LayerWeight(Moments):
    """The weight of a layer.

    Args:
        loc: the means. shape: (outputs, *inputs)
        variance: of each. shape: (outputs, *inputs)
        gain: what the variance of an input is multiplied by: loc², if that is known already, or loc² times the factor
            by which Var(Σ loc x) is larger than Σ loc² Var(x) (`bedl.nn.correct_variances`). shape: (outputs, *inputs)
        by_output: the variances, if all weights that lead to one output have the same. shape: (outputs,)
    """

    def __init__(self, loc: Tensor, variance: Tensor, gain: Tensor | None = None, by_output: Tensor | None = None):
        super().__init__(loc, variance)
        self.gain, self.by_output = gain, by_output
        self.panels: dict[Any, Tensor] = {}  # the same as a kernel reads it (`bedl.nn.chain`), for weights that stay


class _Precision:
    """Of the products that make variances. A global, as torch's own settings of precision are."""

    dtype: ClassVar[torch.dtype | None] = None


@contextmanager
def variance_products(dtype: torch.dtype | None) -> Iterator[None]:
    """Inside the block, the operands of products that make variances are rounded to `dtype`; None: they are not.

    Args:
        dtype: torch.bfloat16, or None.

    Products alone: their results, and all that is done to them, stay in float32; networks in float64 are left alone, as
    are exported graphs. Standard deviations are within 0.5 %, and means behind an activation, which follow from them,
    move by less than that of a standard deviation. Processors with instructions for it (AMX, AVX512-BF16) have these
    products almost for free.

    Example:
        >>> import bedl, torch
        >>> layer = bedl.GaussianLinear(100, 1)
        >>> x = torch.ones(1, 100)
        >>> with bedl.nn.variance_products(torch.bfloat16):
        ...     rounded = layer(x).variance
        >>> rounded.dtype, bool((rounded / layer(x).variance - 1).abs() < 0.01)
        (torch.float32, True)
    """
    if dtype not in (None, torch.bfloat16):  # float16 has too little range, and others too few digits
        raise ValueError(f"variance_products takes torch.bfloat16 or None, not {dtype!r}")
    before = _Precision.dtype
    _Precision.dtype = dtype
    try:
        yield
    finally:
        _Precision.dtype = before


def are_rounded() -> bool:
    """Whether operands of products that make variances are rounded."""
    return _Precision.dtype is not None


def rounded(op: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    """`op` of two non-negative tensors, in the precision that is set for variances."""
    if _Precision.dtype is None or a.dtype != torch.float32 or torch.compiler.is_exporting():
        return op(a, b)
    return op(a.to(_Precision.dtype), b.to(_Precision.dtype)).float()
