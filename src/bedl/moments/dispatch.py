"""`__torch_function__` dispatch: look up the moment rule of a torch function, and refuse functions without one."""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from bedl._utils.errors import UnsupportedOperationError, function_name

Rule = Callable[..., Any]

_RULES: dict[Callable | str, Rule] = {}  # filled by bedl.moments.rules and register_rule
_OWN: set[Callable] = set()  # functions with a rule of the user's


class _Scope(threading.local):
    """Per thread: what `use_rules` lays over the table, and what `bedl.check` listens with."""

    overlay: Mapping[Callable | str, Rule] = {}
    listener: Callable | None = None


_scope = _Scope()


def find_rule(func: Callable) -> Rule | None:
    name = getattr(func, "__name__", "")
    key = name if torch.compiler.is_compiling() and name in _RULES else func
    overlay = _scope.overlay
    if key in overlay:
        return overlay[key]
    rule = _RULES.get(key)
    return find_rule(_key(func)) if rule is None and is_custom(func) else rule


def keys_of(func: Callable) -> list[Callable | str]:
    """What the rule of a function is kept under.

    Compiled code does not find methods of tensors that are written in Python in a table, but finds their names.
    """
    name = getattr(func, "__name__", "")
    in_python = isinstance(func, types.FunctionType) and getattr(torch.Tensor, name, None) is func
    return [_key(func), name] if in_python else [_key(func)]


def is_custom(func: Any) -> bool:
    """Whether a function is `apply` of a `torch.autograd.Function`."""
    owner = getattr(func, "__self__", None)
    return isinstance(owner, type) and issubclass(owner, Function)


def _key(func: Callable) -> Callable:
    """What a rule is kept under: of `Sq.apply` the class, since bound methods of one class need not be equal."""
    return func.__self__ if is_custom(func) else func  # type: ignore[attr-defined]


def default_rules_active(*functions: Callable) -> bool:
    """Whether these functions have the rules that bedl came with, and nobody listens."""
    return not _scope.overlay and _scope.listener is None and _OWN.isdisjoint(functions)


def dispatch(func: Callable, args: tuple, kwargs: dict) -> Any:
    """Answer a torch function called with Moments among its arguments, by its rule."""
    rule = find_rule(func)
    if _scope.listener is not None:
        return _scope.listener(func, rule, args, kwargs)
    if rule is None:
        raise refusal(func, why_missing(func))
    return apply_rule(func, rule, args, kwargs)


# Where `inplace` stands among the positional arguments of the functions that take it.
_INPLACE_AT: dict[Callable, int] = {
    func: list(inspect.signature(func).parameters).index("inplace")
    for func in vars(F).values()
    if inspect.isfunction(func) and "inplace" in inspect.signature(func).parameters
}


_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}  # which torch accepts too


def apply_rule(func: Callable, rule: Rule, args: tuple, kwargs: dict) -> Any:
    """Call the rule without `inplace`, which is the same for all and done here."""
    kwargs = {_NUMPY_NAMES.get(name, name): value for name, value in kwargs.items()}
    at = _INPLACE_AT.get(func)
    inplace = kwargs.get("inplace", False)
    if at is not None and len(args) > at:
        inplace, args = args[at], args[:at] + args[at + 1 :]
    result = rule(*args, **{name: value for name, value in kwargs.items() if name != "inplace"})
    return args[0].assign_(result) if inplace else result


def why_missing(func: Callable) -> str:
    """Why a function without a rule is refused, if there is more to say than that it has none."""
    if not is_custom(func):
        return ""
    name = function_name(func)
    if name == "CheckpointFunction.apply":
        return "PyTorch would run this part of the network without gradients; call checkpoint with use_reentrant=False"
    return (
        "PyTorch would run its forward unrecorded and skip its backward, so that gradients end here. If it acts on "
        f"each entry by itself, bedl.register_rule({name}, bedl.rules.quadrature({name})) is enough"
    )


def refusal(func: Callable, why: str = "") -> UnsupportedOperationError:
    """The error for an operation that has no rule, naming where in the network it was called."""
    return UnsupportedOperationError(func, why)


def register_rule(func: Callable, rule: Rule | None = None) -> Any:
    """Add or replace, for the whole process, the rule of a torch function.

    The rule has the function's own signature, with Moments where the function takes tensors, and returns Moments. It
    answers for this one function: `torch.sinh` and `torch.Tensor.sinh` are two. See `bedl.use_rules` for a rule that
    holds only inside a block, and `bedl.rules.quadrature` for one made from any elementwise function. The rule of a
    custom `torch.autograd.Function` is registered for its `apply`: ``register_rule(Sq.apply, quadrature(Sq.apply))``.

    Example:
        >>> import bedl, torch
        >>> @bedl.register_rule(torch.sinh)
        ... def sinh(x):
        ...     m, v = x.loc, x.variance
        ...     variance = torch.expm1(v) / 2 * (torch.exp(v) * torch.cosh(2 * m) + 1)
        ...     return bedl.Moments(torch.exp(v / 2) * torch.sinh(m), variance)
        >>> torch.sinh(bedl.Moments(torch.tensor([1.0]), 0.5)).loc
        tensor([1.5090])
    """
    if rule is None:
        return lambda rule: register_rule(func, rule) or rule
    if not callable(func) or not callable(rule):
        raise TypeError("register_rule(func, rule): both must be callables")
    _RULES.update(dict.fromkeys(keys_of(func), _checked(func, rule)))
    _OWN.add(_key(func))
    return None


def _checked(func: Callable, rule: Rule) -> Rule:
    """The rule, with an error where it returns a plain tensor, which would make the rest of a network deterministic."""

    @functools.wraps(rule)
    def checked(*args: Any, **kwargs: Any) -> Any:
        result = rule(*args, **kwargs)
        if result is None or isinstance(result, Tensor):
            raise TypeError(f"the rule for {function_name(func)} returned a {type(result).__name__}, not Moments")
        return result

    return checked


@contextmanager
def use_rules(rules: Mapping[Callable, Rule]) -> Iterator[None]:
    """Lay rules over the table inside a `with` block, in this thread only.

    Example:
        >>> import bedl, torch
        >>> import torch.nn.functional as F
        >>> with bedl.use_rules({F.tanhshrink: bedl.rules.quadrature(F.tanhshrink)}):
        ...     y = F.tanhshrink(bedl.Moments(torch.zeros(1), 1.0))
    """
    before = _scope.overlay
    _scope.overlay = {**before, **{k: _checked(func, rule) for func, rule in rules.items() for k in keys_of(func)}}
    try:
        yield
    finally:
        _scope.overlay = before
