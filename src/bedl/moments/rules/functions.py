"""Custom functions (`torch.autograd.Function`): they ignore `__torch_function__`, so Moments are looked for here.

`Function.apply` runs `forward` without recording it, and attaches `backward` to the tensors among its arguments.
Moments are none: their values would go on, and their gradients would end, or pass as if there were no `backward`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from bedl.moments import Moments
from bedl.moments.dispatch import dispatch


def dispatch_custom_functions() -> None:
    """Make `Function.apply` look up a rule where an argument is Moments, as torch's own functions do."""
    plain: Any = torch.autograd.Function.__dict__["apply"].__func__
    if hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, Moments) for x in (*args, *kwargs.values())):
            return dispatch(cls.apply, args, kwargs)
        return plain(cls, *args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign]
