"""Methods of a build that is known here, run as one without `torch.func.vmap`: tables' networks, mostly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from bedl import _kernels
from bedl.heads import Dirichlet, Normal
from bedl.methods import Batch, Method
from bedl.moments import Moments
from bedl.nn import GaussianLinear
from bedl.nn.tabular import PeriodicEmbedding, QuantileCodes, SkipLinear, Standardize
from bedl.objectives import WeightPrior
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
from bedl.training.engines.fused.losses import OutputLoss

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
