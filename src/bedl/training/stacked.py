"""Methods of the same build as one: parameters in rows, one vectorised forward pass."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bedl.methods import Batch, Method
from bedl.training.batched import Batched, NotKnown, Rows, in_rows, with_numbers
from bedl.training.scoring import log_density

__all__ = ["Stacked", "is_known"]


class _Loss(nn.Module):
    """A method seen as a module whose forward is the loss of a prepared batch, or the points' log-densities."""

    def __init__(self, method: Method):
        super().__init__()
        self.method = method

    def forward(self, batch: Batch, score: bool = False) -> Tensor:
        """shape: (), or (n,) for the score"""
        if score:
            return log_density(self.method, batch.x, batch.y)
        return self.method.combine(self.method.statistics(batch), batch.n_train)


class Stacked:
    """R methods whose losses and gradients are computed together.

    Args:
        methods: of the same build.
        device: where; where the first one is by default.
        compile: whether the forward pass is compiled.

    Attributes:
        parameters: all trainable parameters, a row per method. shape: (R, P)
    """

    def __init__(self, methods: Sequence[Any], device: torch.device | str | None = None, compile: bool = False):
        if not methods:
            raise ValueError("there are no replicas to train")
        check_same_build(methods)
        self.methods = list(methods)
        self.base = _Loss(methods[0])
        first = dict(self.base.named_parameters())
        self.names = in_rows([name for name, p in first.items() if p.requires_grad])
        self.shapes = [first[name].shape for name in self.names]
        self.sizes = [first[name].numel() for name in self.names]
        self.device = torch.device(device) if device is not None else first[self.names[0]].device
        rows = [
            torch.cat([dict(_Loss(m).named_parameters())[n].detach().reshape(-1) for n in self.names]) for m in methods
        ]
        self.parameters = torch.stack(rows).to(self.device)
        self.fixed, self.fixed_axes = self._fixed()
        self.numbers = {key: value.to(self.device) for key, value in differing_numbers(methods).items()}
        self.losses = torch.compile(self._losses) if compile else self._losses
        self.batched = None if compile else self._batched()

    def _batched(self) -> Batched | None:
        """The same in fewer calls, for builds that are known."""
        count = sum(name.endswith("_mean") for name in self.names)
        if [name.removesuffix("mean") for name in self.names[:count]] != [
            name.removesuffix("logvar") for name in self.names[count : 2 * count]
        ]:
            return None
        rows = Rows(self.names, self.shapes, self.parameters, count)
        try:
            return Batched(self.methods, rows, self.fixed.__getitem__, self.numbers)
        except NotKnown:
            return None

    def gradients(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Losses and their gradients. batch: as Batch, R in front; results: shapes (R,), (R, P)"""
        if self.batched is not None and isinstance(batch.x, Tensor) and batch.x.dim() == 3:
            with torch.no_grad():
                return self.batched.gradients(batch)
        rows = self.parameters.detach().requires_grad_()
        losses = self.losses(rows, batch)
        # a replica's loss depends on its own row alone, so the gradient of the sum is every replica's own
        (gradient,) = torch.autograd.grad(losses.sum(), rows)
        return losses.detach(), gradient

    @torch.no_grad()
    def log_densities(self, x: Any, y: Tensor) -> Tensor:
        """Each replica's log p(y|x) of its own points. x: shape (R, n, *input); result: shape (R, n)"""
        if self.batched is not None and isinstance(x, Tensor) and x.dim() == 3:
            return self.batched.log_densities(x, y)
        score = functools.partial(self._one, score=True)
        batch = Batch(x, y, torch.ones(len(self.parameters), device=self.device))
        axes: Any = Batch._make(None if part is None else 0 for part in batch)
        return vmap(score, (0, self.fixed_axes, axes, 0), randomness="different")(
            self.parameters, self.fixed, batch, self.numbers
        )

    def _losses(self, rows: Tensor, batch: Batch) -> Tensor:
        axes: Any = Batch._make(None if part is None else 0 for part in batch)
        return vmap(self._one, (0, self.fixed_axes, axes, 0), randomness="different")(
            rows, self.fixed, batch, self.numbers
        )

    def _one(
        self,
        row: Tensor,
        fixed: dict[str, Tensor],
        batch: Batch,
        numbers: dict[tuple[int, str], Tensor],
        score: bool = False,
    ) -> Tensor:
        """One replica's loss, or its log-densities. row: shape (P,); result: shape () or (n,)"""
        parts = zip(self.names, row.split(self.sizes), self.shapes, strict=True)
        parameters = {name: part.view(shape) for name, part, shape in parts}
        method: Any = self.base.method
        before = getattr(method, "objective", None)
        if numbers:
            method.objective = with_numbers(before, numbers)
        try:
            return functional_call(self.base, (parameters, fixed), (batch, score))
        finally:
            if numbers:
                method.objective = before

    def _fixed(self) -> tuple[dict[str, Tensor], dict[str, int | None]]:
        """Buffers and frozen parameters: stacked where replicas differ, else one plain value for all."""
        tensors: dict[str, Tensor] = {}
        axes: dict[str, int | None] = {}
        states = [{**dict(_Loss(m).named_parameters()), **dict(_Loss(m).named_buffers())} for m in self.methods]
        for name in states[0]:
            if name in self.names:
                continue
            values = [state[name].detach().to(self.device) for state in states]
            same = all(torch.equal(value, values[0]) for value in values)
            tensors[name], axes[name] = (values[0], None) if same else (torch.stack(values), 0)
        return tensors, axes

    @torch.no_grad()
    def write_back(self) -> None:
        """Put the rows into the methods' own parameters."""
        for method, row in zip(self.methods, self.parameters, strict=True):
            own = dict(_Loss(method).named_parameters())
            for name, part, shape in zip(self.names, row.split(self.sizes), self.shapes, strict=True):
                own[name].copy_(part.view(shape))


def is_known(method: Method) -> bool:
    """Whether a method has a twin that needs no vmap."""
    return any(p.requires_grad for p in method.parameters()) and Stacked([method]).batched is not None


def check_same_build(methods: Sequence[Any]) -> None:
    """Refuse replicas that vmap would silently treat alike: all run the first one's code with their own tensors."""
    first = methods[0]
    for number, other in enumerate(methods[1:], 1):
        theirs, ours = dict(other.named_modules()), dict(first.named_modules())
        if {k: type(m) for k, m in theirs.items()} != {k: type(m) for k, m in ours.items()}:
            raise ValueError(f"replica {number} has other modules than replica 0; replicas are of the same build")
        for name, module in ours.items():
            for key, value in _plain(module).items():
                their = _plain(theirs[name]).get(key)
                if their != value:
                    raise ValueError(
                        f"replica {number} has {name or type(module).__name__}.{key} = {their!r}, replica 0 has "
                        f"{value!r}: replicas may differ in tensors and in the numbers of their objective only"
                    )
            for key, tensor in {**module._parameters, **module._buffers}.items():
                twin = {**theirs[name]._parameters, **theirs[name]._buffers}[key]
                if (tensor is None) != (twin is None) or (tensor is not None and tensor.shape != twin.shape):
                    raise ValueError(f"{name}.{key} has another shape in replica {number} than in replica 0")


def _plain(module: nn.Module) -> dict[str, Any]:
    kinds = (bool, int, float, str, tuple)
    return {k: v for k, v in vars(module).items() if isinstance(v, kinds) and k != "training" and not k.startswith("_")}


def differing_numbers(methods: Sequence[Any]) -> dict[tuple[int, str], Tensor]:
    """The numbers in the methods' objectives that are not the same in all, by (term, field). shapes: (R,)"""
    objectives = [list(getattr(method, "objective", ())) for method in methods]
    if len({tuple(map(type, terms)) for terms in objectives}) > 1:
        raise ValueError("replicas must have the same kinds of objectives")
    found = {}
    for number, term in enumerate(objectives[0]):
        for field in dataclasses.fields(term):
            values = [getattr(terms[number], field.name) for terms in objectives]
            if all(value == values[0] for value in values):
                continue
            if not all(isinstance(value, (int, float)) for value in values):
                raise ValueError(f"replicas differ in {type(term).__name__}.{field.name}, which is not a number")
            found[number, field.name] = torch.tensor(values, dtype=torch.float32)
    return found
