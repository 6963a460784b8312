"""Other people's machinery, told once that there are Moments: einops, PyTorch Geometric, transformers, torch.compile,
torch.jit.trace. Also weights that PyTorch computes from other parameters (weight norm, spectral norm).

Nothing is imported here: who has not imported einops or compiled anything needs no word about it.
"""

from __future__ import annotations

import builtins
import copy
import functools
import operator
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from bedl._utils.errors import BEDLError
from bedl.moments import Moments
from bedl.moments.dispatch import _RULES
from bedl.moments.rules import linear
from bedl.moments.rules._base import LayerWeight
from bedl.moments.rules.shape import softmax_of_groups


def _patch_einops() -> None:
    """einops asks for a tensor's type: Moments go as torch's do, since all it calls are torch's methods."""
    backends: Any = sys.modules.get("einops._backends")
    known = getattr(backends, "_type2backend", None)
    if known is not None and Moments not in known:
        known[Moments] = known[LayerWeight] = backends.get_backend(torch.empty(0))


def _patch_geometric() -> None:
    """PyTorch Geometric fills new tensors in place, which cannot hold Moments: what it does by index goes by rules.

    Its layers, pools and softmax all call these two functions, by name; plain tensors go the way they went.
    """
    utils: Any = sys.modules.get("torch_geometric.utils")
    if utils is None or hasattr(utils.scatter, "plain"):
        return
    for name, make in (("scatter", _scatter_with_moments), ("softmax", _softmax_with_moments)):
        plain = getattr(utils, name)
        knowing: Any = functools.wraps(plain)(make(plain))
        knowing.plain = plain
        for module in list(sys.modules.values()):
            if isinstance(module, types.ModuleType) and vars(module).get(name) is plain:
                setattr(module, name, knowing)


def _scatter_with_moments(plain: Callable) -> Callable:
    names = {"add": "sum", "max": "amax", "min": "amin"}

    def scatter(src: Any, index: Tensor, dim: int = 0, dim_size: int | None = None, reduce: str = "sum") -> Any:
        if not isinstance(src, Moments):
            return plain(src, index, dim, dim_size, reduce)
        dim, shape = dim % src.dim(), list(src.shape)
        shape[dim] = int(index.max()) + 1 if dim_size is None else dim_size
        sized = index.view([-1 if d == dim else 1 for d in range(src.dim())]).expand(src.shape)
        empty = Moments(src.loc.new_zeros(shape), src.variance.new_zeros(shape))
        return empty.scatter_reduce(dim, sized, src, names.get(reduce, reduce), include_self=reduce in ("sum", "add"))

    return scatter


def _softmax_with_moments(plain: Callable) -> Callable:
    def softmax(src: Any, index: Tensor | None = None, ptr: Tensor | None = None, num_nodes: int | None = None,
                dim: int = 0) -> Any:  # fmt: skip
        if not isinstance(src, Moments):
            return plain(src, index, ptr, num_nodes, dim)
        groups = index
        if groups is None:
            assert ptr is not None
            groups = torch.repeat_interleave(ptr.diff())
        count = int(groups.max()) + 1 if len(groups) else 0
        return softmax_of_groups(lambda x: plain(x, index, ptr, num_nodes, dim), src, groups, dim % src.dim(), count)

    return softmax


def _patch_transformers() -> None:
    """Its outputs look whether their first field is a tensor, and go through anything else, point by point."""
    generic: Any = sys.modules.get("transformers.utils.generic")
    plain = getattr(generic, "is_tensor", None)
    if plain is None or hasattr(plain, "plain"):
        return
    knowing: Any = functools.wraps(plain)(lambda x: isinstance(x, Moments) or plain(x))
    knowing.plain = plain
    generic.is_tensor = knowing


# What torch.compile is to call, with swapped operands, for `moments @ tensor`: it has to be a function of torch's in C,
# to be found in a table, and one that never meets Moments otherwise.
_REVERSED_MATMUL = torch._sparse_sparse_matmul
_RULES[_REVERSED_MATMUL] = linear.rmatmul


def _patch_dynamo() -> None:
    """torch.compile follows a user's `+` or `*`, but not `@`: it is missing in two of its tables.

    In that of reversed operators, so that `moments @ tensor` would become `tensor @ moments`, and in that of methods.
    """
    builtin: Any = sys.modules.get("torch._dynamo.variables.builtin")
    handlers = getattr(getattr(builtin, "BuiltinVariable", None), "_binop_handlers", None)
    if handlers is None:
        return
    table = builtin.BuiltinVariable._binops()
    if operator.matmul not in table:
        table[operator.matmul] = (["__matmul__", "__rmatmul__", "__imatmul__"], operator.imatmul)
        handlers.cache_clear()
        builtin.BUILTIN_TO_TENSOR_RFN_MAP[operator.matmul] = _REVERSED_MATMUL


_patch_dynamo._dynamo_marked_constant = True  # type: ignore[attr-defined]  # run while tracing, not traced


