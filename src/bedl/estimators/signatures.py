"""Constructors that take the parameters of others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["parameters_of"]


def parameters_of(other: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: a constructor that takes another one's parameters beside its own, and shows them all.

    scikit-learn and editors read the parameters of an estimator off its signature.
    """

    def extend(init: Callable[..., Any]) -> Callable[..., Any]:
        named = [p for p in inspect.signature(init).parameters.values() if p.kind is p.KEYWORD_ONLY]
        theirs = inspect.signature(other)
        init.__signature__ = theirs.replace(parameters=[*theirs.parameters.values(), *named])  # type: ignore[attr-defined]
        return init

    return extend
