"""One step of a recurrent network, on tensors or Moments; gates and states are taken as independent of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bedl.moments import Moments, as_moments, variance_dtype

__all__ = ["gru_step", "lstm_step", "mixture", "packs", "rnn_step"]

Operand = Any  # a tensor or Moments


def mixture(weight: Operand, a: Operand, b: Operand) -> Operand:
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


def rnn_step(from_input: Operand, from_state: Operand, activation: Callable) -> Operand:
    """shapes: (n, hidden), (n, hidden) -> (n, hidden)"""
    return activation(from_input + from_state)


def lstm_step(from_input: Operand, from_state: Operand, cell: Operand) -> tuple[Operand, Operand]:
    """shapes: (n, 4·hidden), (n, 4·hidden), (n, hidden) -> (n, hidden), (n, hidden)"""
    gates, content = _but_third(from_input + from_state)
    into, forget, out = torch.sigmoid(gates).chunk(3, -1)
    cell = forget * cell + into * torch.tanh(content)
    return out * torch.tanh(cell), cell


def _but_third(gates: Operand) -> tuple[Operand, Operand]:
    """An LSTM's gates (input, forget, output), and what stands between them."""
    into, forget, content, out = gates.chunk(4, -1)
    return torch.cat([into, forget, out], -1), content


def gru_step(from_input: Operand, from_state: Operand, state: Operand) -> Operand:
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