_modules_seen = 0  # how many there were when libraries were patched last


def patch_libraries() -> None:
    """What a layer does first: libraries may be imported, and functions of theirs by others, at any time."""
    global _modules_seen
    if torch.compiler.is_compiling():
        _patch_dynamo()
        return
    if len(sys.modules) != _modules_seen:
        _patch_einops()
        _patch_geometric()
        _patch_transformers()
        _modules_seen = len(sys.modules)
    if torch.jit.is_tracing():
        raise BEDLError("torch.jit.trace cannot follow Moments; use bedl.export(method, path, example=x)")


# Code that asks whether a value is a tensor, answered with yes where the value is Moments.
#
# Moments cannot say so themselves: PyTorch's C code asks in the same way and would read memory that is not there. So
# the *methods* that ask are given names of their own: a copy of each, in which `isinstance`, `torch.is_tensor` and
# `torch.jit.isinstance` know Moments. So are functions that a method calls by name, and functions that a module holds.
# Everything else that they call sees what it saw before.


def patch_isinstance_checks(net: nn.Module) -> None:
    """Let the modules of `net` that ask for tensors take Moments for one. In place; classes are left as they are.

    Example:
        >>> class Skips(nn.Module):
        ...     def forward(self, x):
        ...         return x if isinstance(x, torch.Tensor) else None
        >>> Skips.__module__ = "yours"  # torch's own modules, and bedl's, know what they do
        >>> net = Skips()
        >>> net(Moments(torch.zeros(1), 1.0)) is None
        True
        >>> patch_isinstance_checks(net)
        >>> net(Moments(torch.zeros(1), 1.0)).variance
        tensor([1.])
    """
    known: dict[type, type] = {}
    for part in net.modules():
        kind = type(part)
        if kind not in known:
            known[kind] = _patched_class(kind)
        if known[kind] is not kind:
            part.__class__ = known[kind]
        if _is_user_code(kind):
            held = {
                name: f
                for name, f in vars(part).items()
                if isinstance(f, types.FunctionType) and _checks_for_tensors(f)
            }
            for name, function in held.items():
                part.__dict__[name] = _patched_function(function)


def _is_user_code(thing: Any) -> bool:
    """Whether a class or function is none of torch's or bedl's, which know what they do."""
    return (getattr(thing, "__module__", None) or "").partition(".")[0] not in ("torch", "bedl", "builtins")


def _patched_class(kind: type) -> type:
    """The class, or one derived from it whose methods know Moments, if some ask."""
    asking: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if not _is_user_code(base):
            continue
        for name, function in vars(base).items():
            if isinstance(function, types.FunctionType):
                asking.pop(name, None)  # overridden, maybe by one that does not ask
                if _checks_for_tensors(function):
                    asking[name] = function
    if not asking:
        return kind
    methods = {name: _patched_function(function) for name, function in asking.items()}
    return type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__, "__qualname__": kind.__qualname__})


def _checks_for_tensors(function: types.FunctionType, seen: frozenset[int] = frozenset()) -> bool:
    """Whether a function, or one that it calls by name, asks for tensors and does not know Moments."""
    return _code_checks_for_tensors(function.__code__) or bool(_checking_callees(function, seen | {id(function)}))


def _checking_callees(function: types.FunctionType, seen: frozenset[int]) -> dict[str, types.FunctionType]:
    """The functions of its module, or imported there, that a function names and that ask."""
    named = {name: function.__globals__.get(name) for name in _names(function.__code__)}
    return {
        name: f for name, f in named.items()
        if isinstance(f, types.FunctionType) and id(f) not in seen and _is_user_code(f) and _checks_for_tensors(f, seen)
    }  # fmt: skip


def _names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*(_names(c) for c in inner))


def _code_checks_for_tensors(code: types.CodeType) -> bool:
    """Whether code, or a function inside it, asks for tensors and does not know Moments."""
    names = set(code.co_names)
    asks = "is_tensor" in names or {"isinstance", "Tensor"} <= names
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return (asks and "Moments" not in names) or any(_code_checks_for_tensors(c) for c in inner)


