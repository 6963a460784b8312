"""Factors of a layer's squared weights that bring the variances of one pass to those of drawn weights.

    Var(y_o) = own_o + Σ_i κ_oi Σ_δ μ²_oiδ v_iδ + c_o

with i an input (channel), δ an offset of a convolution's kernel and v the variance of what stands there. c_o is what
covariances leave where no input varies much: without it, backgrounds of images come out too sure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl._utils.errors import BEDLError
from bedl.moments import Moments
from bedl.nn import layers
from bedl.nn.calling import Output, as_arguments, call, count_points, has_parts, map_parts, outputs_of, pick
from bedl.nn.draws import Draws, RowLayout, seeded
from bedl.nn.layers import GaussianLayer
from bedl.nn.points import PointsOfLayers
from bedl.nn.sampling import check_not_cached, drawing

_NEWTON_STEPS = 20
_REFINEMENTS = 10  # few, because stopping early is what keeps the factors close to each other
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_COMMON = 0.01  # of the variance, at the start
_ROOT = 1 / 8  # of variances, whose means are to agree: the fourth root of standard deviations
_NEGLIGIBLE = 1e-4  # of the mean variance: behind dead units one pass has some, draws have none, and roots would tell
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
        shape: (outputs,); 1 where no input varies. Points where an output hardly varies do not count.
    """
    total = true_own + between
    tiny = torch.finfo(total.dtype).tiny
    known = (total > _NEGLIGIBLE * total.mean(1, keepdim=True) + tiny) & (own + independent > tiny)
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


# One factor of all weights' variances, by which the outputs of a corrected network vary as those that were learned.
#
# A network learns its weights' variances by what one pass makes of them; the likelihood knows them by nothing else.
# What one pass drops, positions that share a draw above all, may make that a tenth of the true standard deviation.
# After a correction alone the likelihood would meet variances a hundred times as large as those it was learned with.
# With the weights' variances scaled the outputs vary as before, and so do the draws.


_PASSES = 4  # the logarithm of the outputs' variances is nearly linear in that of the factor


def gaussian_layers(net: nn.Module) -> list[GaussianLayer]:
    return [layer for layer in net.modules() if isinstance(layer, GaussianLayer)]


def scale_weights(net: nn.Module, x: Any, learned: Any, output: Output = None) -> None:
    """Scale the variances of a corrected network's weights, in place, until its outputs vary as `learned` does.

    Args:
        net: a network whose layers have factors.
        x: inputs, as the network takes them.
        learned: Moments that it gave for them before it had factors. shape: that of its outputs
        output: which of its outputs these are, if there are several.
    """
    if not isinstance(learned, Moments):
        raise BEDLError(f"correct_variances: keep=True needs outputs with variances, not {type(learned).__name__}")
    tiny = torch.finfo(learned.variance.dtype).tiny
    known = learned.variance > _NEGLIGIBLE * learned.variance.mean()
    if not known.any():
        return
    layers, target = gaussian_layers(net), learned.variance[known].log().mean()
    for _ in range(_PASSES):
        present = outputs_of(net, x, output).variance[known]
        step = target - present.clamp_min(tiny).log().mean()
        _shift(dict.fromkeys(layers, step))
        for layer in layers:
            layer.variance_shift = step.clone() if layer.variance_shift is None else layer.variance_shift + step
            if layer.common_variance is not None:
                layer.common_variance = layer.common_variance * step.exp().to(layer.common_variance)


def undo_rescaling(net: nn.Module) -> None:
    """Give weights their own variances again, up to rounding."""
    layers = gaussian_layers(net)
    _shift({layer: -layer.variance_shift for layer in layers if layer.variance_shift is not None})
    for layer in layers:
        layer.variance_shift = None


def _shift(shifts: Mapping[GaussianLayer, Tensor]) -> None:
    """Add to layers' log-variances; once to those that several have in common."""
    done: set[int] = set()
    for layer, shift in shifts.items():
        for name, logvar in layer.named_parameters(recurse=False):
            if name.endswith("_logvar") and id(logvar) not in done:
                logvar.add_(shift.to(logvar))
                done.add(id(logvar))


