"""How a network is called and read: several inputs, by place or by name, and outputs that are more than one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bedl._utils.errors import BEDLError
from bedl.moments import Moments

Output = str | int | Callable[[Any], Any] | None


def has_parts(x: Any) -> bool:
    """Whether an input is several: a tuple or list, or a mapping. A packed sequence, a named tuple, is one."""
    return isinstance(x, Mapping) or (isinstance(x, (tuple, list)) and not hasattr(x, "_fields"))


def call(net: Callable[..., Any], x: Any) -> Any:
    """What the network gives: ``net(*x)`` for a tuple or list, ``net(**x)`` for a mapping, else ``net(x)``.

    Example:
        >>> call(lambda a, b: a - b, (3, 1)), call(lambda a, b: a - b, {"b": 3, "a": 1})
        (2, -2)
    """
    args, kwargs = as_arguments(x)
    return net(*args, **kwargs)


def as_arguments(x: Any) -> tuple[tuple, dict]:
    """What `call` calls a network with."""
    if isinstance(x, Mapping):
        return (), dict(x)
    return (tuple(x) if has_parts(x) else (x,)), {}


def pick(given: Any, output: Output = None) -> Any:
    """The outputs that a head reads, of what a network gives.

    Args:
        given: a tensor or Moments; or several, in a tuple, a mapping or an object, as Hugging Face's models give.
        output: which of them: a name, a number or a function. By default the only one there is, or ``logits``.

    Example:
        >>> import torch
        >>> pick({"loss": None, "logits": torch.zeros(2), "attentions": torch.ones(3)})
        tensor([0., 0.])
        >>> pick((torch.zeros(2), torch.ones(3)), 1)
        tensor([1., 1., 1.])
    """
    if output is not None:
        return _chosen(given, output)
    if isinstance(given, (Tensor, Moments)):
        return given
    if isinstance(given, Mapping):
        entries = {key: value for key, value in given.items() if value is not None}
    elif isinstance(given, (tuple, list)):
        entries = dict(enumerate(given))
    else:
        entries = {"logits": given.logits} if hasattr(given, "logits") else {}
    if "logits" in entries:
        return entries["logits"]
    if len(entries) == 1:
        return pick(next(iter(entries.values())))
    names = ", ".join(map(repr, entries)) or f"no tensor that is known of ({type(given).__name__})"
    raise BEDLError(f"the network gives {names}: say which the head is to read, as in BEDL(net, head, output=…)")


def _chosen(given: Any, output: Output) -> Any:
    if callable(output):
        return output(given)
    try:
        if isinstance(output, str) and not isinstance(given, Mapping):
            return getattr(given, output)
        return given[output]
    except (AttributeError, KeyError, IndexError, TypeError):
        there = ", ".join(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
        raise BEDLError(f"output={output!r} is not among what the network gives: {there}") from None


def outputs_of(net: nn.Module, x: Any, output: Output = None) -> Any:
    """`call`, then `pick`."""
    given = net(x) if isinstance(x, (Tensor, Moments)) else call(net, x)
    return given if output is None and isinstance(given, (Tensor, Moments)) else pick(given, output)


def map_parts(function: Callable[[Any], Any], x: Any) -> Any:
    """The function of a tensor or Moments, or of each of several inputs; what is neither stays as it is.

    Example:
        >>> import torch
        >>> map_parts(lambda part: part + 1, {"a": torch.zeros(2), "b": (torch.ones(1), "name")})
        {'a': tensor([1., 1.]), 'b': (tensor([2.]), 'name')}
    """
    if isinstance(x, (Tensor, Moments)):
        return function(x)
    if isinstance(x, Mapping):
        return {key: map_parts(function, part) for key, part in x.items()}
    if has_parts(x):
        return tuple(map_parts(function, part) for part in x)
    return pytree.tree_map_only(Tensor, function, x)


def count_points(x: Any) -> int:
    """How many points an input has: the length of its first tensor."""
    found: list[int] = []
    map_parts(lambda part: found.append(len(part)), x)
    if not found:
        raise TypeError(f"an input holds tensors or Moments, not {type(x).__name__}")
    return found[0]


def join_parts(one: Any, other: Any) -> Any:
    """Two inputs of the same kind, the points of one behind those of the other."""
    if isinstance(one, Mapping):
        return {key: join_parts(part, other[key]) for key, part in one.items()}
    if has_parts(one):
        return tuple(join_parts(*pair) for pair in zip(one, other, strict=True))
    return torch.cat([one, other])
