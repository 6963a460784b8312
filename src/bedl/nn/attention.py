"""Multi-head attention with Gaussian projections."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl.nn.draws import point_value
from bedl.nn.layers import INIT_LOGVAR, GaussianLayer, GaussianLinear

__all__ = ["GaussianMultiheadAttention"]


class GaussianMultiheadAttention(GaussianLayer, nn.MultiheadAttention):
    """`nn.MultiheadAttention` with Gaussian projections, the output's included. Softmax to first order."""

    gaussian_parameters: ClassVar[tuple[str, ...]] = (
        "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight",
    )  # fmt: skip

    def __init__(self, *args: Any, init: str = "second-moment", init_logvar: float = INIT_LOGVAR, **kwargs: Any):
        super().__init__(*args, init=init, init_logvar=init_logvar, **kwargs)
        plain = self.out_proj
        self.out_proj = GaussianLinear(  # type: ignore[assignment]
            plain.in_features, plain.out_features, plain.bias is not None, init=init, init_logvar=init_logvar,
            device=plain.weight.device, dtype=plain.weight.dtype,
        )  # fmt: skip

    in_proj_weight: Any = property(lambda self: self.read("in_proj_weight"))
    q_proj_weight: Any = property(lambda self: self.read("q_proj_weight"))
    k_proj_weight: Any = property(lambda self: self.read("k_proj_weight"))
    v_proj_weight: Any = property(lambda self: self.read("v_proj_weight"))

    takes_groups = False

    @property
    def point_axis(self) -> int:  # type: ignore[override]
        return 0 if self.batch_first else 1

    def fan_in(self) -> float:
        return self.embed_dim

    def _drawn(self) -> Any:
        layer = super()._drawn()
        layer.__dict__["_modules"] = {**self._modules, "out_proj": cast(GaussianLinear, self.out_proj)._drawn()}
        return layer

    def sample(self, query: Any, key: Any, value: Any, key_padding_mask: Tensor | None = None,
               need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
               is_causal: bool = False) -> Any:  # fmt: skip
        axis = 0 if self.batch_first else 1

        def one(q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor | None]:
            layer = self._drawn()
            separate = not self._qkv_same_embed_dim
            return F.multi_head_attention_forward(
                q, k, v, self.embed_dim, self.num_heads, layer.in_proj_weight, self.in_proj_bias, self.bias_k,
                self.bias_v, self.add_zero_attn, self.dropout, layer.out_proj.weight, self.out_proj.bias,
                self.training, padding, need_weights, attn_mask, separate, layer.q_proj_weight, layer.k_proj_weight,
                layer.v_proj_weight, average_attn_weights=average_attn_weights, is_causal=is_causal,
            )  # fmt: skip

        in_dims = (axis, axis, axis, None if key_padding_mask is None else 0)
        out_dims = (axis, 0 if need_weights else None)
        each: Any = torch.func.vmap(one, in_dims, cast(Any, out_dims), randomness="different")
        return each(*(point_value(x) for x in (query, key, value)), key_padding_mask)

    def n_points(self, query: Any, *inputs: Any, **kwargs: Any) -> int:
        return query.shape[self.point_axis]
