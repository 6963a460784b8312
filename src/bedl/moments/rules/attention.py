"""Softmax and attention, to first order in the logits.

*Softmax*: the variance of p = softmax(x) is p_i²[(1 − p_i)²v_i + Σ_{j≠i} p_j²v_j]. It exceeds what a value in [0, 1]
can have, B = p(1 − p), once the logits are uncertain; V·B/(V + B) agrees for small V and obeys.

*Attention* o = Σ_j p_j·x_j: the weights add up to 1, so they must not be taken as independent: where all values agree,
the output has no doubt. A step in score j moves o by p_j(x_j − o), so the scores contribute V = Σ_j p_j²(x_j − o)²
Var(s_j), kept below B = Σ_j p_j(x_j − o)², what choosing one value at random would give. The values contribute
Σ_j E[p_j²] Var(x_j). Queries, keys and values are taken as independent, and so are the scores of one query.

The output head of a classifier uses none of this: it has an integral of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl.moments import Moments, as_moments, variance_dtype
from bedl.moments.dispatch import refusal
from bedl.moments.rules._base import approximate
from bedl.moments.rules.arithmetic import dropout
from bedl.moments.rules.linear import full_precision

Operand = Moments | Tensor
_HOW = "first order, variance bounded by p(1 − p)"


def _spread(p: Tensor, v: Tensor, dim: int) -> Tensor:
    """Σ_j (δ_ij − p_j)² v_j. shapes: (*), (*) -> (*)"""
    squares = p.square() * v
    others = (squares.sum(dim, keepdim=True) - squares).clamp_min(0)  # a sum of squares over j ≠ i, but for rounding
    return (1 - p).square() * v + others


@approximate(_HOW)
def softmax(input: Moments, dim: int | None = None, _stacklevel: Any = 3, dtype: torch.dtype | None = None) -> Moments:
    dtype = _stacklevel if isinstance(_stacklevel, torch.dtype) else dtype  # torch.softmax's third argument
    if dim is None:
        raise refusal(F.softmax, "say which dim it runs over")
    plain = torch.softmax(input.loc, dim, dtype=dtype)
    p = plain.to(input.variance.dtype)
    return Moments(plain, bounded(p.square() * _spread(p, input.variance, dim), p * (1 - p)))


@approximate(_HOW)
def softmin(input: Moments, dim: int | None = None, _stacklevel: Any = 3, dtype: torch.dtype | None = None) -> Moments:
    return softmax(Moments(-input.loc, input.variance), dim, dtype=dtype)


@approximate("first order")
def log_softmax(input: Moments, dim: int | None = None, _stacklevel: Any = 3, dtype: torch.dtype | None = None
                ) -> Moments:  # fmt: skip
    dtype = _stacklevel if isinstance(_stacklevel, torch.dtype) else dtype
    if dim is None:
        raise refusal(F.log_softmax, "say which dim it runs over")
    plain = torch.log_softmax(input.loc, dim, dtype=dtype)
    return Moments(plain, _spread(plain.to(input.variance.dtype).exp(), input.variance, dim))


def bounded(variance: Tensor, bound: Tensor) -> Tensor:
    total = variance + bound
    return variance * bound / torch.where(total > 0, total, 1.0)


def _attend(
    query: Operand, key: Operand, value: Operand, mask: Tensor | None, dropout_p: float, scale: float | None
) -> tuple[Moments, Moments]:
    """Output and attention weights. shapes: (*, L, E), (*, S, E), (*, S, Ev) -> (*, L, Ev), (*, L, S)"""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = as_moments(_masked(torch.matmul(query, key.mT) * scale, mask))  # type: ignore[arg-type]
    weights = softmax(scores, -1)
    x = as_moments(value)
    loc = weights.loc @ x.loc
    with full_precision(loc.device):
        p, wide = weights.loc.to(x.variance.dtype), x.loc.to(x.variance.dtype)
        centred = wide - wide.mean(-2, keepdim=True)  # the differences to o matter, not where the values lie
        o = p @ centred
        share = p.square() * scores.variance
        moved = share @ centred.square() - 2 * o * (share @ centred) + o.square() * share.sum(-1, keepdim=True)
        bound = p @ centred.square() - o.square()
        # both are sums of squares, but for rounding
        variance = bounded(moved.clamp_min(0), bound.clamp_min(0)) + (p.square() + weights.variance) @ x.variance
        if dropout_p:
            noise = dropout_p / (1 - dropout_p)
            variance = variance + noise * ((p.square() + weights.variance) @ (wide.square() + x.variance))
    return Moments(loc, variance), dropout(weights, dropout_p)


_ATTENTION = "softmax to first order; queries, keys and values taken as independent"


@approximate(_ATTENTION)
def scaled_dot_product_attention(
    query: Operand, key: Operand, value: Operand, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False
) -> Moments:  # fmt: skip
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(times, -3) for x in (key, value))
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    return _attend(query, key, value, attn_mask, dropout_p, scale)[0]


def _masked(scores: Any, mask: Tensor | None) -> Any:
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask


def _heads(x: Operand, n: int) -> Operand:
    """(L, N, E) -> (N, heads, L, E/heads)"""
    return x.reshape(x.shape[0], x.shape[1], n, -1).permute(1, 2, 0, 3)


@approximate(_ATTENTION)
def multi_head_attention_forward(
    query: Operand, key: Operand, value: Operand, embed_dim_to_check: int, num_heads: int,
    in_proj_weight: Operand | None, in_proj_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None,
    add_zero_attn: bool, dropout_p: float, out_proj_weight: Operand, out_proj_bias: Tensor | None,
    training: bool = True, key_padding_mask: Tensor | None = None, need_weights: bool = True,
    attn_mask: Tensor | None = None, use_separate_proj_weight: bool = False, q_proj_weight: Operand | None = None,
    k_proj_weight: Operand | None = None, v_proj_weight: Operand | None = None, static_k: Tensor | None = None,
    static_v: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Moments, Moments | None]:  # fmt: skip
    """`nn.MultiheadAttention`: its projections, the attention above, and the way out."""
    func = F.multi_head_attention_forward
    if bias_k is not None or bias_v is not None or add_zero_attn or static_k is not None or static_v is not None:
        raise refusal(func, "bias_k, bias_v, add_zero_attn and static keys or values are not defined")
    batched = query.dim() == 3
    if not batched:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
    if use_separate_proj_weight:
        weights = [q_proj_weight, k_proj_weight, v_proj_weight]
    else:
        assert in_proj_weight is not None
        weights = list(in_proj_weight.chunk(3))
    biases = [None] * 3 if in_proj_bias is None else list(in_proj_bias.chunk(3))
    q, k, v = (_heads(F.linear(x, w, b), num_heads)  # type: ignore[arg-type]
               for x, w, b in zip((query, key, value), weights, biases, strict=True))  # fmt: skip
    mask = _joined_mask(attn_mask, key_padding_mask, query, key, num_heads)
    if is_causal and mask is None:
        raise refusal(func, "is_causal=True needs attn_mask too")
    mixed, shares = _attend(q, k, v, mask, dropout_p if training else 0.0, None)  # (N, heads, L, ·)
    length, batch = query.shape[:2]
    joined: Any = mixed.permute(2, 0, 1, 3).reshape(length, batch, -1)
    out: Any = F.linear(joined, out_proj_weight, out_proj_bias)  # type: ignore[arg-type]
    if not need_weights:
        return (out if batched else out.squeeze(1)), None
    shares = shares.mean(1) if average_attn_weights else shares
    return (out, shares) if batched else (out.squeeze(1), shares.squeeze(0))


def _joined_mask(
    attention: Tensor | None, padding: Tensor | None, query: Operand, key: Operand, heads: int
) -> Tensor | None:
    """Both masks as one that is added to the scores. shapes: (L, S) or (N·heads, L, S); (N, S) -> (N, heads, L, S)"""

    def additive(mask: Tensor) -> Tensor:
        if mask.dtype != torch.bool:
            return mask
        return torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill(mask, -math.inf)

    total = None
    if attention is not None:
        total = additive(attention)
        total = total.view(-1, heads, *total.shape[-2:]) if total.dim() == 3 else total
    if padding is not None:
        keys = additive(padding).view(-1, 1, 1, key.shape[0])
        total = keys if total is None else total + keys
    return total


# One step of a recurrent network, on tensors or Moments; gates and states are taken as independent of each other.


State = Any  # a tensor or Moments


def mixture(weight: State, a: State, b: State) -> State:
    """(1 − z)·a + z·b. As a sum of two products it would count the doubt about z twice. shapes: (*) × 3 -> (*)

    For independent z, a, b the variance is E[(1 − z)²] Var a + E[z²] Var b + Var z (E b − E a)².
    """
    loc = torch.lerp(*(x.loc if isinstance(x, Moments) else x for x in (a, b, weight)))
    if not any(isinstance(x, Moments) for x in (weight, a, b)):
        return loc
    z, a, b = as_moments(weight), as_moments(a), as_moments(b)
    wide = variance_dtype(loc.dtype)
    share, gap = z.loc.to(wide), (b.loc - a.loc).to(wide)
    to_a, to_b = (1 - share).square() + z.variance, share.square() + z.variance
    return Moments(loc, to_a * a.variance + to_b * b.variance + z.variance * gap.square())


def rnn_step(from_input: State, from_state: State, activation: Callable) -> State:
    """shapes: (n, hidden), (n, hidden) -> (n, hidden)"""
    return activation(from_input + from_state)


def lstm_step(from_input: State, from_state: State, cell: State) -> tuple[State, State]:
    """shapes: (n, 4·hidden), (n, 4·hidden), (n, hidden) -> (n, hidden), (n, hidden)"""
    gates, content = _but_third(from_input + from_state)
    into, forget, out = torch.sigmoid(gates).chunk(3, -1)
    cell = forget * cell + into * torch.tanh(content)
    return out * torch.tanh(cell), cell


def _but_third(gates: State) -> tuple[State, State]:
    """An LSTM's gates (input, forget, output), and what stands between them."""
    into, forget, content, out = gates.chunk(4, -1)
    return torch.cat([into, forget, out], -1), content


def gru_step(from_input: State, from_state: State, state: State) -> State:
    """shapes: (n, 3·hidden), (n, 3·hidden), (n, hidden) -> (n, hidden)"""
    (*gates, new), (*gates_of_state, new_of_state) = from_input.chunk(3, -1), from_state.chunk(3, -1)
    reset, keep = torch.sigmoid(torch.cat(gates, -1) + torch.cat(gates_of_state, -1)).chunk(2, -1)
    return mixture(keep, torch.tanh(new + reset * new_of_state), state)


def packs(func: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Moments, Tensor]]:
    """The rule of a function that packs sequences, or unpacks them: it moves entries, and says how many where."""

    def rule(input: Moments, *args: Any, **kwargs: Any) -> tuple[Moments, Tensor]:
        loc, sizes = func(input.loc, *args, **kwargs)
        return Moments(loc, func(input.variance, *args, **kwargs)[0]), sizes

    rule.__name__ = func.__name__
    return rule
