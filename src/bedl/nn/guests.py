"""Other people's machinery, told once that there are Moments: einops, PyTorch Geometric, transformers, torch.compile,
torch.jit.trace.

Nothing is imported here: who has not imported einops or compiled anything needs no word about it.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bedl.dispatch import _RULES
from bedl.errors import BEDLError
from bedl.moments import Moments
from bedl.rules import affine
from bedl.rules.groups import softmax_of_groups
from bedl.rules.weights import LayerWeight

__all__ = ["meet_guests"]


def _introduce_to_einops() -> None:
    """einops asks for a tensor's type: Moments go as torch's do, since all it calls are torch's methods."""
    backends: Any = sys.modules.get("einops._backends")
    known = getattr(backends, "_type2backend", None)
    if known is not None and Moments not in known:
        known[Moments] = known[LayerWeight] = backends.get_backend(torch.empty(0))


def _introduce_to_geometric() -> None:
    """PyTorch Geometric fills new tensors in place, which cannot hold Moments: what it does by index goes by rules.

    Its layers, pools and softmax all call these two functions, by name; plain tensors go the way they went.
    """
    utils: Any = sys.modules.get("torch_geometric.utils")
    if utils is None or hasattr(utils.scatter, "plain"):
        return
    for name, make in (("scatter", _knowing_scatter), ("softmax", _knowing_softmax)):
        plain = getattr(utils, name)
        knowing: Any = functools.wraps(plain)(make(plain))
        knowing.plain = plain
        for module in list(sys.modules.values()):
            if isinstance(module, types.ModuleType) and vars(module).get(name) is plain:
                setattr(module, name, knowing)


def _knowing_scatter(plain: Callable) -> Callable:
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


def _knowing_softmax(plain: Callable) -> Callable:
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


def _introduce_to_transformers() -> None:
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
_RULES[_REVERSED_MATMUL] = affine.rmatmul


def _introduce_to_tracer() -> None:
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


_introduce_to_tracer._dynamo_marked_constant = True  # type: ignore[attr-defined]  # run while tracing, not traced


def meet_guests() -> None:
    """What a layer does first."""
    if torch.compiler.is_compiling():
        _introduce_to_tracer()
        return
    _introduce_to_einops()
    _introduce_to_geometric()
    _introduce_to_transformers()
    if torch.jit.is_tracing():
        raise BEDLError("torch.jit.trace cannot follow Moments; use bedl.export(method, path, example=x)")
