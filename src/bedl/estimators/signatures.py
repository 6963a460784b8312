"""Constructors that take the parameters of others."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["parameters_of"]


def parameters_of(other: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: a constructor that takes another one's parameters beside its own, shows them all and refuses others.

    scikit-learn and editors read the parameters of an estimator off its signature.
    """

    def extend(init: Callable[..., Any]) -> Callable[..., Any]:
        named = [p for p in inspect.signature(init).parameters.values() if p.kind is p.KEYWORD_ONLY]
        theirs = inspect.signature(other)
        signature = theirs.replace(parameters=[*theirs.parameters.values(), *named])

        @functools.wraps(init)
        def checked(self: Any, *given: Any, **settings: Any) -> None:
            unknown = [name for name in settings if name not in signature.parameters]
            if unknown:
                near = difflib.get_close_matches(unknown[0], signature.parameters, n=1, cutoff=0.5)
                hint = (
                    f"; did you mean {near[0]!r}?"
                    if near
                    else f"; there are {', '.join(list(signature.parameters)[1:])}"
                )
                raise TypeError(f"{type(self).__name__} has no parameter {unknown[0]!r}{hint}")
            try:
                signature.bind(self, *given, **settings)
            except TypeError as error:
                raise TypeError(f"{type(self).__name__}: {error}") from None
            init(self, *given, **settings)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        return checked

    return extend
