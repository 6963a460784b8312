"""Code that asks whether a value is a tensor, answered with yes where the value is Moments.

Moments cannot say so themselves: PyTorch's C code asks in the same way and would read memory that is not there. So the
*methods* that ask are given names of their own: a copy of each, in which `isinstance`, `torch.is_tensor` and
`torch.jit.isinstance` know Moments. Everything else that they call sees what it saw before.
"""

from __future__ import annotations

import builtins
import types
from typing import Any

import torch
from torch import nn

from bedl.moments import Moments

__all__ = ["answer_questions"]


def answer_questions(net: nn.Module) -> None:
    """Let the modules of `net` that ask for tensors take Moments for one. In place; classes are left as they are.

    Example:
        >>> class Skips(nn.Module):
        ...     def forward(self, x):
        ...         return x if isinstance(x, torch.Tensor) else None
        >>> Skips.__module__ = "yours"  # torch's own modules, and bedl's, know what they do
        >>> net = Skips()
        >>> net(Moments(torch.zeros(1), 1.0)) is None
        True
        >>> answer_questions(net)
        >>> net(Moments(torch.zeros(1), 1.0)).variance
        tensor([1.])
    """
    known: dict[type, type] = {}
    for part in net.modules():
        kind = type(part)
        if kind not in known:
            known[kind] = _answering(kind)
        if known[kind] is not kind:
            part.__class__ = known[kind]


def _answering(kind: type) -> type:
    """The class, or one derived from it whose methods know Moments, if some ask."""
    asking: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] in ("torch", "bedl", "builtins"):
            continue
        own = {name: f for name, f in vars(base).items() if isinstance(f, types.FunctionType)}
        asking |= {name: f for name, f in own.items() if _asks(f.__code__)}
        for name in own.keys() - {name for name, f in own.items() if _asks(f.__code__)}:
            asking.pop(name, None)  # overridden by one that does not ask
    if not asking:
        return kind
    methods = {name: _knowing(function) for name, function in asking.items()}
    return type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__, "__qualname__": kind.__qualname__})


def _asks(code: Any) -> bool:
    """Whether code, or a function inside it, asks for tensors and does not know Moments."""
    if not isinstance(code, types.CodeType):
        return False
    names = set(code.co_names)
    asks = "is_tensor" in names or {"isinstance", "Tensor"} <= names
    return (asks and "Moments" not in names) or any(_asks(inner) for inner in code.co_consts)


def _knowing(function: types.FunctionType) -> types.FunctionType:
    """The same function, with its own words for the questions."""
    words = {**function.__globals__, "isinstance": _isinstance}
    words |= {name: _TORCH for name, value in words.items() if value is torch}
    words |= {name: _is_tensor for name, value in words.items() if value is torch.is_tensor}
    made = types.FunctionType(function.__code__, words, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__, made.__doc__ = function.__kwdefaults__, function.__doc__
    return made


def _isinstance(value: Any, kinds: Any) -> bool:
    if builtins.isinstance(value, kinds):
        return True
    return type(value) is Moments and _names_tensors(kinds)


def _names_tensors(kinds: Any) -> bool:
    several: Any = kinds.__args__ if builtins.isinstance(kinds, types.UnionType) else kinds
    if builtins.isinstance(several, tuple):
        return any(_names_tensors(kind) for kind in several)
    return several is torch.Tensor


def _is_tensor(value: Any) -> bool:
    return torch.is_tensor(value) or type(value) is Moments


class _Knowing:
    """A module of torch's, but for some names."""

    def __init__(self, module: Any, **names: Any):
        self.__dict__.update(names, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


_TORCH = _Knowing(torch, is_tensor=_is_tensor, jit=_Knowing(torch.jit, isinstance=_isinstance))
