"""Methods of a known build, run as one without `torch.func.vmap`, and their losses, most of them in C."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import vmap

from bedl import _kernels
from bedl.heads import Dirichlet, Head, Normal
from bedl.heads.integrals import CURVES, nodes
from bedl.methods import Batch, Method
from bedl.moments import Moments
from bedl.nn import GaussianLinear
from bedl.nn.tabular import PeriodicEmbedding, QuantileCodes, SkipLinear, Standardize
from bedl.objectives import PAC, ForwardPass, Known, MarginalLikelihood, Sum, Unknown, WeightPrior
from bedl.training.callbacks import log_prob_of
from bedl.training.engines.fused.layers import (
    Activation,
    Affine,
    Chain,
    Codes,
    Embedding,
    FlatParameters,
    Layer,
    Pair,
    Scaling,
    Shortcut,
)


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
        """What `Known` adds to the logarithm of what is not known. shape: (R,)"""
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
        return y.dtype is torch.int64

    def of_replicas(self, n_train: Tensor) -> list[Tensor]:
        return [self.strength(Known, n_train), self.excess(n_train), self.strength(Unknown, n_train)]

    def losses(
        self, loc: Tensor, variance: Tensor, y: Tensor, weight: Tensor | None, by: tuple[Tensor, Tensor]
    ) -> Tensor:
        mixture = nodes.NUMBERS[self.head.components]
        return _kernels.training.dirichlet_loss(
            loc, variance, y, weight, self.numbers, self.head.nodes, mixture, CURVES, *by
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
    if kind is QuantileCodes:
        buffers = [fixed(prefix + name) for name in ("column", "low", "width")]
        if buffers[1].dim() == 1:  # the same for all replicas
            return Codes(*buffers)
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