# Covariances between a layer's inputs, as factors of its squared weights that are fitted once.
#
# For weights w with means μ and variances s², independent of the layer's input x,
#
#     Var(w·x) = Σ s²_i E[x_i²] + Var(μ·x),      Var(μ·x) = κ Σ μ²_i Var(x_i)
#
# One pass takes κ = 1, as if the x_i were independent. They are not: units share the layer before, the positions of an
# image share one draw of a convolution's weights, and the two branches of a residual sum share their input. κ depends
# on the input only mildly, so a value per output, fitted on some inputs, takes the error off on average. Every input of
# an output then gets a factor of its own, Σ κ_i μ²_i Var(x_i): which inputs vary says which class a point is of, and
# covariances differ from class to class. What is left where nothing varies much is a variance that all points have in
# common. At prediction the factors are part of the squared weights, and cost nothing.


_CORRECTABLE = (
    layers.GaussianLinear, layers.GaussianConv1d, layers.GaussianConv2d, layers.GaussianConv3d,
    layers.GaussianConvTranspose1d, layers.GaussianConvTranspose2d, layers.GaussianConvTranspose3d,
)  # fmt: skip
_DRAWN_AT_ONCE = 2**25  # weights: every data point draws its own
_SHARED_DRAWS = 400  # where all points share a draw, and average out less of its noise
_CLOSE, _TRIAL = 0.04, 0.1  # of the logarithm of variances: what is let be, and what is tried
_SECANTS, _LEAST_SLOPE = 8, 0.2
_OUTPUTS = ("", -1)  # among calls, that of the network
_HELD_AT_ONCE, _CHANNELS = 2**27, 64  # values of a layer, which may have so many times as many as the input

Input = Any  # a tensor or Moments
Calls = dict[tuple[str, int], tuple[Tensor, ...]]  # by the layer's name and how many times it was called before
Net = TypeVar("Net", bound=nn.Module)


@torch.no_grad()
def correct_variances(
    net: Net, x: Input, *, draws: int = 100, seed: int = 0, keep: bool = False, output: Output = None
) -> Net:
    """Fit, in place, what the covariances that one pass drops come to; later passes take it into account.

    The weights are drawn `draws` times for each of some inputs, and every linear or convolutional layer behind the
    first gets factors (for each output and input) such that its standard deviations agree with those of the draws on
    average. What follows the last layers (averages, products, sums of experts) is taken into one more factor of theirs.
    Only variances are scaled; prediction costs no more than before. The factors are part of the state dict.
    They belong to the weights they were fitted for: train first, correct last, and again after more training.

    Args:
        net: a network with Gaussian layers that maps `x` to Moments (of a method, `method.net`).
        x: some 100 inputs like those to predict for, better not learned from, as the network takes them (several in a
            tuple or a dict); no labels. shape: (n, *input)
        draws: of the weights, per input; their noise in a factor is about sqrt(2 / (n·draws)). For one price, more
            inputs are worth more than more draws: 300 with 10 are better than 100 with 30. Where all points share their
            draws (`bedl.sampled` says where), up to 400 are made, as inputs average out less of their noise.
        seed: of these draws; the global random state is left alone.
        keep: whether the outputs are to vary as much as they did before, in the geometric mean over `x`. To this end
            the variances of all weights are scaled by one number; a likelihood that was learned stays as good. By
            default the weights stay, and one pass comes to what they are: mostly more than was learned with.
        output: which of the network's outputs are kept, if there are several, as in `bedl.BEDL`.

    Returns:
        the same network.

    Example:
        >>> import bedl, torch
        >>> from bedl.nn import correct_variances
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(bedl.GaussianConv1d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        ...                     bedl.GaussianLinear(4, 1))
        >>> x = torch.rand(50, 1, 20)
        >>> before = net(x).variance.mean()
        >>> after = correct_variances(net, x)(x).variance.mean()
        >>> bool(after > 1.5 * before)  # positions share their weights, so their average varies more
        True
    """
    if not gaussian_layers(net):
        raise BEDLError(f"correct_variances: {type(net).__name__} has no Gaussian layer; see bedl.bayesianize")
    if not isinstance(x, (Tensor, Moments)) and not has_parts(x):
        raise TypeError(f"correct_variances takes inputs as the network does, a tensor, not {type(x).__name__}")
    if draws < 2 or count_points(x) < 1:
        raise ValueError(f"correct_variances needs at least 2 draws and 1 input, not {draws} and {count_points(x)}")
    check_not_cached(net, "correct_variances")
    remove_correction(net)
    try:
        with _evaluating(net):
            learned = outputs_of(net, x, output) if keep else None
            if keep:  # covariances differ where weights vary less: first roughly so much less, on every third input
                _fit(net, map_parts(lambda part: part[::3], x), draws, seed, output)
                scale_weights(net, x, learned, output)
                _forget_factors(net)
            _fit(net, x, draws, seed, output)
            if keep:
                scale_weights(net, x, learned, output)
    except BaseException:
        remove_correction(net)  # half a correction would be neither
        raise
    return net


