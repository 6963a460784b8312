"""Methods of a known build, run as one without `torch.func.vmap`, and their losses, most of them in C."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.func import vmap

from bedl import _kernels
from bedl.heads import Dirichlet, Head, Normal
from bedl.heads.integrals import CURVES, nodes
from bedl.methods import Batch, Method
from bedl.moments import Moments, numerics
from bedl.moments.numerics import NEGLIGIBLE
from bedl.moments.rules.relu import relu_moments, relu_moments_backward
from bedl.nn import GaussianLinear
from bedl.nn.tabular import PeriodicEmbedding, QuantileCodes, SkipLinear, Standardize, soft_clip
from bedl.objectives import PAC, ForwardPass, Known, MarginalLikelihood, Sum, Unknown, WeightPrior
from bedl.training.callbacks import log_prob_of


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
    """`bedl.nn.QuantileCodes` of known inputs, the same for all replicas."""

    def __init__(self, module: QuantileCodes):
        self.module = module

    def forward(self, x: Pair) -> Pair:
        return Pair(self.module(x.loc), None)

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


class KernelLoss:
    """Losses and their derivatives by the outputs, in one call.

    Args:
        head: it.
        terms: by what they are; `MarginalLikelihood` is one of them.
        strengths: those that differ between replicas, by the kind of term. shapes: (R,)
    """

    knows: ClassVar[set[type]]  # terms

    def __init__(self, head: Any, terms: dict[type, Any], strengths: dict[type, Tensor]):
        self.head, self.terms, self.strengths = head, terms, strengths
        self.n_train = torch.empty(0)
        self.numbers = torch.empty(0)

    def supported(self, outputs: Pair, batch: Batch) -> bool:
        assert outputs.variance is not None
        copies = outputs.loc.shape[1] - batch.y.shape[1]
        fits = copies == 0 or (Unknown in self.terms and (batch.weight is None or copies <= batch.y.shape[1]))
        return fits and self.takes(batch.y) and _kernels.supported(outputs.loc, outputs.variance)

    def __call__(self, outputs: Pair, batch: Batch) -> tuple[Tensor, Pair]:
        """Losses, shape (R,), and their derivatives by the outputs, as `OutputLoss` gives them."""
        loc, variance = outputs
        assert variance is not None
        assert isinstance(batch.n_train, Tensor)
        if not torch.equal(self.n_train, batch.n_train):
            self.n_train, self.numbers = batch.n_train, self._numbers(batch.n_train)
        y = self.head.check_targets(batch.y, loc.shape[:1] + batch.y.shape[1:2]).contiguous()
        weight = None if batch.weight is None else batch.weight.float().contiguous()
        by = torch.empty_like(loc), torch.empty_like(loc)
        return self.losses(loc, variance, y, weight, by), Pair(*by)

    def _numbers(self, n_train: Tensor) -> Tensor:
        """What the kernel wants to know of each replica, see there. shape: (R, k)"""
        return torch.stack(self.of_replicas(n_train), 1).float().contiguous()

    def strength(self, kind: type, n_train: Tensor) -> Tensor:
        """shape: (R,)"""
        term = self.terms.get(kind)
        return self.strengths.get(kind, torch.zeros_like(n_train) + (0.0 if term is None else term.strength))

    def excess(self, n_train: Tensor) -> Tensor:
        """What `Known` adds to the logarithm of the ignorance, see `Head.log_ignorance`. shape: (R,)"""
        known = self.terms.get(Known)
        return torch.zeros_like(n_train) if known is None else (n_train / known.observations).log()

    # -- what differs between heads ---------------------------------------------------------------
    def takes(self, y: Tensor) -> bool:
        """Whether the kernel can read such targets."""
        raise NotImplementedError

    def of_replicas(self, n_train: Tensor) -> list[Tensor]:
        """The kernel's `strengths`. shapes: (R,)"""
        raise NotImplementedError

    def losses(
        self, loc: Tensor, variance: Tensor, y: Tensor, weight: Tensor | None, by: tuple[Tensor, Tensor]
    ) -> Tensor:
        """shape: (R,)"""
        raise NotImplementedError


