"""Code that asks whether a value is a tensor, answered with yes where the value is Moments.

Moments cannot say so themselves: PyTorch's C code asks in the same way and would read memory that is not there. So the
*methods* that ask are given names of their own: a copy of each, in which `isinstance`, `torch.is_tensor` and
`torch.jit.isinstance` know Moments. So are functions that a method calls by name, and functions that a module holds.
Everything else that they call sees what it saw before.
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
        if _is_foreign(kind):
            held = {name: f for name, f in vars(part).items() if isinstance(f, types.FunctionType) and _asks(f)}
            for name, function in held.items():
                part.__dict__[name] = _knowing(function)


def _is_foreign(thing: Any) -> bool:
    """Whether a class or function is none of torch's or bedl's, which know what they do."""
    return (getattr(thing, "__module__", None) or "").partition(".")[0] not in ("torch", "bedl", "builtins")


def _answering(kind: type) -> type:
    """The class, or one derived from it whose methods know Moments, if some ask."""
    asking: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if not _is_foreign(base):
            continue
        for name, function in vars(base).items():
            if isinstance(function, types.FunctionType):
                asking.pop(name, None)  # overridden, maybe by one that does not ask
                if _asks(function):
                    asking[name] = function
    if not asking:
        return kind
    methods = {name: _knowing(function) for name, function in asking.items()}
    return type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__, "__qualname__": kind.__qualname__})


def _asks(function: types.FunctionType, seen: frozenset[int] = frozenset()) -> bool:
    """Whether a function, or one that it calls by name, asks for tensors and does not know Moments."""
    return _code_asks(function.__code__) or bool(_called(function, seen | {id(function)}))


def _called(function: types.FunctionType, seen: frozenset[int]) -> dict[str, types.FunctionType]:
    """The functions of its module, or imported there, that a function names and that ask."""
    named = {name: function.__globals__.get(name) for name in _names(function.__code__)}
    return {
        name: f for name, f in named.items()
        if isinstance(f, types.FunctionType) and id(f) not in seen and _is_foreign(f) and _asks(f, seen)
    }  # fmt: skip


def _names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*(_names(c) for c in inner))


def _code_asks(code: types.CodeType) -> bool:
    """Whether code, or a function inside it, asks for tensors and does not know Moments."""
    names = set(code.co_names)
    asks = "is_tensor" in names or {"isinstance", "Tensor"} <= names
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return (asks and "Moments" not in names) or any(_code_asks(c) for c in inner)


def _knowing(function: types.FunctionType, seen: frozenset[int] = frozenset()) -> types.FunctionType:
    """The same function, with its own words for the questions."""
    seen = seen | {id(function)}
    words = {**function.__globals__, "isinstance": _isinstance}
    words |= {name: _TORCH for name, value in words.items() if value is torch}
    words |= {name: _is_tensor for name, value in words.items() if value is torch.is_tensor}
    words |= {name: _knowing(f, seen) for name, f in _called(function, seen).items()}
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