@torch.no_grad()
def remove_correction(net: Net) -> Net:
    """Take back, in place, what `correct_variances` has fitted; the network is as before.

    Example:
        >>> import bedl, torch
        >>> from torch import nn
        >>> net = nn.Sequential(bedl.GaussianLinear(2, 8), nn.ReLU(), bedl.GaussianLinear(8, 1))
        >>> x = torch.randn(5, 2)
        >>> before = net(x).variance
        >>> net = bedl.nn.remove_correction(bedl.nn.correct_variances(net, x))
        >>> bool((net(x).variance == before).all())
        True
    """
    undo_rescaling(net)
    _forget_factors(net)
    return net


def _forget_factors(net: nn.Module) -> None:
    for layer in gaussian_layers(net):
        layer.covariance_factor = layer.common_variance = None


def _fit(net: nn.Module, x: Input, draws: int, seed: int, output: Output) -> None:
    with seeded(next(net.parameters()).device, seed):
        truth = _drawn_variances(net, x, draws, output)
    drawn = truth.pop(_OUTPUTS, None)
    layers = _fit_factors(net, x, truth, draws)
    if drawn is not None and layers:
        _fit_outputs(net, x, layers, drawn[1], draws, output)


@torch.no_grad()
def std_ratio(net: nn.Module, x: Input, *, draws: int = 20, seed: int = 0, output: Output = None) -> float:
    """Standard deviations of one pass over those of drawn weights: the geometric mean over points and outputs.

    Below 1, one pass reports too little. With 40 points and 20 draws it is known to some 3 percent.

    Args:
        net: a network with Gaussian layers that maps `x` to Moments (of a method, `method.net`).
        x: inputs as the network takes them. shape: (n, *input)
        draws: of the weights, for each point.
        seed: of these draws; the global random state is left alone.
        output: which of the network's outputs is meant, if there are several, as in `bedl.BEDL`.

    Returns:
        the ratio; NaN if no output varies.

    Example:
        >>> import bedl, torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(bedl.GaussianConv1d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
        >>> 0.3 < bedl.nn.std_ratio(net, torch.rand(40, 1, 20)) < 0.7  # positions share their weights
        True
    """
    with _evaluating(net), seeded(next(net.parameters()).device, seed):
        variance = outputs_of(net, x, output).variance
        with drawing(net, once=True):
            drawn = torch.stack([outputs_of(net, x, output) for _ in range(draws)])
    return log_std_ratios(variance, drawn).mean().exp().item()


