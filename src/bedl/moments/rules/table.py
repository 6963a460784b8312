"""The table: which rule answers for which torch function.

A line names functions as users know them and the rule that has their signature. `_homes` finds every place a name
lives in: `torch`, `torch.nn.functional`, `torch.Tensor`, with its in-place form and its operators. A rule marked
`@approximate` says how; one without the mark is exact for independent Gaussian inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from bedl.moments import Moments
from bedl.moments.dispatch import _RULES, dispatch, keys_of, refusal
from bedl.moments.rules import (
    activations,
    arithmetic,
    attention,
    conv,
    linear,
    norm,
    numerical,
    pooling,
    positive,
    shape,
)
from bedl.moments.rules._base import approximation

# fmt: off
TABLE: dict[str, dict[str, Callable]] = {
    "affine": {
        "linear": linear.linear, "matmul mm bmm mv dot": shape.matmul, "__rmatmul__": linear.rmatmul,
        "addmm baddbmm": linear.addmm, "einsum": linear.einsum, "bilinear": linear.bilinear,
        "F.embedding": linear.embedding, "embedding_bag": linear.embedding_bag,
        "tensordot": linear.products(torch.tensordot),
        "outer ger": linear.products(torch.outer), "inner": linear.products(torch.inner),
        "kron": linear.products(torch.kron),
        "sparse.mm spmm": shape.sparse_mm, "sparse.addmm": shape.sparse_addmm,
        **{f"conv{d}d": conv.convolution(getattr(F, f"conv{d}d"), d) for d in (1, 2, 3)},
        **{f"conv_transpose{d}d": conv.convolution(getattr(F, f"conv_transpose{d}d"), d) for d in (1, 2, 3)},
    },
    "activation": {
        "relu": activations.relu, "leaky_relu": activations.leaky_relu, "prelu": activations.prelu,
        "elu": activations.elu, "selu": activations.selu, "celu": activations.celu,
        "abs absolute": activations.absolute,
        "hardtanh": activations.hardtanh, "relu6": activations.relu6, "hardsigmoid": activations.hardsigmoid,
        "clamp clip": activations.clamp, "clamp_min": lambda x, min: activations.clamp(x, min=min),
        "clamp_max": lambda x, max: activations.clamp(x, max=max), "threshold": activations.threshold,
        "exp": activations.exp, "expm1": activations.expm1, "sin": activations.sin, "cos": activations.cos,
        "square": activations.square, "pow": positive.power, "__rpow__": lambda x, base: positive.power(base, x),
        "sqrt": positive.sqrt, "rsqrt": positive.rsqrt, "reciprocal": positive.reciprocal, "log": positive.log,
        "log1p": positive.log1p, "log2": positive.log2, "log10": positive.log10,
        "maximum": activations.maximum, "minimum": activations.minimum,
        "sigmoid expit": numerical.sigmoid, "tanh": numerical.tanh, "silu": numerical.silu, "mish": numerical.mish,
        "gelu": numerical.gelu, "softplus": numerical.softplus, "logsigmoid": numerical.logsigmoid,
        "hardswish": numerical.hardswish, "glu": numerical.glu, "erf": numerical.erf, "erfc": numerical.erfc,
        "softsign": numerical.softsign, "atan arctan": numerical.atan, "softshrink": activations.softshrink,
    },
    "pooling": {
        **{f"avg_pool{d}d": pooling.average(getattr(F, f"avg_pool{d}d"), d) for d in (1, 2, 3)},
        **{f"adaptive_avg_pool{d}d": pooling.adaptive_average(getattr(F, f"adaptive_avg_pool{d}d"), d)
           for d in (1, 2, 3)},
        **{f"max_pool{d}d": pooling.max_pool(getattr(F, f"max_pool{d}d"), d) for d in (1, 2, 3)},
        **{f"adaptive_max_pool{d}d": pooling.adaptive_max_pool(getattr(F, f"adaptive_max_pool{d}d"), d)
           for d in (1, 2, 3)},
        "amax": pooling.amax, "amin": pooling.amin, "max": pooling.chosen_max,
    },
    "selection": {
        "topk": activations.topk, "sort": activations.sort, "argsort": activations.argsort,
    },
    "normalisation": {
        "F.batch_norm": norm.batch_norm, "F.layer_norm": norm.layer_norm,
        "F.group_norm": norm.group_norm, "F.instance_norm": norm.instance_norm,
        "F.rms_norm": norm.rms_norm, "F.normalize": norm.unit_length,
    },
    "statistics": {
        "var": norm.var, "std": norm.std, "var_mean": norm.var_mean, "std_mean": norm.std_mean,
        "norm linalg.vector_norm": norm.norm,
        "logsumexp": norm.logsumexp, "logaddexp": numerical.logaddexp, "cosine_similarity": norm.cosine_similarity,
        "isnan": norm.asks(torch.isnan, either=True), "isinf": norm.asks(torch.isinf, either=True),
        "isfinite": norm.asks(torch.isfinite, either=False),
    },
    "dropout": {
        "dropout dropout1d dropout2d dropout3d feature_dropout": arithmetic.dropout,
        "alpha_dropout feature_alpha_dropout": arithmetic.alpha_dropout,
    },
    "attention": {
        "softmax": attention.softmax, "F.softmin": attention.softmin, "log_softmax": attention.log_softmax,
        "scaled_dot_product_attention": attention.scaled_dot_product_attention,
        "multi_head_attention_forward": attention.multi_head_attention_forward,
    },
    "arithmetic": {
        "add __radd__": arithmetic.add, "sub subtract": arithmetic.sub, "rsub __rsub__": arithmetic.rsub,
        "mul multiply __rmul__": arithmetic.mul, "div divide true_divide __truediv__": positive.div,
        "__rtruediv__": positive.rdiv, "neg negative": arithmetic.neg,
        "torch.where": arithmetic.where, "Tensor.where": arithmetic.where_method,
        "masked_fill": arithmetic.masked_fill, "lerp": arithmetic.lerp,
        "addcmul": arithmetic.addcmul, "cumsum": arithmetic.cumsum,
        "prod": arithmetic.prod, "cumprod": arithmetic.cumprod,
    },
    "shape": {
        "__getitem__": shape.getitem, "__setitem__": shape.setitem, "cat concat concatenate": shape.joins(torch.cat),
        "stack": shape.joins(torch.stack), "hstack": shape.joins(torch.hstack), "vstack": shape.joins(torch.vstack),
        "pad": shape.pad, "sum": shape.sum, "mean": shape.mean, "interpolate upsample": shape.interpolate,
        "to": shape.to, "type_as": shape.type_as, "float": shape.casts(torch.float32),
        "double": shape.casts(torch.float64), "half": shape.casts(torch.float16),
        "bfloat16": shape.casts(torch.bfloat16), "detach": shape.detach,
        "Tensor.type": shape.type_, "nan_to_num": shape.nan_to_num,
        **{f"atleast_{d}d": shape.at_least(getattr(torch, f"atleast_{d}d")) for d in (1, 2, 3)},
        "torch._pack_padded_sequence": attention.packs(torch._pack_padded_sequence),
        "torch._pad_packed_sequence": attention.packs(torch._pad_packed_sequence), "diff": shape.diff,
    },
    "indexing": {
        "index_add": shape.index_add, "index_copy": shape.index_copy, "index_fill": shape.index_fill,
        "scatter": shape.scatter, "scatter_add": shape.scatter_add, "scatter_reduce": shape.scatter_reduce,
    },
}
# Functions that only move entries: one rule for all, made from the function itself.
MOVES = """
    flatten reshape view permute transpose t swapaxes swapdims movedim moveaxis squeeze unsqueeze expand
    broadcast_to repeat repeat_interleave tile contiguous clone flip roll rot90 narrow select unbind split
    split_with_sizes tensor_split chunk index_select gather take_along_dim ravel unflatten diagonal tril triu
    pixel_shuffle pixel_unshuffle channel_shuffle unfold fold cpu cuda unsafe_chunk unsafe_split dsplit hsplit vsplit
    __pos__ positive
