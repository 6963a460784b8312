"""Other people's machinery, told once that there are Moments: einops, torch.compile, torch.jit.trace.

Nothing is imported here: who has not imported einops or compiled anything needs no word about it.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

import torch

from bedl.dispatch import _RULES
from bedl.errors import BEDLError
from bedl.moments import Moments
from bedl.rules import affine
from bedl.rules.weights import LayerWeight

__all__ = ["meet_guests"]


def _introduce_to_einops() -> None:
    """einops asks for a tensor's type: Moments go as torch's do, since all it calls are torch's methods."""
    backends: Any = sys.modules.get("einops._backends")
    known = getattr(backends, "_type2backend", None)
    if known is not None and Moments not in known:
        known[Moments] = known[LayerWeight] = backends.get_backend(torch.empty(0))


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
    if torch.jit.is_tracing():
        raise BEDLError("torch.jit.trace cannot follow Moments; use bedl.export(method, path, example=x)")