def _patched_function(function: types.FunctionType, seen: frozenset[int] = frozenset()) -> types.FunctionType:
    """The same function, with its own words for the questions."""
    seen = seen | {id(function)}
    words = {**function.__globals__, "isinstance": _isinstance}
    words |= {name: _TORCH for name, value in words.items() if value is torch}
    words |= {name: _is_tensor for name, value in words.items() if value is torch.is_tensor}
    words |= {name: _patched_function(f, seen) for name, f in _checking_callees(function, seen).items()}
    made = types.FunctionType(function.__code__, words, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__, made.__doc__ = function.__kwdefaults__, function.__doc__
    return made


def _isinstance(value: Any, kinds: Any) -> bool:
    if builtins.isinstance(value, kinds):
        return True
    return type(value) is Moments and _includes_tensor(kinds)


def _includes_tensor(kinds: Any) -> bool:
    several: Any = kinds.__args__ if builtins.isinstance(kinds, types.UnionType) else kinds
    if builtins.isinstance(several, tuple):
        return any(_includes_tensor(kind) for kind in several)
    return several is torch.Tensor


def _is_tensor(value: Any) -> bool:
    return torch.is_tensor(value) or type(value) is Moments


class _PatchedModule:
    """A module of torch's, but for some names."""

    def __init__(self, module: Any, **names: Any):
        self.__dict__.update(names, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


_TORCH = _PatchedModule(torch, is_tensor=_is_tensor, jit=_PatchedModule(torch.jit, isinstance=_isinstance))


# Weights that are computed from other parameters (weight norm, spectral norm, parametrisations), made plain.


Net = TypeVar("Net", bound=nn.Module)


def type_of(layer: nn.Module) -> type[nn.Module]:
    """A layer's type; of one with parametrisations, that from before them."""
    return parametrize.type_before_parametrizations(layer)


def copied(module: Net, instead: Mapping[int, Any] | None = None) -> Net:
    """A deep copy, also of modules that keep a computed weight, which torch refuses to copy.

    Args:
        module: to be copied.
        instead: what comes in place of objects, by their id.
    """
    values = [v for m in module.modules() for v in vars(m).values() if isinstance(v, Tensor) and not v.is_leaf]
    return copy.deepcopy(module, {**(instead or {}), **{id(value): value.detach().clone() for value in values}})


def computed_by(layer: nn.Module) -> list[str]:
    """What computes weights of a layer, by the names of its classes: "SpectralNorm", "WeightNorm", "Orthogonal"…"""
    parts: list[Any] = [
        hook for hook in layer._forward_pre_hooks.values() if isinstance(hook, (WeightNorm, SpectralNorm))
    ]
    if parametrize.is_parametrized(layer):
        parametrizations: Any = layer.parametrizations
        parts += [part for name in parametrizations for part in parametrizations[name]]
    return list(dict.fromkeys(type(part).__name__.lstrip("_") for part in parts))


def make_weights_plain(layer: nn.Module) -> None:
    """Replace what computes a weight by its result, a parameter like any other; in place."""
    training = layer.training
    layer.eval()  # spectral norm takes another step whenever it is asked while training
    if parametrize.is_parametrized(layer):
        parametrizations: Any = layer.parametrizations
        own: Any = type(layer)  # which the layer that this one is a copy of has, too, and which is about to be changed
        layer.__class__ = type(own.__name__, own.__bases__, dict(vars(own)))
        with torch.enable_grad():  # or a weight that is made of several would come back as no parameter
            for name in list(parametrizations):
                parametrize.remove_parametrizations(layer, name, leave_parametrized=True)
    for key, hook in list(layer._forward_pre_hooks.items()):
        if isinstance(hook, (WeightNorm, SpectralNorm)):
            hook.remove(layer)
            del layer._forward_pre_hooks[key]
    for key, state_hook in list(layer._state_dict_hooks.items()):  # by which spectral norm marks its version
        if "SpectralNorm" in type(state_hook).__name__:
            del layer._state_dict_hooks[key]
    for key, load_hook in list(layer._load_state_dict_pre_hooks.items()):
        if "SpectralNorm" in type(getattr(load_hook, "hook", load_hook)).__name__:
            del layer._load_state_dict_pre_hooks[key]
    layer.train(training)


def compute_stored_weights(state: dict[str, Any], prefix: str, weights: Sequence[str], along: int) -> None:
    """Put weights where the state of a plain layer has what they are computed from; in place.

    Args:
        state: that of a network.
        prefix: of the layer's entries.
        weights: names of the layer's weights.
        along: the dimension of a weight that the layer's outputs lie along, by which spectral norm makes it a matrix.
    """
    for name in weights:
        new, old = f"{prefix}parametrizations.{name}.", f"{prefix}{name}_"
        for length, direction in ((f"{new}original0", f"{new}original1"), (f"{old}g", f"{old}v")):
            if length in state and direction in state:
                g, v = state.pop(length), state.pop(direction)
                summed = [i for i in range(v.dim()) if g.dim() == 0 or g.shape[i] == 1]
                state[f"{prefix}{name}"] = v * (g / torch.linalg.vector_norm(v, dim=summed, keepdim=True))
        for whole, left, right in (
            (f"{new}original", f"{new}0._u", f"{new}0._v"),
            (f"{old}orig", f"{old}u", f"{old}v"),
        ):
            if whole in state and left in state and right in state:
                weight, u, v = state.pop(whole), state.pop(left), state.pop(right)
                state[f"{prefix}{name}"] = weight / torch.dot(u, weight.movedim(along, 0).flatten(1) @ v)
        unknown = [key.removeprefix(prefix) for key in state if key.startswith(new)]
        if unknown:
            raise BEDLError(
                f"load_state_dict: what computes the weight of layer '{prefix.removesuffix('.')}' ({unknown[0]}) is "
                "not known here. Load the state into the plain model and convert that: bedl.bayesianize(model)"
            )