""".split()
MOVES_LIKE = "view_as reshape_as expand_as".split()
# Functions that look at a tensor's form alone, and make a plain one.
MAKES = """
    zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros new_ones new_empty new_full
    new_tensor
""".split()
# Functions whose answer is yes or no.
COMPARISONS = "gt ge lt le greater greater_equal less less_equal __gt__ __ge__ __lt__ __le__".split()
# fmt: on


_PLACES = {"torch": torch, "F": F, "Tensor": torch.Tensor, "special": torch.special, "sparse": torch.sparse,
           "linalg": torch.linalg}  # fmt: skip
_NAMED = {"sparse", "linalg"}  # places that have to be said
_OPERATORS = {"add", "sub", "mul", "matmul", "pow", "neg", "abs"}


def _homes(name: str) -> Iterator[tuple[Callable, bool]]:
    """Every function of this name, and whether it works in place; `F.name` is that place's alone."""
    place, _, name = name.rpartition(".")
    places = [_PLACES[place]] if place else [home for key, home in _PLACES.items() if key not in _NAMED]
    spellings = [(name, False)]
    if name.startswith("__"):
        spellings += [(f"__i{name[2:]}", True)]
    elif not place:
        spellings += [(f"{name}_", True)]
    if name in _OPERATORS:
        spellings += [(f"__{name}__", False), (f"__i{name}__", True)]
    for spelling, inplace in spellings:
        for home in places:
            func = getattr(home, spelling, None)
            if callable(func):
                yield func, inplace