def log_std_ratios(variance: Tensor, drawn: Tensor) -> Tensor:
    """Logarithms of standard deviations over those of draws, of all entries that vary; unbiased for normal draws.

    variance: shape (*output); drawn: shape (draws, *output); result: one axis, double
    """
    half = torch.tensor((len(drawn) - 1) / 2, dtype=torch.float64)
    low = torch.digamma(half) - half.log()  # the logarithm of a variance from few draws is low by as much
    logs = (variance.double().log() - drawn.double().var(0).log() + low) / 2
    return logs[logs.isfinite()]


# -- the truth: weights drawn ----------------------------------------------------------------------
class _Spread:
    """Running statistics of a layer over draws: the two terms of its outputs' variance (see the top), by data point."""

    def __init__(self) -> None:
        self.count = 0
        self.rows = RowLayout()  # the order of the points' rows in what the layer is given; here it is point by point
        self.own, self.mean, self.squares = torch.zeros(3).unbind()  # which broadcast to the first update's shape

    def update(self, own: Tensor, y: Tensor) -> None:
        """Merge two sums of squares, by Chan, Golub and LeVeque. own, y: shape (copies, n, *output)"""
        count, share = self.count + len(y), len(y) / (self.count + len(y))
        shift = y.mean(0) - self.mean.to(y)
        between = shift.square() * (self.count * share)
        self.squares = self.squares.to(y) + (y - y.mean(0)).square().sum(0) + between
        self.mean = self.mean.to(y) + shift * share
        self.own = self.own.to(own).lerp(own.mean(0), share)
        self.count = count

    def terms(self) -> tuple[Tensor, Tensor]:
        """Σ s² E[x²] and Var(μ·x). shapes: (n, *output)"""
        return self.own, self.squares / (self.count - 1)

    def in_order(self, term: Tensor) -> Tensor:
        """A term, with its rows as the layer has them. shape: (n, *output)"""
        return self.rows.by_row(term.unflatten(0, (-1, self.rows.per_point)))


Spreads = defaultdict[tuple[str, int], _Spread]  # by call, as above


