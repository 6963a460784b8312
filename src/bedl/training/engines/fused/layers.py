"""Parameters of many networks as rows of one matrix, seen as the tensors they are, and room for their derivatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from bedl import _kernels
from bedl.moments import Moments, numerics
from bedl.moments.numerics import NEGLIGIBLE
from bedl.moments.rules.relu import relu_moments, relu_moments_backward
from bedl.nn.tabular import soft_clip


def parameter_order(names: Sequence[str]) -> list[str]:
    """The order of parameters in a row: means, their log-variances in the same order, all others.

    What is done to all Gaussian weights can so be done in one go.

    Example:
        >>> parameter_order(["0.weight_mean", "0.weight_logvar", "0.bias", "1.weight_mean", "1.weight_logvar"])
        ['0.weight_mean', '1.weight_mean', '0.weight_logvar', '1.weight_logvar', '0.bias']
    """
    means = [name for name in names if name.endswith("_mean")]
    logvars = [name.removesuffix("_mean") + "_logvar" for name in means]
    if not set(logvars) <= set(names):
        return list(names)
    return [*means, *logvars, *(name for name in names if name not in {*means, *logvars})]


class Weight(NamedTuple):
    """A Gaussian weight of all replicas, and where the derivatives go. shapes: (R, *shape)"""

    mean: Tensor
    variance: Tensor
    second_moment: Tensor
    by_mean: Tensor
    by_variance: Tensor
    by_second_moment: Tensor


class FlatParameters:
    """A matrix of parameters with a row per replica, and what all layers share: variances, derivatives.

    Args:
        names, shapes: of the parameters, in the order of `parameter_order`.
        parameters: shape (R, P)
        count: how many of the first names are means, which as many log-variances follow.

    Attributes:
        gradient: of each replica's loss. shape: (R, P)
        in_c: whether kernels do what they can.
    """

    def __init__(self, names: Sequence[str], shapes: Sequence[torch.Size], parameters: Tensor, count: int):
        sizes = [shape.numel() for shape in shapes]
        self.places = {
            name: (sum(sizes[:i]), size, shape)
            for i, (name, size, shape) in enumerate(zip(names, sizes, shapes, strict=True))
        }
        self.parameters, self.gradient = parameters, torch.zeros_like(parameters)
        self.in_c = False
        self.weights = sum(sizes[:count])
        made = [parameters.new_zeros(len(parameters), self.weights) for _ in range(4)]
        self.variance, self.second_moment, self.by_variance, self.by_second_moment = made
        self.mean, self.logvar = parameters[:, : self.weights], parameters[:, self.weights : 2 * self.weights]
        self.by_mean, self.by_logvar = (
            self.gradient[:, : self.weights],
            self.gradient[:, self.weights : 2 * self.weights],
        )

    def of(self, name: str) -> Tensor:
        """A parameter. shape: (R, *shape)"""
        return self._part(self.parameters, name)

    def by(self, name: str) -> Tensor:
        """Room for the derivatives by it. shape: (R, *shape)"""
        return self._part(self.gradient, name)

    def weight(self, name: str) -> Weight:
        """The Gaussian weight `name` + "_mean" and `name` + "_logvar"."""
        sources = (self.parameters, self.variance, self.second_moment, self.gradient, self.by_variance,
                   self.by_second_moment)  # fmt: skip
        return Weight(*(self._part(source, name + "_mean") for source in sources))

    def _part(self, source: Tensor, name: str) -> Tensor:
        start, size, shape = self.places[name]
        return source[:, start : start + size].unflatten(1, shape)

    def refresh(self) -> Tensor:
        """Compute what depends on the parameters alone: variances, second moments. Returns each replica's divergence
        of all Gaussian weights from N(0, 1). shape: (R,)
        """
        if self.in_c:
            return _kernels.training.weights(self.mean, self.logvar, self.variance, self.second_moment)
        torch.exp(self.logvar, out=self.variance)
        torch.addcmul(self.variance, self.mean, self.mean, out=self.second_moment)
        return 0.5 * (self.second_moment - 1 - self.logvar).sum(1)

    def vjp(self, pull: Tensor) -> None:
        """Derivatives by means and log-variances, of those by variances and second moments.

        Args:
            pull: a factor on the derivatives of the divergence that `refresh` gives. shape: (R,)
        """
        if self.in_c:
            _kernels.training.weights_gradients(
                pull.to(self.mean.dtype), self.mean, self.variance, self.by_variance, self.by_second_moment,
                self.by_mean, self.by_logvar,
            )  # fmt: skip
            return
        factor = pull.to(self.mean.dtype).unsqueeze(1)
        self.by_mean.addcmul_(self.by_second_moment, self.mean, value=2).addcmul_(factor, self.mean)
        by_variance = (self.by_variance + self.by_second_moment).mul_(self.variance)
        self.by_logvar.copy_(by_variance.add_(0.5 * factor * (self.variance - 1)))


# Layers of many networks at once, each with its backward pass written out: replicas are one more axis in front.
#
# Twins of `bedl.moments.rules` and `bedl.nn.tabular` for parameters that stand in rows (see `rows`): `torch.func.vmap`
# and autograd would come to the same numbers, in many times the calls. A layer keeps what its backward pass needs until
# the next forward pass, in memory that it uses again.


MAX_CACHED_SIZE = 1024  # rows or columns of matrices; the library's products are as fast with more


class Pair(NamedTuple):
    """Means and variances of all replicas' values, or the derivatives of the losses by them. shapes: (R, n, k)

    Attributes:
        variance: None where values are known; of derivatives, where nobody asks for it.
    """

    loc: Tensor
    variance: Tensor | None


class Layer(Protocol):
    def forward(self, x: Pair) -> Pair: ...

    def backward(self, by: Pair, inputs: bool) -> Pair | None:
        """Write the derivatives by the parameters, and give those by what came in, if `inputs` asks for them."""


class Buffers(dict[str, Tensor]):
    """Results are written where the last ones of the same shape were: fresh memory costs more than small products."""

    def like(self, name: str, x: Tensor, last: int | None = None) -> Tensor:
        """Room for a result. shape: as `x`, but for the last axis"""
        shape = x.shape if last is None else (*x.shape[:-1], last)
        found = self.get(f"{name}{shape[1]}")
        if found is None or found.shape != shape:
            found = self[f"{name}{shape[1]}"] = torch.empty(shape, dtype=x.dtype, device=x.device)
        return found


class Affine:
    """Gaussian weights w ~ N(mu, s²) on inputs N(m, v): mean mu·m, variance (mu² + s²)·v + s²·m².

    Args:
        rows: all parameters.
        weight: where its pair is.
        bias: its name, if there is one.
    """

    def __init__(self, rows: FlatParameters, weight: Weight, bias: str | None):
        self.rows, self.weight = rows, weight
        self.bias = None if bias is None else rows.of(bias)
        self.by_bias = None if bias is None else rows.by(bias)
        self.room = Buffers()

    def forward(self, x: Pair) -> Pair:
        w, room = self.weight, self.room
        loc = room.like("loc", x.loc, w.mean.shape[1])
        if self._in_c(x):
            square, variance = room.like("square", x.loc), room.like("variance", loc)
            _kernels.training.affine(w[:3], self.bias, *x, square, loc, variance)
            self.x, self.square = x, square
            return Pair(loc, variance)
        if self.bias is None:
            torch.bmm(x.loc, w.mean.mT, out=loc)
        else:
            torch.baddbmm(self.bias.unsqueeze(1), x.loc, w.mean.mT, out=loc)
        square = torch.mul(x.loc, x.loc, out=room.like("square", x.loc))
        variance = torch.bmm(square, w.variance.mT, out=room.like("variance", loc))
        if x.variance is not None:
            variance.baddbmm_(x.variance, w.second_moment.mT)
        self.x, self.square = x, square
        return Pair(loc, variance)

    def backward(self, by: Pair, inputs: bool) -> Pair | None:
        w, x, room = self.weight, self.x, self.room
        assert by.variance is not None
        if self._in_c(x) and self._in_c(by):
            to = [
                room.like(name, x.loc) if inputs and part is not None else None
                for name, part in (("by_loc", x.loc), ("by_variance", x.variance))
            ]
            _kernels.training.affine_gradients(
                w[:3], *x, self.square, by.loc, by.variance, (*w[3:], self.by_bias), to
            )  # fmt: skip
            return Pair(*to) if inputs else None  # type: ignore[arg-type]
        torch.bmm(by.loc.mT, x.loc, out=w.by_mean)
        torch.bmm(by.variance.mT, self.square, out=w.by_variance)
        if self.by_bias is not None:
            torch.sum(by.loc, 1, out=self.by_bias)
        if x.variance is not None:
            torch.bmm(by.variance.mT, x.variance, out=w.by_second_moment)
        if not inputs:
            return None
        by_loc = torch.bmm(by.loc, w.mean, out=room.like("by_loc", x.loc))
        by_square = torch.bmm(by.variance, w.variance, out=room.like("by_square", x.loc))
        by_loc.addcmul_(by_square, x.loc, value=2)
        if x.variance is None:
            return Pair(by_loc, None)
        return Pair(by_loc, torch.bmm(by.variance, w.second_moment, out=room.like("by_variance", x.loc)))

    def _in_c(self, x: Pair) -> bool:
        """Whether the kernel takes it: products that fit into a cache, and as many networks as there are threads."""
        fits = max(x.loc.shape[1:]) <= MAX_CACHED_SIZE and len(x.loc) >= torch.get_num_threads()
        return self.rows.in_c and fits and all(part is None or part.is_contiguous() for part in x)


class Activation:
    """An activation, entry by entry: ReLU by its own rule, any other as its module and autograd have it."""

    def __init__(self, rows: FlatParameters, module: nn.Module):
        self.rows, self.module, self.rectifies = rows, module, type(module) is nn.ReLU
        self.room = Buffers()

    def forward(self, x: Pair) -> Pair:
        if self.rectifies and x.variance is not None:
            if self.rows.in_c:
                y = Pair(self.room.like("loc", x.loc), self.room.like("variance", x.loc))
                _kernels.training.relu_moments((*x, *y), *numerics.HALF_LINE, NEGLIGIBLE[x.loc.dtype])  # type: ignore
            else:
                y = Pair(*relu_moments(x.loc, x.variance, alone=True))
            self.x, self.y = x, y
            return y
        with torch.enable_grad():
            self.x = Pair(*(None if part is None else part.detach().requires_grad_() for part in x))  # type: ignore
            y = self.module(self.x.loc if self.x.variance is None else Moments(self.x.loc, self.x.variance))
            self.y = Pair(y, None) if isinstance(y, Tensor) else Pair(y.loc, y.variance)
        return Pair(*(None if part is None else part.detach() for part in self.y))  # type: ignore[arg-type]

    def backward(self, by: Pair, inputs: bool) -> Pair | None:
        if not inputs:
            return None
        if self.rectifies and self.x.variance is not None and by.variance is not None:
            moments = (self.x.loc, self.x.variance, self.y.loc, by.loc, by.variance)
            if self.rows.in_c:
                made = self.room.like("by_loc", by.loc), self.room.like("by_variance", by.loc)
                _kernels.training.relu_moments_backward(
                    (*moments, *made), *numerics.HALF_LINE, NEGLIGIBLE[by.loc.dtype]
                )
                return Pair(*made)
            return Pair(*relu_moments_backward(*moments, alone=True))
        outputs, derivatives, sources = ([part for part in pair if part is not None] for pair in (self.y, by, self.x))
        found = torch.autograd.grad(outputs, sources, derivatives)
        return Pair(found[0], found[1] if len(found) > 1 else None)


class Scaling:
    """(x − loc) / scale in front of a network. loc, scale: shape (d,), or (R, 1, d) where replicas differ"""

    def __init__(self, loc: Tensor, scale: Tensor):
        self.loc, self.scale = loc, scale

    def forward(self, x: Pair) -> Pair:
        return Pair((x.loc - self.loc) / self.scale, None if x.variance is None else x.variance / self.scale.square())

    def backward(self, by: Pair, inputs: bool) -> Pair | None:
        if not inputs:
            return None
        return Pair(by.loc / self.scale, None if by.variance is None else by.variance / self.scale.square())


class Codes:
    """`bedl.nn.QuantileCodes` of known inputs. column, low, width: shape (bins,)"""

    def __init__(self, column: Tensor, low: Tensor, width: Tensor):
        self.column, self.low, self.width = column, low, width

    def forward(self, x: Pair) -> Pair:
        codes = ((x.loc[..., self.column] - self.low) / self.width).clamp_(0.0, 1.0)
        return Pair(torch.cat([soft_clip(x.loc), codes], -1), None)

    def backward(self, by: Pair, inputs: bool) -> Pair | None:
        assert not inputs, "codes stand in front of everything that learns"
        return None


class Embedding:
    """`bedl.nn.PeriodicEmbedding` of known inputs: each column bounded, beside a few numbers made of its waves."""

    def __init__(self, rows: FlatParameters, prefix: str, size: int):
        self.rows, self.size, self.room = rows, size, Buffers()
        names = ("frequency", "phase", "weight", "bias") if size else ()
        self.parameters = [rows.of(prefix + name) for name in names]
        self.by = [rows.by(prefix + name) for name in names]

    def forward(self, x: Pair) -> Pair:
        z = soft_clip(x.loc)
        self.z = z
        if not self.size:
            return Pair(z, None)
        frequency, phase, weight, bias = self.parameters
        made = self.room.like("made", z, z.shape[-1] * (1 + self.size))
        if self._in_c():
            _kernels.training.columns(z, frequency, phase, weight, bias, made)
            return Pair(made, None)
        waves = torch.cos(self._angles(z, frequency, phase))  # shape: (R, d, n, waves)
        made[..., : z.shape[-1]] = z
        made[..., z.shape[-1] :] = (torch.matmul(waves, weight) + bias.unsqueeze(2)).transpose(1, 2).flatten(2)
        return Pair(made, None)

    def backward(self, by: Pair, inputs: bool) -> Pair | None:
        assert not inputs, "columns stand in front of everything that learns"
        if not self.size:
            return None
        z = self.z
        if self._in_c():
            _kernels.training.columns_gradients(z, *self.parameters[:3], by.loc, *self.by)
            return None
        frequency, phase, weight, _ = self.parameters
        by_frequency, by_phase, by_weight, by_bias = self.by
        angles = self._angles(z, frequency, phase)
        by_made = by.loc[..., z.shape[-1] :].unflatten(2, (-1, self.size)).transpose(1, 2)  # shape: (R, d, n, size)
        by_bias.copy_(by_made.sum(2))
        by_weight.copy_(torch.matmul(torch.cos(angles).mT, by_made))
        by_angles = torch.matmul(by_made, weight.mT) * -torch.sin(angles)
        by_phase.copy_(by_angles.sum(2))
        by_frequency.copy_((by_angles * z.mT.unsqueeze(3)).sum(2).mul_(2 * math.pi))
        return None

    def _in_c(self) -> bool:
        return self.rows.in_c and self.size <= _kernels.training.MAX_SIZE

    @staticmethod
    def _angles(z: Tensor, frequency: Tensor, phase: Tensor) -> Tensor:
        """shape: (R, d, n, waves)"""
        return 2 * math.pi * z.mT.unsqueeze(3) * frequency.unsqueeze(2) + phase.unsqueeze(2)


class Shortcut:
    """`bedl.nn.tabular.SkipLinear`: a network behind columns, and a linear map of the bounded ones beside it."""

    def __init__(self, rows: FlatParameters, prefix: str, columns: Embedding, body: Layer):
        self.columns, self.body = columns, body
        self.weight, self.by_weight = (rows.of(prefix + "shortcut.weight"), rows.by(prefix + "shortcut.weight"))

    def forward(self, x: Pair) -> Pair:
        embedded = self.columns.forward(x)
        y = self.body.forward(embedded)
        return Pair(y.loc.baddbmm_(self.columns.z, self.weight.mT), y.variance)

    def backward(self, by: Pair, inputs: bool) -> Pair | None:
        torch.bmm(by.loc.mT, self.columns.z, out=self.by_weight)
        inner = self.body.backward(by, self.columns.size > 0)
        return None if inner is None else self.columns.backward(inner, inputs)


class Chain:
    """Layers one after the other; those before the first with parameters are asked for no derivatives."""

    def __init__(self, layers: Sequence[Layer]):
        self.layers = list(layers)
        learns = [not isinstance(layer, (Activation, Scaling)) for layer in layers]
        self.first = learns.index(True) if any(learns) else len(learns)

    def forward(self, x: Pair) -> Pair:
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def backward(self, by: Pair, inputs: bool) -> Pair | None:
        for number in range(len(self.layers) - 1, -1, -1):
            wanted = inputs or number > self.first
            found = self.layers[number].backward(by, wanted)
            if found is None:
                break
            by = found
        return by if inputs else None