class NormalLoss(KernelLoss):
    """That of `Normal`."""

    knows: ClassVar[set[type]] = {MarginalLikelihood, PAC, Known, Unknown}

    def takes(self, y: Tensor) -> bool:
        return y.dtype is torch.float32

    def of_replicas(self, n_train: Tensor) -> list[Tensor]:
        pac = self.terms.get(PAC)
        rest = torch.zeros_like(n_train) if pac is None else self.head.complexity - math.log(pac.delta) / n_train
        strengths = [self.strength(kind, n_train) for kind in (PAC, Known, Unknown)]
        return [strengths[0], rest, strengths[1], self.excess(n_train), strengths[2]]

    def losses(
        self, loc: Tensor, variance: Tensor, y: Tensor, weight: Tensor | None, by: tuple[Tensor, Tensor]
    ) -> Tensor:
        learned, log_beta = self.head.noise == "learned", float(self.head.log_beta)
        return _kernels.training.normal_loss(
            loc, variance, y, weight, self.numbers, learned, log_beta, self.head.prior_precision, *by
        )


class DirichletLoss(KernelLoss):
    """That of `Dirichlet`."""

    knows: ClassVar[set[type]] = {MarginalLikelihood, Known, Unknown}

    def takes(self, y: Tensor) -> bool:
        return y.dtype in (torch.int64, torch.float32)

    def of_replicas(self, n_train: Tensor) -> list[Tensor]:
        return [self.strength(Known, n_train), self.excess(n_train), self.strength(Unknown, n_train)]

    def losses(
        self, loc: Tensor, variance: Tensor, y: Tensor, weight: Tensor | None, by: tuple[Tensor, Tensor]
    ) -> Tensor:
        mixture = nodes.NUMBERS[self.head.components]
        shares = y if y.is_floating_point() else nn.functional.one_hot(y, self.head.n_classes).float()
        return _kernels.training.dirichlet_loss(
            loc, variance, shares, weight, self.numbers, self.head.nodes, mixture, CURVES, *by
        )


def kernel_loss(head: Head, objective: Sum, numbers: dict[tuple[int, str], Tensor]) -> KernelLoss | None:
    """None where there is a head, a term or a number that no kernel knows.

    Args:
        head: the same for all replicas.
        objective: the first one's.
        numbers: what is another number in the others, by (term, field). shapes: (R,)
    """
    terms: dict[type, Any] = {type(term): term for term in objective}
    kind = _kind(head)
    if kind is None or len(terms) < len(objective.terms) or not terms.keys() <= kind.knows:
        return None
    pac = terms.get(PAC, PAC())
    if MarginalLikelihood not in terms or (pac.on, pac.evidence, pac.kl_scale) != ("data", "all", "sum"):
        return None
    if any(field != "strength" for _, field in numbers):
        return None
    return kind(head, terms, {type(objective.terms[n]): value for (n, _), value in numbers.items()})


def _kind(head: Any) -> type[KernelLoss] | None:
    if type(head) is Normal:
        return NormalLoss
    usual = type(head) is Dirichlet and head.class_weight is None and head.ignore_index is None
    return DirichletLoss if usual and not head.label_smoothing and head.nodes <= _kernels.MAX_NODES else None


# The loss of many networks' outputs, and its derivatives by them.


