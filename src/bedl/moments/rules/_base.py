"""What the rule families share: how a rule says that it approximates, and the shell of an elementwise rule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from bedl.moments import Moments


def approximate(how: str, when: Callable[..., bool] | None = None) -> Callable[[Callable], Callable]:
    """Mark a rule as an approximation; `how` is shown by `bedl.check` and in the table of operations.

    A rule without this mark is exact: if the inputs are Gaussian with independent entries, the mean and
    variance of each output entry are the true ones, to rounding.

    Args:
        how: what it does about it.
        when: of the rule's arguments: whether it approximates for these; always, if it is not said.
    """

    def mark(rule: Callable) -> Callable:
        rule.approximation, rule.approximates_for = how, when  # type: ignore[attr-defined]
        return rule

    return mark


def approximation(rule: Callable, args: tuple | None = None, kwargs: dict | None = None) -> str | None:
    """How a rule approximates, or None if it is exact; for these arguments, if some are given."""
    when = getattr(rule, "approximates_for", None)
    if args is not None and when is not None and not when(*args, **(kwargs or {})):
        return None
    return getattr(rule, "approximation", None)


def elementwise(plain: Callable[..., Tensor] | None = None) -> Callable[[Callable], Callable[..., Moments]]:
    """Turn `(loc, variance, …) -> (mean, variance)` of one entry into a rule.

    The computation runs in the variance's precision; the mean goes back to the input's own. Where the variance is 0,
    the answer is that of the `plain` function; a form that gives it by itself, bit for bit, needs none.
    """

    def make(moments_of: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Moments]:
        @functools.wraps(moments_of)
        def rule(input: Moments, *args: Any, **kwargs: Any) -> Moments:
            m, v = input.loc.to(input.variance.dtype), input.variance
            mean, variance = moments_of(m, v, *args, **kwargs)
            if plain is not None:
                # `v != 0`, so that a NaN stays one
                mean = torch.where(v != 0, mean, plain(m, *args, **kwargs))
                variance = torch.where(v != 0, variance, 0.0)
            return Moments(mean.to(input.dtype), variance)

        return rule

    return make


# What products know of a layer's weight beforehand, and the precision that their variances are computed in.


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
        self.packed_weights: dict[
            Any, Tensor
        ] = {}  # the same as a kernel reads it (`bedl.nn.fused`), for weights that stay


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
