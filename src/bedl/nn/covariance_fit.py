"""Factors of a layer's squared weights that bring the variances of one pass to those of drawn weights.

    Var(y_o) = own_o + Σ_i κ_oi Σ_δ μ²_oiδ v_iδ + c_o

with i an input (channel), δ an offset of a convolution's kernel and v the variance of what stands there. c_o is what
covariances leave where no input varies much: without it, backgrounds of images come out too sure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["as_layer_has_it", "fitted_factor", "outputs_first", "refinement", "seen_by"]

_NEWTON_STEPS = 20
_REFINEMENTS = 10  # few, because stopping early is what keeps the factors close to each other
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_COMMON = 0.01  # of the variance, at the start
_ROOT = 1 / 8  # of variances, whose means are to agree: the fourth root of standard deviations
_PLACES = 4096  # positions of a convolution's outputs that are looked at


def fitted_factor(own: Tensor, independent: Tensor, true_own: Tensor, between: Tensor, draws: int) -> Tensor:
    """κ such that fourth roots of standard deviations agree in the mean: of own + κ·independent, and as drawn.

    That is between the geometric mean of standard deviations, in which small ones count as much as large ones, and the
    ordinary one, which the largest decide, and nearer to the first. A power q of a variance that is estimated from few
    draws is low by about q(1 − q) (between/total)²/draws, which is put back.

    Args:
        own, independent: Σ s² E[x²] and Σ μ² Var(x), of one pass. shape: (outputs, m)
        true_own, between: Σ s² E[x²] and Var(μ·x), of the draws. shape: (outputs, m)

    Returns:
        shape: (outputs,); 1 where no input varies.
    """
    total = true_own + between
    tiny = torch.finfo(total.dtype).tiny
    known = (total > tiny) & (own + independent > tiny)
    missing = (between / total.clamp_min(tiny)).square() * (_ROOT * (1 - _ROOT) / (draws - 1))
    target = (total.pow(_ROOT) * (1 + missing) * known).sum(1).clamp_min(tiny)
    factor = (between.sum(1) + tiny) / (independent.sum(1) + tiny)
    for _ in range(_NEWTON_STEPS):  # in log κ
        scaled = factor.unsqueeze(1) * independent
        variance = (own + scaled).clamp_min(tiny)
        roots = variance.pow(_ROOT) * known
        present = roots.sum(1).clamp_min(tiny)
        slope = _ROOT * (roots * scaled / variance).sum(1) / present
        factor = factor * ((target / present).log() / slope.clamp_min(5e-4)).clamp(-1, 1).exp()
    return torch.where((independent * known).sum(1) > 0, factor, 1.0)


def refinement(squares: Tensor, v: Tensor, own: Tensor, total: Tensor, groups: int = 1) -> tuple[Tensor, Tensor]:
    """κ and c that bring own + Σ κ squares v + c closer to `total`, in the likelihood of gamma variables.

    Multiplicative steps, which keep what is not negative so (Févotte, Bertin and Durrieu, 2009).

    Args:
        squares: shape (outputs, inputs of a group, offsets)
        v: variances of the inputs. shape: (m, inputs, offsets)
        own, total: variances of the outputs without these terms, and as they should be. shape: (outputs, m)
        groups: into how many inputs and outputs are divided.

    Returns:
        shapes: (outputs, inputs of a group), (outputs,)
    """
    squares = squares.unflatten(0, (groups, -1))  # (groups, o, i, offsets)
    seen = v.unflatten(1, (groups, -1)).movedim(1, 0).flatten(2)  # (groups, m, i·offsets)
    own, total = (t.unflatten(0, (groups, -1)) for t in (own, total))  # (groups, o, m)
    mean = total.mean(-1, keepdim=True)
    least = 1e-6 * mean + torch.finfo(total.dtype).tiny
    varies = (own + squares.flatten(2) @ seen.mT).sum(-1, keepdim=True) > 0  # what the draws vary by is rounding else
    factor, common = torch.ones_like(squares[..., :1]), torch.where(varies, _COMMON * mean, 0.0)

    def by_input(weights: Tensor) -> Tensor:
        return ((weights @ seen).view_as(squares) * squares).sum(-1, keepdim=True)

    for _ in range(_REFINEMENTS):
        fitted = (own + (squares * factor).flatten(2) @ seen.mT + common).clamp_min(least)
        up, down = total.clamp_min(least) / fitted / fitted, fitted.reciprocal()
        wanted, present = by_input(up), by_input(down)
        factor = factor * torch.where(present > 0, wanted / present, 1.0).clamp(0.1, 10)
        grown = common * (up.sum(-1, keepdim=True) / down.sum(-1, keepdim=True)).clamp(0.1, 10)
        common = torch.where(common > 0, grown, 0.0)
    return factor.flatten(0, 1).squeeze(-1), common.flatten()


def seen_by(layer: Any, v: Tensor, sizes_out: Sequence[int]) -> tuple[Tensor, Tensor]:
    """What single outputs of a linear or convolutional layer see, and which outputs these are.

    Args:
        layer: the layer.
        v: variances of its input. shape: (n, inputs, *positions), of linear layers (n, …, inputs)
        sizes_out: how many positions its output has, by axis.

    Returns:
        shapes (m, inputs, offsets) and (m,): numbers of the outputs, positions and points counted as one.
    """
    if isinstance(layer, nn.Linear):
        rows = v.reshape(-1, v.shape[-1], 1)
        return rows, torch.arange(len(rows), device=v.device)
    if isinstance(layer, _TRANSPOSED):
        padded, stride = _spread_out(layer, v, sizes_out), [1] * len(layer.kernel_size)
    else:
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        padded, stride = F.pad(v, layer._reversed_padding_repeated_twice, mode=mode), layer.stride
    spans = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    sizes = [(n - s - 1) // t + 1 for n, s, t in zip(padded.shape[2:], spans, stride, strict=True)]
    count = len(v) * torch.Size(sizes).numel()
    numbers = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:_PLACES].sort().values.to(v.device)
    point, *at = torch.unravel_index(numbers, (len(v), *sizes))
    offsets = torch.cartesian_prod(*(torch.arange(k) for k in layer.kernel_size)).view(-1, len(sizes)).tolist()
    channels = torch.arange(v.shape[1], device=v.device)
    seen = []
    for offset in offsets:
        places = [(a * t + o * d)[:, None] for a, t, o, d in zip(at, stride, offset, layer.dilation, strict=True)]
        index = (point[:, None], channels, *places)
        seen.append(padded[index])
    return torch.stack(seen, -1), numbers


def _spread_out(layer: Any, v: Tensor, sizes: Sequence[int]) -> Tensor:
    """The input of the plain convolution that a transposed one is: zeros between the entries, and around them."""
    spread = v.new_zeros(*v.shape[:2], *((n - 1) * t + 1 for n, t in zip(v.shape[2:], layer.stride, strict=True)))
    every = (slice(None), slice(None), *(slice(None, None, t) for t in layer.stride))
    spread[every] = v
    pads = []
    for n, size, k, d, p in zip(spread.shape[2:], sizes, layer.kernel_size, layer.dilation, layer.padding, strict=True):
        before = d * (k - 1) - p
        pads.append((before, size + d * (k - 1) - n - before))
    return F.pad(spread, [p for pair in reversed(pads) for p in pair])


def outputs_first(layer: Any, weight: Tensor) -> Tensor:
    """A weight as that of a plain convolution or linear layer. shape: (outputs, inputs of a group, *offsets)"""
    if not isinstance(layer, _TRANSPOSED):
        return weight
    by_group = weight.unflatten(0, (layer.groups, -1)).transpose(1, 2).flatten(0, 1)
    return by_group.flip(list(range(2, weight.dim())))


def as_layer_has_it(layer: Any, weight: Tensor) -> Tensor:
    """What `outputs_first` undoes."""
    if not isinstance(layer, _TRANSPOSED):
        return weight
    flipped = weight.flip(list(range(2, weight.dim())))
    return flipped.unflatten(0, (layer.groups, -1)).transpose(1, 2).flatten(0, 1)