class OutputLoss:
    """What the terms of an objective that look at outputs cost, for each replica.

    Args:
        head: the same for all.
        objective: the first replica's.
        numbers: what is another number in the others, by (term, field). shapes: (R,)
    """

    def __init__(self, head: Head, objective: Sum, numbers: dict[tuple[int, str], Tensor]):
        kept = [number for number, term in enumerate(objective) if type(term) is not WeightPrior]
        self.head, self.objective = head, Sum(*(objective.terms[number] for number in kept))
        self.numbers = {(kept.index(n), field): value for (n, field), value in numbers.items() if n in kept}
        self.kernel = kernel_loss(head, self.objective, self.numbers)

    def __call__(self, outputs: Pair, batch: Batch) -> tuple[Tensor, Pair]:
        """Losses, shape (R,), and their derivatives by the outputs, shapes (R, n, n_outputs).

        Args:
            outputs: for the points and, behind them, their copies. shapes: (R, n, n_outputs)
            batch: as Batch, R in front.
        """
        if self.kernel is not None and self.kernel.supported(outputs, batch):
            return self.kernel(outputs, batch)
        with torch.enable_grad():
            given = [part.detach().requires_grad_() for part in outputs if part is not None]
            losses = self._by_torch(Moments(*given), batch)
            by = torch.autograd.grad(losses.sum(), given)
        return losses.detach(), Pair(*by)

    def _by_torch(self, outputs: Moments, batch: Batch) -> Tensor:
        """shape: (R,)"""
        if type(self.head) is Dirichlet and all(field == "strength" for _, field in self.numbers):
            return self._at_once(outputs, batch)
        batch = batch._replace(x=batch.y.new_empty(len(batch.y)))  # of which nothing is read
        axes: Any = Batch._make(None if part is None else 0 for part in batch)
        return vmap(self._one, (0, axes, 0), randomness="different")(outputs, batch, self.numbers)

    def _at_once(self, outputs: Moments, batch: Batch) -> Tensor:
        """The same without vmap, for a head that looks at each point by itself. shape: (R,)"""
        objective = with_coefficients(self.objective, self.numbers) if self.numbers else self.objective
        n = batch.y.shape[1]
        asked = [term.asks_divergence for term in objective if term.asks_divergence is not None]
        sizes = torch.as_tensor(batch.n_train)
        points = _SideBySide(batch.x, batch.y, sizes.reshape(-1, 1, 1), batch.weight)
        forward = ForwardPass(nn.Identity(), self.head, points, asked[0] if asked else None)
        forward._outputs, forward._perturbed = outputs.split([n, outputs.shape[1] - n], 1)
        return torch.stack([term.value(term.statistic(forward), sizes) for term in objective]).sum(0)

    def _one(self, outputs: Moments, batch: Batch, numbers: dict[tuple[int, str], Tensor]) -> Tensor:
        objective = with_coefficients(self.objective, numbers) if numbers else self.objective
        own, copies = outputs.split([len(batch.y), len(outputs) - len(batch.y)])
        return objective.of_outputs(self.head, batch, own, copies if len(copies) else None)


class _SideBySide(Batch):
    """A batch of several networks, with a mean for each. shapes: as in Batch, R in front; n_train: (R, 1, 1)"""

    def mean(self, values: Tensor) -> Tensor:
        """values: shape (R, n); result: shape (R,)"""
        if self.weight is None:
            return values.mean(1)
        return values.where(self.weight > 0, 0.0).mul(self.weight).sum(1) / self.weight.sum(1)

    def mean_of_copies(self, values: Tensor) -> Tensor:
        """values: shape (R, copies); result: shape (R,)"""
        return self._replace(weight=None if self.weight is None else self.weight[:, : values.shape[1]]).mean(values)


def with_coefficients(objective: Any, numbers: dict[tuple[int, str], Tensor]) -> Any:
    """The same objective with other numbers in it."""
    terms = list(objective)
    for (number, field), value in numbers.items():
        terms[number] = dataclasses.replace(terms[number], **{field: value})
    return type(objective)(*terms)


ACTIVATIONS = (nn.ReLU, nn.ELU, nn.GELU, nn.LeakyReLU, nn.Mish, nn.Sigmoid, nn.SiLU, nn.Softplus, nn.Tanh)
Buffer = Callable[[str], Tensor]  # a buffer by its name. shape: as it is, or (R, *shape) where replicas differ


class UnsupportedModule(Exception):
    """A part of a network, or a term of an objective, that has no counterpart here."""