def _drawn_variances(net: nn.Module, x: Input, draws: int, output: Output) -> Calls:
    """The two terms of the outputs' variance at each call of each layer, and of the network. shapes: (n, *output)"""
    n = count_points(x)
    if _points_share_draws(net, x):
        spreads: Spreads = defaultdict(_Spread)
        _draw(net, x, max(draws, min(draws * n, _SHARED_DRAWS)), 1, "call", spreads, output)
        return {key: spread.terms() for key, spread in spreads.items()}
    at_once = max(1, _DRAWN_AT_ONCE // max((layer.weight_mean.numel() for _, layer in _correctable(net)), default=1))
    sizes: list[int] = []
    map_parts(lambda part: sizes.append(part[0].numel()), x)
    at_once = max(1, min(at_once, _HELD_AT_ONCE // (_CHANNELS * max(sizes))))
    parts: list[Spreads] = []
    for i in range(0, n, at_once):
        part = map_parts(lambda p, i=i: p[i : i + at_once], x)  # type: ignore[misc]
        rounds = math.ceil(draws / max(1, at_once // count_points(part)))
        parts.append(defaultdict(_Spread))
        _draw(net, part, rounds, math.ceil(draws / rounds), "point", parts[-1], output)
    return {
        key: tuple(spread.in_order(torch.cat(terms)) for terms in zip(*(p[key].terms() for p in parts), strict=True))
        for key, spread in parts[0].items()
    }


def _points_share_draws(net: nn.Module, x: Input) -> bool:
    """Whether there is a weight of which all points share a draw, so that points repeated would be no more draws."""
    twice = map_parts(lambda part: torch.cat([part, part]), x)  # a single point would share it with nobody
    points = PointsOfLayers(net)
    return bool(points.notes(points.of_call(net, *as_arguments(twice))))


def _draw(net: nn.Module, x: Input, rounds: int, copies: int, per: str, spreads: Spreads, output: Output) -> None:
    """Run the network, each time with so many copies of the inputs, and update the spreads of its layers' outputs."""
    n = count_points(x)

    def watch(key: tuple[str, int], layer: GaussianLayer, value: Input) -> None:
        value = value.sample() if isinstance(value, Moments) else value
        pair, draws, spread = layer.gaussian("weight"), cast(Draws, layer.drawn), spreads[key]
        own = _linear_map(layer, pair.variance)(value.to(pair.variance.dtype).square())
        y = _linear_map(layer, pair.loc.to(pair.variance.dtype))(value)
        if per == "point":
            spread.rows = rows = draws.rows(layer, len(value))
            own, y = (rows.by_point(t).flatten(0, 1).unflatten(0, (copies, -1)) for t in (own, y))
        else:
            own, y = own.unsqueeze(0), y.unsqueeze(0)
        spread.update(own, y)

    with drawing(net, once=True, per=per):
        for _ in range(rounds):
            with _watched(net, watch):
                given = call(net, map_parts(lambda part: part.repeat(copies, *[1] * (part.dim() - 1)), x))
            y = _output_by_point(given, output, copies * n)
            if y is not None:
                y = y.to(torch.promote_types(y.dtype, torch.float32)).unflatten(0, (copies, n))
                spreads[_OUTPUTS].update(torch.zeros_like(y), y)


def _output_by_point(given: Any, output: Output, n: int) -> Any:
    """The output that a head reads, or None: there are several, or it has not one row for each of the n points."""
    try:
        y = pick(given, output)
    except (BEDLError, AttributeError):  # functions that read an output may ask for Moments
        return None
    return y if isinstance(y, (Tensor, Moments)) and y.dim() and len(y) == n and y.is_floating_point() else None


# -- the fit ---------------------------------------------------------------------------------------
class _Call(NamedTuple):
    """What a layer was given, and by output the terms of its variance: of one pass, then of the draws."""

    v: Tensor
    sizes: Sequence[int]
    own: Tensor
    true_own: Tensor
    between: Tensor


def _fit_factors(net: nn.Module, x: Input, truth: Calls, draws: int) -> list[GaussianLayer]:
    """One pass from the front: every layer's factor is fitted on its corrected inputs, then used for its output.

    Returns:
        the layers that have factors, in the order of their first calls.
    """
    corrected: dict[GaussianLayer, None] = {}
    seen: defaultdict[str, list[_Call]] = defaultdict(list)

    def fit(key: tuple[str, int], layer: GaussianLayer, value: Input) -> None:
        if not isinstance(value, Moments):
            return  # plain inputs have no covariance
        pair, v = layer.gaussian("weight"), value.variance
        squares = pair.loc.to(v.dtype).square()
        own = _linear_map(layer, pair.variance)(value.loc.to(v.dtype).square() + v)
        seen[key[0]].append(_Call(v, own.shape[2:], *(_by_output(layer, t) for t in (own, *truth[key]))))
        calls = seen[key[0]]  # a layer that is called again is fitted to all its calls so far
        own, true_own, between = (torch.cat(t, 1) for t in zip(*(call[2:] for call in calls), strict=True))

        def factor_of(squares: Tensor, own: Tensor) -> Tensor:
            independent = torch.cat([_by_output(layer, _linear_map(layer, squares)(call.v)) for call in calls], 1)
            return layer.per_weight(fitted_factor(own, independent, true_own, between, draws))

        factor = factor_of(squares, own)
        refined, common = _refined(layer, squares * factor, calls)
        factor = factor * refined
        layer.covariance_factor = factor * factor_of(squares * factor, own + common[:, None])
        layer.common_variance = common
        corrected[layer] = None

    with _watched(net, fit):
        call(net, x)
    return list(corrected)


def _fit_outputs(
    net: nn.Module, x: Input, layers: list[GaussianLayer], drawn: Tensor, draws: int, output: Output
) -> None:
    """Scale the factors of the last layers by one number, such that the outputs vary as drawn, in the mean of roots.

    So many of the last layers as the outputs' variance mostly comes from: one, or the last of each expert of a mixture.
    """
    y = _output_by_point(call(net, x), output, len(drawn))
    if not isinstance(y, Moments):
        return
    tiny = torch.finfo(drawn.dtype).tiny
    known = (drawn > _NEGLIGIBLE * drawn.mean() + tiny) & (y.variance > tiny)
    if not known.any():
        return

    def level(variance: Tensor) -> float:
        return variance[known].pow(_ROOT).mean().log().item() / _ROOT

    def present() -> float:
        return level(outputs_of(net, x, output).variance)

    target = level(drawn) + math.log1p(_ROOT * (1 - _ROOT) / (draws - 1)) / _ROOT
    before = level(y.variance)
    if abs(target - before) < _CLOSE:
        return
    for count in range(1, len(layers) + 1):
        last, step = layers[-count:], _TRIAL
        _scale_factors(last, step)
        now = present()
        if now - before > step / 2 or count == len(layers):
            break
        _scale_factors(last, -step)
    for _ in range(_SECANTS):
        slope = max((now - before) / step, _LEAST_SLOPE)
        step = min(max((target - now) / slope, -2.0), 2.0)
        if abs(target - now) < _CLOSE / 10:
            break
        _scale_factors(last, step)
        before, now = now, present()


def _scale_factors(layers: list[GaussianLayer], log_scale: float) -> None:
    for layer in layers:
        layer.covariance_factor = cast(Tensor, layer.covariance_factor) * math.exp(log_scale)
        layer.common_variance = cast(Tensor, layer.common_variance) * math.exp(log_scale)


def _by_output(layer: GaussianLayer, values: Tensor) -> Tensor:
    """shape: (n, …, outputs) or (n, outputs, …) -> (outputs, m)"""
    return values.movedim(-1 if isinstance(layer, nn.Linear) else 1, 0).flatten(1)


def _refined(layer: GaussianLayer, squares: Tensor, calls: list[_Call]) -> tuple[Tensor, Tensor]:
    """Factors by input, in a shape that broadcasts to the weight, and variances by output."""
    squares = outputs_first(layer, squares)
    parts = [(call, *seen_by(layer, call.v, call.sizes)) for call in calls]
    v = torch.cat([seen for _, seen, _ in parts])
    own = torch.cat([call.own[:, at] for call, _, at in parts], 1)
    total = torch.cat([(call.true_own + call.between)[:, at] for call, _, at in parts], 1)
    by_offset = squares.reshape(*squares.shape[:2], -1)
    found, common = refinement(by_offset, v, own, total, getattr(layer, "groups", 1))
    return as_layer_has_it(layer, found.view(*found.shape, *[1] * (squares.dim() - 2))), common


# -- what both passes need -------------------------------------------------------------------------
def _correctable(net: nn.Module) -> list[tuple[str, Any]]:
    return [(name, layer) for name, layer in net.named_modules() if isinstance(layer, _CORRECTABLE)]


def _linear_map(layer: GaussianLayer, weight: Tensor) -> Callable[[Tensor], Tensor]:
    """The layer's linear map with this weight, without bias."""
    plain = layer.with_weights({"weight": weight, "bias": None})
    return lambda x: plain.forward(x.to(weight.dtype))


@contextmanager
def _watched(net: nn.Module, watch: Callable[[tuple[str, int], GaussianLayer, Input], None]) -> Iterator[None]:
    """Inside the block, `watch` sees the input of each layer that can be corrected before the layer does."""
    calls: dict[str, int] = {}

    def hook(name: str) -> Callable:
        def before(layer: Any, inputs: tuple) -> None:
            calls[name] = calls.get(name, -1) + 1
            watch((name, calls[name]), layer, inputs[0])

        return before

    handles = [layer.register_forward_pre_hook(hook(name)) for name, layer in _correctable(net)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(net: nn.Module) -> Iterator[None]:
    before = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
