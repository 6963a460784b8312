"""Positions of an image that share one draw of a convolution's weights: how strongly they vary together.

Independent positions would average out; these do not. One number per channel is carried along, the correlation ρ of
two positions, taken as the same for all pairs and at least 0: the mean over P positions has variance
ρσ̄² + (1 − ρ)v̄/P. In a convolution

    Var(mean y_o) = Σ s²_oiδ (m̄²_iδ + ρ_i σ̄²_iδ) + Σ_i ρ_i (Σ_δ μ_oiδ σ̄_iδ)² + Σ μ²_oiδ (1 − ρ_i) v̄_i / P

with m̄ and σ̄ the means over positions of what offset δ of the kernel sees. Behind a ReLU the covariance of two positions
is a power series in ρ that starts with ρ c_p c_q, c = σΦ(m/σ), and ends, at ρ = 1, near the product of the standard
deviations; what is between is taken as of second order. Other functions of single entries, pools and norms keep ρ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl.moments import Moments, as_moments
from bedl.moments.dispatch import find_rule, use_rules
from bedl.moments.numerics import normal_cdf, standardize, std
from bedl.moments.rules.linear import loc_of

_KEPT = (
    "leaky_relu elu selu celu gelu silu mish hardswish hardtanh relu6 hardsigmoid sigmoid tanh softplus prelu "
    "batch_norm instance_norm group_norm dropout dropout2d max_pool2d pad interpolate"
).split()


class Positions(Moments):
    """Moments of an image, with the correlation ρ of its positions. loc: shape (n, c, h, w); together: shape (n, c)"""

    together: Tensor | None
    sigma: Tensor | None  # √variance, once it has been needed

    def __init__(self, loc: Tensor, variance: Tensor, together: Tensor):
        super().__init__(loc, variance)
        self.together, self.sigma = together, None

    def assign_(self, other: Moments) -> Moments:
        super().assign_(other)
        self.together, self.sigma = getattr(other, "together", None), None
        return self


def _std(x: Moments) -> Tensor:
    """Computed once per image. shape: (n, c, h, w)"""
    if not isinstance(x, Positions):
        return std(x.variance)
    if x.sigma is None:
        x.sigma = std(x.variance)
    return x.sigma


def _mean_std(x: Moments) -> Tensor:
    return _std(x).mean((2, 3))


def _together(x: Moments) -> Tensor:
    """ρ as it is known, or 0. shape: (n, c)"""
    known = getattr(x, "together", None)
    return known if known is not None else x.variance.new_zeros(x.shape[:2])


def _in_common(x: Moments) -> Tensor:
    """The covariance of two positions, on average. shape: (n, c)"""
    return _together(x) * _mean_std(x).square()


def _alone(x: Moments) -> Tensor:
    """What would be left of the variance in the mean, were positions independent. shape: (n, c)"""
    return x.variance.mean((2, 3)) / (x.shape[2] * x.shape[3])


def _share(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / torch.where(whole > 0, whole, 1.0), 0.0).clamp(0, 1)


def _located(y: Moments, in_common: Tensor) -> Positions:
    """With ρ from the covariance of two positions."""
    result = Positions(y.loc, y.variance, in_common)
    result.together = _share(in_common, _mean_std(result).square())
    return result


def _offsets(length: int, window: int, stride: int, pads: tuple[int, int], dilation: int, like: Tensor) -> Tensor:
    """Which entries of an axis an offset of the kernel sees, over how many there are. shape: (length, window)"""
    count = (length + sum(pads) - dilation * (window - 1) - 1) // stride + 1
    where = (
        torch.arange(window, device=like.device) * dilation + torch.arange(count, device=like.device)[:, None] * stride
    )
    at = torch.arange(length, device=like.device)[:, None, None] + pads[0]
    return (at == where).any(1).to(like.dtype) / count


def _seen(x: Tensor, window: Any, stride: Any, padding: Any, dilation: Any) -> Tensor:
    """The mean over outputs of what each offset of the kernel sees. shape: (n, c, h, w) -> (n, c, *window)"""
    pads = padding
    if isinstance(padding, str):
        spans = [d * (k - 1) * (padding == "same") for d, k in zip(dilation, window, strict=True)]
        pads = [(s // 2, s - s // 2) for s in spans]
    rows, columns = (
        _offsets(x.shape[2 + i], window[i], stride[i], pads[i] if isinstance(pads[i], tuple) else (pads[i],) * 2,
                 dilation[i], x)
        for i in range(2)
    )  # fmt: skip
    return rows.T @ (x @ columns)


def _pair(value: Any) -> Any:
    return (
        (value, value)
        if isinstance(value, int)
        else value
        if isinstance(value, str)
        else tuple(value) * (2 // len(value))
    )


def _conv2d(rule: Callable) -> Callable:
    def conv2d(input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
               groups: int = 1) -> Moments:  # fmt: skip
        y = rule(input, weight, bias, stride, padding, dilation, groups)
        if y.dim() != 4:
            return y
        how = (weight.shape[2:], _pair(stride), _pair(padding), _pair(dilation))
        wide, (outputs, inputs) = y.variance.dtype, weight.shape[:2]

        def grouped(t: Tensor) -> Tensor:  # (n, c, *) -> (n, groups, c of a group, *)
            return t.unflatten(1, (groups, inputs))

        second = grouped(_seen(loc_of(input).to(wide), *how)).square()
        mu = loc_of(weight).to(wide).unflatten(0, (groups, outputs // groups))
        total: Any = 0.0
        if isinstance(input, Moments):
            rho, sigma = grouped(_together(input)), grouped(_seen(_std(input), *how))
            second = second + rho[..., None, None] * sigma.square()
            total = torch.einsum("goikl,ngikl->ngoi", mu, sigma).square().mul(rho.unsqueeze(2)).sum(-1)
            alone = (1 - rho) * grouped(_alone(input))
            total = (total + torch.einsum("goi,ngi->ngo", mu.square().sum((3, 4)), alone)).flatten(1)
            second = second + alone[..., None, None]
        if isinstance(weight, Moments):
            variance = weight.variance.expand(weight.shape).unflatten(0, (groups, outputs // groups))
            total = total + torch.einsum("goikl,ngikl->ngo", variance, second).flatten(1)
        if not isinstance(total, Tensor):
            return y
        result, alone = Positions(y.loc, y.variance, total), _alone(y)
        result.together = _share(total - alone, _mean_std(result).square() - alone)
        return result

    return conv2d


def _relu(rule: Callable) -> Callable:
    def relu(input: Moments, *args: Any, **kwargs: Any) -> Moments:
        y = rule(input, *args, **kwargs)
        if not isinstance(input, Positions) or input.together is None:
            return y
        sigma, rho = _std(input), input.together
        first = (sigma * normal_cdf(standardize(input.loc.to(sigma.dtype), sigma))).mean((2, 3)).square()
        result = Positions(y.loc, y.variance, rho)
        whole = _mean_std(result).square()
        result.together = _share(rho * first + rho * rho * (whole - first).clamp_min(0), whole)
        return result

    return relu


def _keeps(rule: Callable) -> Callable:
    def keeps(input: Any, *args: Any, **kwargs: Any) -> Any:
        y, rho = rule(input, *args, **kwargs), getattr(input, "together", None)
        return y if rho is None or y is input else Positions(y.loc, y.variance, rho)

    return keeps


def _add(rule: Callable) -> Callable:
    def add(input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        y = rule(input, other, *args, **kwargs)
        parts = [x for x in (input, other) if isinstance(x, Moments)]
        if not any(isinstance(x, Positions) for x in parts) or any(x.shape != y.shape for x in parts) or args or kwargs:
            return y
        total = sum(_in_common(x) for x in parts)
        return _located(y, total)  # type: ignore[arg-type]

    return add


def _add_in_place(rule: Callable) -> Callable:
    out_of_place = find_rule(torch.add)
    assert out_of_place is not None
    add = _add(out_of_place)

    def add_in_place(input: Any, other: Any) -> Any:
        return input.assign_(add(input, other)) if isinstance(input, Positions) else rule(input, other)

    return add_in_place


def _pool(rule: Callable, pool: Callable[..., Tensor]) -> Callable:
    """Averages over windows: of what positions have in common, nothing averages out."""

    def avg_pool(input: Moments, *args: Any, **kwargs: Any) -> Moments:
        y, rho = rule(input, *args, **kwargs), getattr(input, "together", None)
        if rho is None or y.dim() != 4:
            return y
        rho = rho[..., None, None]
        variance = (1 - rho) * y.variance + rho * pool(_std(input), *args, **kwargs).square()
        return _located(Moments(y.loc, variance), _in_common(input))

    return avg_pool


def _cat(rule: Callable) -> Callable:
    def cat(tensors: Any, dim: int = 0) -> Any:
        y = rule(tensors, dim)
        if dim not in (1, -3) or y.dim() != 4 or not any(isinstance(t, Positions) for t in tensors):
            return y
        return Positions(y.loc, y.variance, torch.cat([_together(as_moments(t)) for t in tensors], 1))

    return cat


def _averaged(y: Moments, input: Positions) -> Moments:
    return Moments(y.loc, (_in_common(input) + (1 - _together(input)) * _alone(input)).reshape(y.shape))


def _mean(rule: Callable) -> Callable:
    def mean(input: Moments, dim: Any = None, *args: Any, **kwargs: Any) -> Moments:
        y = rule(input, dim, *args, **kwargs)
        over = sorted(d % 4 for d in dim) if isinstance(dim, (tuple, list)) else []
        return _averaged(y, input) if isinstance(input, Positions) and over == [2, 3] else y

    return mean


def _adaptive(rule: Callable) -> Callable:
    def adaptive_avg_pool2d(input: Moments, output_size: Any) -> Moments:
        y = rule(input, output_size)
        if not isinstance(input, Positions):
            return y
        return _averaged(y, input) if y.shape[2:] == (1, 1) else _pool(rule, F.adaptive_avg_pool2d)(input, output_size)

    return adaptive_avg_pool2d


@contextmanager
def shared_draws() -> Iterator[None]:
    """Inside the block, averages over the positions of an image know that these share one draw of the weights.

    Without it a global average pool divides the variance by the number of positions, and the standard deviations behind
    it come out at 0.3 to 0.9 of what they are. For 2-d convolutions, followed by activations, batch norm, pools,
    residual sums and `torch.cat`; what else there is goes on as without it. A ResNet or DenseNet takes 1.2 to 1.4 times
    as long, networks of few channels more.

    Example:
        >>> import bedl, torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(bedl.GaussianConv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        >>> x = torch.rand(2, 1, 16, 16)
        >>> with bedl.nn.shared_draws():
        ...     variance = net(x).variance
        >>> bool(variance.mean() > 5 * net(x).variance.mean())
        True
    """
    makers: dict[str, Callable] = {
        "conv2d": _conv2d, "relu": _relu, "add": _add, "__add__": _add, "__radd__": _add, "cat": _cat, "mean": _mean,
        "__iadd__": _add_in_place, "add_": _add_in_place, "adaptive_avg_pool2d": _adaptive,
        "avg_pool2d": lambda rule: _pool(rule, F.avg_pool2d), **dict.fromkeys(_KEPT, _keeps),
    }  # fmt: skip
    rules = {}
    for name, make in makers.items():
        for home in (torch, F, torch.Tensor):
            func = getattr(home, name, None)
            rule = find_rule(func) if func is not None else None
            if func is not None and rule is not None:
                rules[func] = make(rule)
    with use_rules(rules):
        yield