class FusedNetworks:
    """Losses and gradients of methods as `vmap` would give them, up to rounding.

    Args:
        methods: of the same build.
        rows: their parameters.
        fixed: their buffers.
        numbers: what differs in their objectives, by (term, field). shapes: (R,)

    Raises:
        UnsupportedModule: where something in the methods has no counterpart here.
    """

    def __init__(
        self, methods: Sequence[Method], rows: FlatParameters, fixed: Buffer, numbers: dict[tuple[int, str], Tensor]
    ):
        parts = [method.parts for method in methods]
        if any(part is None for part in parts):
            raise UnsupportedModule("a method that is more than a network, a head and an objective")
        net, head, objective = parts[0]  # type: ignore[misc]
        if any(True for _ in head.parameters()) or head.dim != -1 or _watched(net):
            raise UnsupportedModule("a head that learns or reads another dimension than the last, or hooks")
        self.rows = rows
        self.net = _layer(net, "method.net.", rows, fixed)
        priors = [number for number, term in enumerate(objective) if type(term) is WeightPrior]
        if not all(term.reads_outputs_only or number in priors for number, term in enumerate(objective)):
            raise UnsupportedModule("a term that looks at more than outputs")
        own = torch.tensor([[term.strength for term in objective if type(term) is WeightPrior] or [0.0]])
        given = [numbers[number, "strength"][:, None] for number in priors if (number, "strength") in numbers]
        # all of them differ in the replicas, or are written out
        self.strength = (torch.cat(given, 1) if given else own).sum(1).to(rows.parameters)  # shape: (R,) or (1,)
        if given and len(given) < len(priors):
            raise UnsupportedModule("several priors, of which some differ")
        self.head, self.loss = head, OutputLoss(head, objective, numbers)

    def gradients(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Losses and their gradients; the latter are overwritten by the next call. shapes: (R,), (R, P)"""
        x: Any = batch.x if batch.perturbed is None else torch.cat([batch.x, batch.perturbed], 1)
        self.rows.in_c = _kernels.supported(x, self.rows.parameters)
        divergence = self.rows.refresh()
        losses, by = self.loss(self.net.forward(Pair(x, None)), batch)
        self.net.backward(by, inputs=False)
        pull = self.strength / batch.n_train
        self.rows.vjp(pull)
        return losses + pull * divergence, self.rows.gradient

    def log_densities(self, x: Tensor, y: Tensor) -> Tensor:
        """log p(y|x) of each replica's own points. x: shape (R, n, d); result: shape (R, n)"""
        outputs = self.outputs(x)
        if type(self.head) is Dirichlet and not y.is_floating_point():  # without the parts of the uncertainty
            numbers = self.head.check_targets(y, outputs.shape[:-1])
            return self.head.log_probabilities(outputs).gather(-1, numbers.unsqueeze(-1)).squeeze(-1)
        if type(self.head) is Normal:
            return log_prob_of(self.head(outputs), y)
        return vmap(lambda f, y: log_prob_of(self.head(f), y), randomness="different")(outputs, y)

    def outputs(self, x: Tensor) -> Moments:
        """What the networks say. x: shape (R, n, d); result: shape (R, n, n_outputs)"""
        self.rows.in_c = _kernels.supported(x, self.rows.parameters)
        self.rows.refresh()
        loc, variance = self.net.forward(Pair(x, None))
        return Moments(loc, torch.zeros_like(loc) if variance is None else variance)


def _watched(net: nn.Module) -> bool:
    return any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in net.modules())


def _layer(module: Any, prefix: str, rows: FlatParameters, fixed: Buffer) -> Layer:
    """The counterpart of a module whose parameters' names begin with `prefix`."""
    kind = type(module)
    if kind is nn.Sequential:
        return Chain([_layer(part, f"{prefix}{name}.", rows, fixed) for name, part in module._modules.items()])
    if kind in ACTIVATIONS:
        return Activation(rows, module)
    if kind is nn.Identity or (kind is nn.Dropout and module.p == 0):
        return Chain([])
    if kind is GaussianLinear and _is_plain(module, prefix, rows):
        return Affine(rows, rows.weight(prefix + "weight"), None if module.bias is None else prefix + "bias")
    if kind is Standardize and module.loc.dim() == 1:
        loc, scale = (fixed(prefix + name) for name in ("loc", "scale"))
        return Scaling(*(part if part.dim() == 1 else part.unsqueeze(1) for part in (loc, scale)))
    if kind is QuantileCodes and all(fixed(prefix + name).dim() == 1 for name, _ in module.named_buffers()):
        return Codes(module)
    if kind is SkipLinear and type(module.columns) is PeriodicEmbedding:
        _all_learn(module, prefix, rows)
        columns = Embedding(rows, prefix + "columns.", module.columns.size)
        return Shortcut(rows, prefix, columns, _layer(module.body, prefix + "body.", rows, fixed))
    raise UnsupportedModule(f"{kind.__name__} at {prefix}")


def _is_plain(layer: Any, prefix: str, rows: FlatParameters) -> bool:
    _all_learn(layer, prefix, rows)
    return layer.variances == "full" and layer.covariance_factor is None and not layer.is_sampling


def _all_learn(module: nn.Module, prefix: str, rows: FlatParameters) -> None:
    missing = [name for name, _ in module.named_parameters() if prefix + name not in rows.places]
    if missing:
        raise UnsupportedModule(f"parameters that are constant or shared: {missing}")
