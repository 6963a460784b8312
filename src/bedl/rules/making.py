"""Functions that make a tensor of the shape, type and device of another: of Moments, too, they make a plain tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from bedl.moments import Moments
from bedl.rules._marks import approximate


def makes(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The rule of a function that looks at a tensor's form alone."""

    @approximate("makes a plain tensor")
    def rule(input: Moments, *args: Any, **kwargs: Any) -> Tensor:
        args, kwargs = pytree.tree_map_only(Moments, lambda x: x.loc, (args, kwargs), is_leaf=_is_moments)
        return func(input.loc if isinstance(input, Moments) else input, *args, **kwargs)

    rule.__name__ = getattr(func, "__name__", "makes")
    return rule


def _is_moments(x: Any) -> bool:
    return isinstance(x, Moments)
