"""Which Gaussian layer is the twin of a layer: by exact type, of types that add nothing to one, and of some others.

A subclass may have a forward of its own, and then what it does with its weight is not known. One that only has another
constructor does what its base does.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from bedl.nn import layers, recurrent
from bedl.nn.attention import GaussianMultiheadAttention

__all__ = ["GAUSSIAN_TWINS", "twin_of"]

GAUSSIAN_TWINS: dict[type[nn.Module], type[layers.GaussianLayer]] = {
    nn.Linear: layers.GaussianLinear,
    NonDynamicallyQuantizableLinear: layers.GaussianLinear,
    nn.Conv1d: layers.GaussianConv1d,
    nn.Conv2d: layers.GaussianConv2d,
    nn.Conv3d: layers.GaussianConv3d,
    nn.ConvTranspose1d: layers.GaussianConvTranspose1d,
    nn.ConvTranspose2d: layers.GaussianConvTranspose2d,
    nn.ConvTranspose3d: layers.GaussianConvTranspose3d,
    nn.Embedding: layers.GaussianEmbedding,
    nn.Bilinear: layers.GaussianBilinear,
    nn.MultiheadAttention: GaussianMultiheadAttention,
    nn.RNN: recurrent.GaussianRNN,
    nn.LSTM: recurrent.GaussianLSTM,
    nn.GRU: recurrent.GaussianGRU,
    nn.RNNCell: recurrent.GaussianRNNCell,
    nn.LSTMCell: recurrent.GaussianLSTMCell,
    nn.GRUCell: recurrent.GaussianGRUCell,
}


class _InputsFirst(layers.GaussianLayer):
    """A linear layer whose weight is (inputs, outputs)."""

    def fan_in(self) -> float:
        return self.weight.shape[0]


# Linear layers of other libraries, by name, since they are not imported here: their forward is one product.
_OTHERS: dict[str, type[layers.GaussianLayer]] = {
    "transformers.pytorch_utils.Conv1D": _InputsFirst,
    "torch_geometric.nn.dense.linear.Linear": layers.GaussianLayer,
}
_ADDS_NOTHING = {
    "__init__", "__module__", "__qualname__", "__doc__", "__annotations__", "__parameters__", "__orig_bases__",
    "__firstlineno__", "__static_attributes__", "__annotate_func__", "reset_parameters", "extra_repr",
}  # fmt: skip


_made: dict[type[nn.Module], type[layers.GaussianLayer] | None] = {}


def twin_of(kind: type[nn.Module]) -> type[layers.GaussianLayer] | None:
    """The Gaussian layer for a type of layer, or None; for types that torch does not have it is made here."""
    if kind not in GAUSSIAN_TWINS and kind not in _made:
        _made[kind] = _make(kind)
    return GAUSSIAN_TWINS.get(kind) or _made[kind]


def _make(kind: type[nn.Module]) -> type[layers.GaussianLayer] | None:
    base = _OTHERS.get(f"{kind.__module__}.{kind.__qualname__}")
    for i, ancestor in enumerate(kind.__mro__):
        if base is None and ancestor in GAUSSIAN_TWINS:
            own = {name for c in kind.__mro__[:i] for name in vars(c)}
            base = GAUSSIAN_TWINS[ancestor] if own <= _ADDS_NOTHING else None
            break
    if base is None:
        return None
    members = {"__deepcopy__": _deepcopy, "__doc__": base.__doc__}
    make_class: Any = type
    return make_class(f"Gaussian{kind.__name__}", (base, kind), members)


def _deepcopy(layer: Any, memo: dict[int, Any]) -> Any:
    """As for any object; the other library's own would make one of its layers again."""
    result = layer.__class__.__new__(layer.__class__)
    memo[id(layer)] = result
    result.__dict__.update(copy.deepcopy(layer.__getstate__(), memo))
    return result
