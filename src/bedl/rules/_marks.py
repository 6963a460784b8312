"""What the rule families share: how a rule says that it approximates, and the shell of an elementwise rule."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

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