def _in_place(rule: Callable, func: Callable) -> Callable:
    def in_place(input: object, *args: object, **kwargs: object) -> object:
        result = rule(input, *args, **kwargs)
        if isinstance(input, Moments):
            return input.assign_(result)
        name = getattr(func, "__name__", "")
        way = (
            "x = x + y in place of x += y" if name.startswith("__") else f"x = x.{name[:-1]}(…), without the underscore"
        )
        raise refusal(func, f"a plain tensor cannot hold Moments; write {way}")

    in_place.approximation = approximation(rule)  # type: ignore[attr-defined]
    return in_place


def _compares(func: Callable) -> Callable:
    def compares(*args: object, **kwargs: object) -> object:
        raise refusal(
            func,
            "whether it holds is random; F.relu, F.leaky_relu, torch.maximum, torch.minimum and torch.clamp choose by "
            "value, and x.loc is the plain mean",
        )

    return compares


def _install() -> None:
    for name in COMPARISONS:
        for func, _ in _homes(name):
            _RULES[func] = _compares(func)
    # The encoder's question whether padding stands at the end, for a fast path that Moments do not take.
    _RULES[torch._nested_tensor_from_mask_left_aligned] = lambda t, mask: False
    for family in TABLE.values():
        for names, rule in family.items():
            for name in names.split():
                for func, inplace in _homes(name):
                    _RULES[func] = _in_place(rule, func) if inplace else rule
    for movers, make in ((MOVES, shape.moves), (MOVES_LIKE, shape.moves_like), (MAKES, shape.makes)):
        for name in movers:
            for func, inplace in _homes(name):
                # torch.compile cannot see into the method, which calls super().
                mover = make(torch.unflatten if func is torch.Tensor.unflatten else func)
                _RULES[func] = _in_place(mover, func) if inplace else mover
    for key, rule in list(_RULES.items()):
        _RULES.update(dict.fromkeys([] if isinstance(key, str) else keys_of(key), rule))


def dispatch_custom_functions() -> None:
    """Make `Function.apply` of custom functions look up a rule where an argument is Moments.

    They ignore `__torch_function__`: `Function.apply` runs `forward` without recording it, and attaches `backward` to
    the tensors among its arguments. Moments are none: their values would go on, and their gradients would end, or pass
    as if there were no `backward`.
    """
    plain: Any = torch.autograd.Function.__dict__["apply"].__func__
    if hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, Moments) for x in (*args, *kwargs.values())):
            return dispatch(cls.apply, args, kwargs)
        return plain(cls, *args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign]


_install()
dispatch_custom_functions()
