"""Methods of the same build as one: parameters in rows, one vectorised forward pass."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bedl import _kernels
from bedl.methods import Batch, Method
from bedl.nn import check_not_cached
from bedl.nn.calling import join_parts, map_parts
from bedl.training import checkpoint
from bedl.training import checkpoint as random_state
from bedl.training.callbacks import (
    WARMUP,
    Callback,
    EarlyStopping,
    Progress,
    Row,
    Schedule,
    as_places,
    check_callbacks,
    counted,
    log_density,
    scored,
)
from bedl.training.checkpoint import (
    CheckpointError,
    Checkpoints,
    CheckpointTimer,
    build_of,
    compare_settings,
    resume_from,
)
from bedl.training.compile import limit_threads
from bedl.training.correction import Correct, correct_after_fit, reset_correction
from bedl.training.data import as_points, cast, global_batches, stream_seed, warn_of_targets
from bedl.training.diagnostics import NonFiniteLossError, find_origin
from bedl.training.engines.fused import (
    FlatParameters,
    FusedNetworks,
    UnsupportedModule,
    parameter_order,
    with_coefficients,
)

__all__ = [
    "BatchPrefetcher",
    "ActiveReplicas",
    "Joined",
    "BatchPreparation",
    "ReplicaBatch",
    "ReplicaBatches",
    "ReplicaRun",
    "ReplicaSettings",
    "ReplicaWatch",
    "ReplicasResult",
    "StackedNetworks",
    "VectorAdam",
    "clipping",
    "fit_replicas",
    "can_fuse",
    "norms",
]


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


class StackedNetworks:
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
        self.names = parameter_order([name for name, p in first.items() if p.requires_grad])
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

    def _batched(self) -> FusedNetworks | None:
        """The same in fewer calls, for builds that are known."""
        count = sum(name.endswith("_mean") for name in self.names)
        if [name.removesuffix("mean") for name in self.names[:count]] != [
            name.removesuffix("logvar") for name in self.names[count : 2 * count]
        ]:
            return None
        rows = FlatParameters(self.names, self.shapes, self.parameters, count)
        try:
            return FusedNetworks(self.methods, rows, self.fixed.__getitem__, self.numbers)
        except UnsupportedModule:
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
            method.objective = with_coefficients(before, numbers)
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


def can_fuse(method: Method) -> bool:
    """Whether a method has a counterpart that needs no vmap."""
    return any(p.requires_grad for p in method.parameters()) and StackedNetworks([method]).batched is not None


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
                counterpart = {**theirs[name]._parameters, **theirs[name]._buffers}[key]
                if (tensor is None) != (counterpart is None) or (
                    tensor is not None and tensor.shape != counterpart.shape
                ):
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


# The points of many training sets, batch by batch, side by side.


class ReplicaBatch(NamedTuple):
    """One step's points of all replicas.

    Attributes:
        x: shape (R, B, *input)
        y: shape (R, B) or (R, B, D)
        weight: how much points count, 0 for padding; None where all count the same. shape: (R, B)
        counts: how many points are no padding; 0 for a replica that has finished.
    """

    x: Any
    y: Tensor
    weight: Tensor | None
    counts: list[int]


class ReplicaBatches:
    """Each replica's own batches, in the order in which `fit` with the same seed would see them.

    Training sets may differ in size: a short last batch is padded with points of weight 0, and a replica that has
    seen its epochs waits for the others.

    Args:
        data: one (x, y) or (x, y, weight) for all replicas, or one each.
        seeds: the order of each replica's points.
        epochs: how often each sees its points.
        batch_size: points per step.
        device: where batches are wanted.
        method: whose precision is wanted; that of the data by default.
    """

    def __init__(
        self, data: Any, seeds: Sequence[int], epochs: int, batch_size: int, device: torch.device, method: Any = None
    ):
        self.joined = Joined(data, len(seeds), device, method)
        self.seeds, self.epochs, self.batch_size = list(seeds), epochs, batch_size
        self.sizes, self.n_train = self.joined.sizes, self.joined.n_train
        self.per_epoch = [-(-n // batch_size) for n in self.sizes]
        self.totals = [epochs * count for count in self.per_epoch]
        self._orders: list[tuple[int, list[np.ndarray]]] = [(-1, [])] * len(seeds)

    def __len__(self) -> int:
        return max(self.totals)

    def numbers(self, step: int) -> list[np.ndarray]:
        """Each replica's point numbers at a step, none if it has finished."""
        return [self._numbers(r, step) for r in range(len(self.seeds))]

    def _numbers(self, replica: int, step: int) -> np.ndarray:
        epoch, position = divmod(step, self.per_epoch[replica])
        if epoch >= self.epochs:
            return np.empty(0, dtype=np.int64)
        if self._orders[replica][0] != epoch:
            batches = global_batches(self.sizes[replica], self.batch_size, self.seeds[replica], epoch)
            self._orders[replica] = (epoch, [self.joined.places[replica][batch] for batch in batches])
        return self._orders[replica][1][position]

    def __getitem__(self, step: int) -> ReplicaBatch:
        return self.joined.rows(self.numbers(step))

    def some(self, steps: Iterable[int]) -> list[tuple[list[int], ReplicaBatch]]:
        """Several steps at once: which ones are equally wide, and theirs stacked. shapes: (steps, R, B, *)"""
        numbers = {step: self.numbers(step) for step in steps}
        groups: dict[int, list[int]] = {}
        for step, own in numbers.items():
            groups.setdefault(max(map(len, own)), []).append(step)
        found = []
        for group in groups.values():
            rows = self.joined.rows([own for step in group for own in numbers[step]])
            form = (len(group), len(self.seeds))
            x, y, weight = (None if part is None else part.unflatten(0, form) for part in rows[:3])
            found.append((group, ReplicaBatch(x, y, weight, rows.counts)))  # type: ignore[arg-type]
        return found


class Joined:
    """The points of all replicas in memory, each set once, and where each replica's own are.

    Args:
        data: one set for all replicas, or a list with one each.
        count: how many replicas there are.
        device: where points are wanted.
        method: whose precision is wanted; that of the data by default.

    Attributes:
        places: each replica's points, as rows of `x`. shapes: (n_r,)
        sizes: how many each has.
        n_train: the N of each replica's objective.
    """

    def __init__(self, data: Any, count: int, device: torch.device, method: Any = None):
        sets = [as_points(item) for item in data] if isinstance(data, list) else [as_points(data)] * count
        if len(sets) != count:
            raise ValueError(f"there are {count} replicas and {len(sets)} data sets; give one for all, or one each")
        self.sizes, self.n_train = [points.n for points in sets], [points.n_train for points in sets]
        self.places: list[np.ndarray] = []
        parts: list[tuple[Any, Tensor, Tensor | None]] = []
        starts: dict[tuple[int, int, int], int] = {}
        total = 0
        for points in sets:
            key = id(points.x), id(points.y), id(points.weight)
            if key not in starts:
                whole = points.whole()
                parts.append(whole if method is None else cast(*whole, method))
                starts[key], total = total, total + len(whole[1])
            own = np.arange(points.n) if points.index is None else points.index
            self.places.append(own + starts[key])
        inputs, targets, weights = zip(*parts, strict=True)
        self.x: Any = map_parts(lambda part: part.to(device), functools.reduce(join_parts, inputs))
        self.y = (targets[0] if len(parts) == 1 else torch.cat(targets)).to(device)
        self.weight = _joined_weights(weights, targets, device)

    def rows(self, numbers: Sequence[np.ndarray]) -> ReplicaBatch:
        """Rows of `x` for each replica, or for each several times, padded to the same number."""
        counts = [len(row) for row in numbers]
        width = max(counts)
        if min(counts) == width:
            padded = np.stack(numbers)
        else:
            padded = np.empty((len(numbers), width), dtype=np.int64)
            for r, row in enumerate(numbers):
                padded[r, : len(row)] = row
                padded[r, len(row) :] = row[0] if len(row) else self.places[r % len(self.places)][0]
        index = torch.from_numpy(padded).to(self.y.device)
        weight = None if self.weight is None else self.weight[index]
        if min(counts) < width:
            present = torch.arange(width) < torch.tensor(counts)[:, None]
            present[torch.tensor(counts) == 0, 0] = True  # a mean of nothing is not a number; its update is dropped
            present = present.to(self.y.device, torch.float32 if weight is None else weight.dtype)
            weight = present if weight is None else weight * present.reshape(present.shape + (1,) * (weight.ndim - 2))
        return ReplicaBatch(map_parts(lambda part: part[index], self.x), self.y[index], weight, counts)


def _joined_weights(weights: Sequence[Tensor | None], targets: Sequence[Tensor], device: torch.device) -> Tensor | None:
    """shape: (total,), or None where no set has weights"""
    if all(weight is None for weight in weights):
        return None
    like = next(weight for weight in weights if weight is not None)
    filled = [
        torch.ones((len(y), *like.shape[1:]), dtype=like.dtype, device=like.device) if w is None else w
        for w, y in zip(weights, targets, strict=True)
    ]
    return torch.cat(filled).to(device)


# What each step of many networks is fed with: points, and what is drawn for them, some steps at a time.


PREFETCHED_STEPS = 32  # that are fetched together
MAX_PREFETCHED_NUMEL = 2**21  # numbers in their inputs, at most


class BatchPrefetcher:
    """Points and prepared batches of a run, step by step; made for some steps at once where nothing speaks against it.

    Draws for steps k·K to (k + 1)·K − 1 follow from the seeds and k alone, so that a run may be taken up at any step.

    Args:
        batches: the points.
        draw: what is drawn for them.
    """

    def __init__(self, batches: ReplicaBatches, draw: BatchPreparation):
        self.batches, self.draw = batches, draw
        self.steps = 1
        if draw.together:
            width = len(batches.seeds) * batches.batch_size * batches.joined.x[0].numel()
            self.steps = max(1, min(PREFETCHED_STEPS, MAX_PREFETCHED_NUMEL // max(width, 1)))
        self.kept: dict[int, tuple[ReplicaBatch, Batch]] = {}

    def __getitem__(self, step: int) -> tuple[ReplicaBatch, Batch]:
        if self.steps == 1:
            rows = self.batches[step]
            return rows, self.draw(rows, self.batches.n_train)
        if step not in self.kept:
            self._fetch(step // self.steps)
        return self.kept[step]

    def _fetch(self, number: int) -> None:
        """Some steps' points, those of the same width in one go."""
        first, self.kept = number * self.steps, {}
        fetched = self.batches.some(range(first, min(first + self.steps, len(self.batches))))
        generator = torch.Generator().manual_seed(stream_seed(*self.batches.seeds, number))
        replicas = len(self.batches.seeds)
        for steps, rows in fetched:
            whole = self.draw(rows, self.batches.n_train, generator)
            for i, step in enumerate(steps):
                parts: list[Any] = [whole.x, whole.y, whole.weight, whole.perturbed]
                own: list[Any] = [None if part is None else part[i] for part in parts]
                x, y, weight, perturbed = own
                batch = Batch(x, y, whole.n_train, weight, perturbed)
                counts = rows.counts[i * replicas : (i + 1) * replicas]
                self.kept[step] = ReplicaBatch(x, y, weight, counts), batch


class BatchPreparation:
    """Batches for all replicas, with what each method draws for its own, from a generator of its own.

    Methods that can draw for many at once do so, from one generator: in Python, that is most of a step's time.
    """

    def __init__(self, methods: Sequence[Any], seeds: Sequence[int]):
        self.methods = methods
        # the stream that `fit` gives a single process with this seed
        self.generators = [torch.Generator().manual_seed(stream_seed(seed, 0)) for seed in seeds]
        self.draws = True
        self.together = all(method.prepares_batched for method in methods)

    def __call__(self, rows: ReplicaBatch, sizes: Sequence[Any], generator: torch.Generator | None = None) -> Batch:
        """shapes: as in Batch, with R replicas in front, or steps and replicas; n_train: shape (R,)"""
        n_train = torch.tensor(sizes, dtype=torch.float32, device=rows.y.device)
        batch = Batch(rows.x, rows.y, n_train, rows.weight)
        if not self.draws:
            return batch
        if self.together:
            return self.methods[0].prepare(batch, generator or self.generators[0])
        inputs, copies = [], []
        for r, (method, generator) in enumerate(zip(self.methods, self.generators, strict=True)):
            count = rows.counts[r] or 1
            x = map_parts(functools.partial(_first, r, count), rows.x)
            own = Batch(x, rows.y[r, :count], sizes[r])
            prepared = method.prepare(own, generator)
            if prepared is own:
                self.draws = False  # nothing is drawn in these objectives
                return batch
            padding = rows.x[r, count:]
            inputs.append(torch.cat([prepared.x, padding]))
            if prepared.perturbed is not None:
                copies.append(prepared.perturbed)
        return batch._replace(x=torch.stack(inputs), perturbed=_evened(copies) if copies else None)


def _evened(copies: Sequence[Any]) -> Any:
    """As many copies for each replica: one that has fewer points has some twice. shapes: (k, *input) -> (R, k, *input)

    Each copy counts as the point in its place, so that copies of padding do not count."""
    most = max(map(len, copies))
    return torch.stack([own[torch.arange(most, device=own.device) % len(own)] for own in copies])


def _first(replica: int, count: int, part: Any) -> Any:
    return part[replica, :count]


# Adam on many networks at once: row r of every tensor belongs to network r.


class VectorAdam:
    """`torch.optim.Adam`, row by row, with a learning rate for each row.

    D. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015; operations in torch's order, so that
    results agree to rounding.

    Args:
        parameters: one row of parameters per network; updated in place. shape: (R, P)
        betas: decay of the two running means.
        eps: added to the root.

    Example:
        >>> parameters = torch.zeros(2, 3)
        >>> VectorAdam(parameters).step(torch.ones(2, 3), [0.1, 0.2])
        >>> parameters[:, 0]
        tensor([-0.1000, -0.2000])
    """

    def __init__(self, parameters: Tensor, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8):
        self.parameters, self.betas, self.eps, self.count = parameters, betas, eps, 0
        self.mean, self.square = torch.zeros_like(parameters), torch.zeros_like(parameters)

    @torch.no_grad()
    def step(self, gradient: Tensor, lr: Sequence[float], scale: Sequence[float] | None = None) -> None:
        """Update all rows.

        Args:
            gradient: shape (R, P)
            lr: learning rates; a row with 0 stays exactly as it is.
            scale: a factor on each row's gradient, such as `clipping` gives.
        """
        beta1, beta2 = self.betas
        self.count += 1
        rates = [rate / (1 - beta1**self.count) for rate in lr]
        unbiased = math.sqrt(1 - beta2**self.count)
        if gradient.is_contiguous() and _kernels.supported(self.parameters, gradient):
            how = (beta1, beta2, unbiased, self.eps)
            scales = [1.0] * len(rates) if scale is None else scale
            _kernels.training.adam(scales, rates, *how, self.parameters, gradient, self.mean, self.square)
            return
        if scale is not None:
            gradient = gradient * gradient.new_tensor(scale).unsqueeze(1)
        self.mean.lerp_(gradient, 1 - beta1)
        self.square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (self.square.sqrt() / unbiased).add_(self.eps)
        self.parameters.addcmul_(-gradient.new_tensor(rates).unsqueeze(1), self.mean / root)


def norms(gradient: Tensor) -> Tensor:
    """The norm of each row. gradient: shape (R, P); result: shape (R,)"""
    if gradient.is_contiguous() and _kernels.supported(gradient):
        return _kernels.training.norms(gradient)
    return torch.linalg.vector_norm(gradient, dim=1)


def clipping(norms: Sequence[float], max_norm: float) -> list[float]:
    """Factors that scale rows to a norm of at most `max_norm`, as `torch.nn.utils.clip_grad_norm_` does."""
    return [min(1.0, max_norm / (norm + 1e-6)) for norm in norms]


# The replicas that still learn: once some have stopped, the others are a stack of their own.


class ActiveReplicas:
    """The part of a stack that is computed. What the stack of all replicas says is true after `write_back`.

    Args:
        whole: all replicas.
        adam: theirs.

    Attributes:
        numbers: which replicas of `whole` are computed.
        stacked, adam: those replicas.
    """

    def __init__(self, whole: StackedNetworks, adam: VectorAdam):
        self.whole, self.adam_of_all = whole, adam
        self.numbers = list(range(len(whole.methods)))
        self.index = torch.tensor(self.numbers, device=whole.device)
        self.stacked, self.adam = whole, adam

    def keep(self, active: Sequence[bool]) -> None:
        """Compute the replicas that are going, and no others.

        Of builds that are known, that is: others may draw random numbers for all replicas together, or are compiled for
        as many as there are.
        """
        numbers = [number for number, on in enumerate(active) if on]
        if numbers == self.numbers or not numbers or self.whole.batched is None:
            return
        self.write_back()
        self.whole.write_back()
        self.numbers, self.index = numbers, torch.tensor(numbers, device=self.whole.device)
        self.stacked = StackedNetworks([self.whole.methods[number] for number in numbers], self.whole.device)
        self.adam = VectorAdam(self.stacked.parameters, self.adam_of_all.betas, self.adam_of_all.eps)
        self.adam.mean, self.adam.square = self.adam_of_all.mean[numbers], self.adam_of_all.square[numbers]
        self.adam.count = self.adam_of_all.count

    @torch.no_grad()
    def write_back(self) -> None:
        """Put what is computed into the rows of all replicas."""
        if self.stacked is not self.whole:
            self.whole.parameters[self.numbers] = self.stacked.parameters
            self.adam_of_all.mean[self.numbers] = self.adam.mean
            self.adam_of_all.square[self.numbers] = self.adam.square
            self.adam_of_all.count = self.adam.count

    def of(self, batch: Batch) -> Batch:
        """These replicas' part of a batch for all."""
        if self.stacked is self.whole:
            return batch

        index = self.index
        parts: list[Any] = [
            None if part is None else map_parts(lambda tensor: tensor.index_select(0, index), part) for part in batch
        ]
        return Batch._make(parts)


# Early stopping of many networks at once: each by its own score, each back to its own best epoch.


class ReplicaWatch:
    """Scores replicas on their validation sets, and remembers the best of each.

    Args:
        stacked: the replicas.
        validation: one set for all, or a list with one each.
        rule: when to stop; None: only score.

    Attributes:
        stopped: which replicas have stopped.
    """

    def __init__(self, stacked: StackedNetworks, validation: Any, rule: EarlyStopping | None):
        self.stacked, self.rule = stacked, rule
        count = len(stacked.methods)
        self.points = Joined(validation, count, stacked.device, stacked.methods[0])
        first = self.points.rows([places[:1] for places in self.points.places])
        scored(stacked.methods[0], map_parts(lambda part: part[0], first.x), first.y[0], None)
        self.best = [math.inf] * count
        self.waited = [0] * count
        self.stopped = [False] * count
        self.rows: Tensor | None = stacked.parameters.clone() if rule and rule.restore_best else None

    def update(self, ended: Sequence[bool], active: ActiveReplicas) -> list[float]:
        """Take in the epoch of the replicas that have ended one. Returns the scores of those going, lower is better."""
        active.write_back()
        scores = self.scores(active)
        if self.rule is None:
            return scores
        for r in [r for r, end in enumerate(ended) if end and not self.stopped[r]]:
            if scores[r] < self.best[r] - self.rule.min_delta:
                self.best[r], self.waited[r] = scores[r], 0
                if self.rows is not None:
                    self.rows[r] = self.stacked.parameters[r]
            else:
                self.waited[r] += 1
            self.stopped[r] = self.waited[r] > self.rule.patience
        return scores

    def scores(self, active: ActiveReplicas, chunk: int = 1024) -> list[float]:
        """Each replica's (weighted) mean −log p(y|x) over its set; NaN for those that have stopped."""
        total = torch.zeros(2, len(active.numbers), dtype=torch.float64)
        places = [self.points.places[number] for number in active.numbers]
        for start in range(0, max(map(len, places)), chunk):
            part = self.points.rows([place[start : start + chunk] for place in places])
            y, counts = counted(self.stacked.methods[0], part.y, part.weight)
            log_p = active.stacked.log_densities(part.x, y).double().cpu()
            weight = torch.ones_like(log_p) if counts is None else as_places(counts.double().cpu(), log_p)
            # a replica whose set ended in an earlier chunk has one point of padding here
            weight = weight * as_places(torch.tensor(part.counts) > 0, log_p)
            log_p, weight = log_p.flatten(1), weight.flatten(1)
            total += torch.stack([-log_p.where(weight > 0, 0.0).mul(weight).sum(1), weight.sum(1)])
        means = dict(zip(active.numbers, (total[0] / total[1]).tolist(), strict=True))
        return [means.get(number, math.nan) for number in range(len(self.best))]

    def restore(self) -> None:
        """Put back the parameters of each replica's best epoch."""
        if self.rows is not None:
            seen = torch.tensor([math.isfinite(best) for best in self.best], device=self.rows.device)
            self.stacked.parameters[seen] = self.rows[seen]

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to know."""
        return {"best": self.best, "waited": self.waited, "stopped": self.stopped, "rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.best, self.waited, self.stopped = state["best"], state["waited"], state["stopped"]
        self.rows = None if self.rows is None else state["rows"].to(self.rows.device)


# One run of replicas: its place in the data, its step, its checkpoints.


@dataclasses.dataclass(frozen=True)
class ReplicaSettings:
    """The choices of a run; `fit_replicas` explains them."""

    rates: Sequence[float]
    seeds: Sequence[int]
    schedule: Schedule
    gradient_clip: float | None
    early_stopping: EarlyStopping | None
    checkpoints: Checkpoints | None
    resume: bool | str
    callbacks: tuple[Callback, ...]


class ReplicaRun:
    """Replicas under way; to callbacks it shows the same as a `Run` of one method.

    Attributes:
        methods: what is trained, with the parameters of now; `method` where it is one.
        epoch: that of the replica with most steps, counted from 0.
        step, total_steps: optimiser steps taken, and planned.
        stop: set it to end the run after the present step.
    """

    def __init__(self, stacked: StackedNetworks, batches: ReplicaBatches, validation: Any, settings: ReplicaSettings):
        self.stacked, self.batches, self.settings = stacked, batches, settings
        self.watch = None if validation is None else ReplicaWatch(stacked, validation, settings.early_stopping)
        self.adam = VectorAdam(stacked.parameters)
        self.active = ActiveReplicas(stacked, self.adam)
        self.draw = BatchPreparation(stacked.methods, settings.seeds)
        self.prefetcher = BatchPrefetcher(batches, self.draw)
        self.losses = Losses(batches)
        self.step, self.total_steps = 0, len(batches)
        self.stop = False
        self.checkpoint: Path | None = None
        self.timer = CheckpointTimer(settings.checkpoints)

    @property
    def methods(self) -> list[Method]:
        self.active.write_back()
        self.stacked.write_back()
        return self.stacked.methods

    @property
    def method(self) -> Method:
        """The only one there is."""
        (method,) = self.methods
        return method

    @property
    def epoch(self) -> int:
        return self.step // max(self.batches.per_epoch)

    # -- from beginning to end -------------------------------------------------------------------
    def __call__(self) -> None:
        """Train from where the run stands to its end, and put the result into the methods."""
        path = resume_from(self.settings.checkpoints, self.settings.resume)
        if path is not None:
            self._load(path)
        self._tell("on_start")
        try:
            while self.step < self.total_steps and not self.stop and not all(self._stopped):
                self._step()
        finally:
            self._tell("on_end")
        self.active.write_back()
        if self.watch is not None:
            self.watch.restore()
        self.stacked.write_back()
        for number, method in enumerate(self.stacked.methods):
            if method.has_fit_end:
                with torch.no_grad():
                    method.to(self.stacked.device).eval()
                    validation_batches = () if self.watch is None else self._whole(number, self.watch.points)
                    method.on_fit_end(self._whole(number, self.batches.joined), validation_batches)

    def _whole(self, replica: int, joined: Joined, chunk: int = 1024) -> Iterator[Batch]:
        """A replica's own points in parts."""
        own = joined.places[replica]
        for start in range(0, len(own), chunk):
            part = joined.rows([own[start : start + chunk]])
            weight = None if part.weight is None else part.weight[0]
            yield Batch(part.x[0], part.y[0], self.batches.joined.n_train[replica], weight)

    @property
    def _stopped(self) -> list[bool]:
        return [False] * len(self.stacked.methods) if self.watch is None else self.watch.stopped

    def _step(self) -> None:
        rows, batch = self.prefetcher[self.step]
        if self.stacked.methods[0].uses_epoch:
            seen = [self.step / count for count in self.batches.per_epoch]
            batch = batch._replace(epoch=torch.tensor(seen, device=self.stacked.device))
        totals = self.batches.totals
        active = [self.step < total and not done for total, done in zip(totals, self._stopped, strict=True)]
        self.active.keep(active)
        batch = self.active.of(batch)
        loss, gradient = self.active.stacked.gradients(batch)
        values, lengths = loss.tolist(), norms(gradient).tolist()
        if not math.isfinite(sum(values) + sum(lengths)):
            raise self._not_finite(batch, loss, gradient)
        limit = self.settings.gradient_clip
        factor = {total: self.settings.schedule(self.step, total) for total in set(totals) if self.step < total}
        rates = [self.settings.rates[r] * factor[totals[r]] if active[r] else 0.0 for r in self.active.numbers]
        self.active.adam.step(gradient, rates, None if limit is None else clipping(lengths, limit))
        epoch = self.epoch
        self.step += 1
        if self.settings.callbacks:
            mean = sum(values) / len(values)
            self._tell(
                "on_step",
                {
                    "kind": "step",
                    "epoch": epoch,
                    "step": self.step,
                    "loss": mean,
                    "lr": max(rates),
                    "points": sum(rows.counts),
                },
            )
        ended = self.losses.add(dict(zip(self.active.numbers, values, strict=True)), rows, active)
        if any(ended):
            if self.watch is not None:
                self.losses.score(ended, self.watch.update(ended, self.active))
            self._tell("on_epoch", {**self.losses.summary(), "epoch": epoch, "step": self.step})
        self._maybe_save(end_of_epoch=self.epoch > epoch)

    def _tell(self, event: str, *details: Row) -> None:
        for callback in self.settings.callbacks:
            getattr(callback, event)(self, *details)

    def _not_finite(self, batch: Batch, loss: Tensor, gradient: Tensor) -> NonFiniteLossError:
        """The error for the first replica whose loss or gradient is not finite; all keep the parameters they had."""
        place = int((~(loss.isfinite() & gradient.isfinite().all(1))).nonzero()[0])
        parts: list[Any] = [map_parts(lambda part: part[place], part) for part in batch]
        own = Batch._make(parts)._replace(n_train=int(parts[2]))
        replica = self.active.numbers[place]
        origin = find_origin(self.methods[replica], [own])
        where = dataclasses.replace(origin, where=f"replica {replica}: {origin.where}")
        return NonFiniteLossError(self.step, float(loss[place]), where, self.checkpoint)

    # -- checkpoints ------------------------------------------------------------------------------
    def _maybe_save(self, end_of_epoch: bool) -> None:
        places = self.settings.checkpoints
        if places is not None and self.timer.due(self.step, end_of_epoch):
            self.checkpoint = checkpoint.path_of(Path(places.directory), self.step)
            checkpoint.write(self.checkpoint, self._state())
            checkpoint.prune(Path(places.directory), places.keep)

    def _fingerprint(self) -> dict[str, Any]:
        """What has to be the same for a resumed run to be the same run."""
        batches = self.batches
        sizes, epochs, points = list(batches.n_train), batches.epochs, batches.batch_size
        return {"seeds": list(self.settings.seeds), "n_train": sizes, "epochs": epochs, "batch_size": points}

    def _build(self) -> str:
        """The methods' build, and the order of parameters in a row."""
        return f"{build_of(self.stacked.methods[0])}\n{' '.join(self.stacked.names)}"

    def _state(self) -> dict[str, Any]:
        self.active.write_back()
        return {
            "replicas": self.stacked.parameters,
            "adam": {"mean": self.adam.mean, "square": self.adam.square, "count": self.adam.count},
            "step": self.step,
            "losses": {"sums": self.losses.sums, "masses": self.losses.masses, "epochs": self.losses.epochs},
            "watch": None if self.watch is None else self.watch.state_dict(),
            "draws": [generator.get_state() for generator in self.draw.generators],
            "random": checkpoint.capture_torch(self.stacked.device),
            "settings": self._fingerprint(),
            "build": self._build(),
        }

    def _load(self, path: Path) -> None:
        """Take up the run at a checkpoint. Everything is compared first; an error leaves the run as it was."""
        content = checkpoint.read(path)
        if "replicas" not in content:
            raise CheckpointError(f"{path} is of a single method, not of several that are trained as one")
        compare_settings(content["settings"], self._fingerprint(), path)
        if content["build"] != self._build() or content["replicas"].shape != self.stacked.parameters.shape:
            raise CheckpointError(
                f"{path} was written with other networks, heads or objectives; use the same ones, or start anew with "
                "another checkpoint directory"
            )
        if (content["watch"] is None) != (self.watch is None):
            raise CheckpointError(f"{path} was written with another choice of validation")
        self.stacked.parameters.copy_(content["replicas"])
        self.adam.mean.copy_(content["adam"]["mean"])
        self.adam.square.copy_(content["adam"]["square"])
        self.adam.count, self.step = content["adam"]["count"], content["step"]
        for name, value in content["losses"].items():
            setattr(self.losses, name, value)
        self.losses.steps = self.step
        if self.watch is not None:
            self.watch.load_state_dict(content["watch"])
        for generator, value in zip(self.draw.generators, content["draws"], strict=True):
            generator.set_state(value)
        checkpoint.restore_torch(content["random"], self.stacked.device)
        self.checkpoint = path


class Losses:
    """Each replica's mean loss per epoch, as it comes about."""

    def __init__(self, batches: ReplicaBatches):
        self.per_epoch, self.steps = batches.per_epoch, 0
        self.sums, self.masses = ([0.0] * len(self.per_epoch) for _ in range(2))
        self.epochs: list[list[Row]] = [[] for _ in self.per_epoch]

    def add(self, losses: Mapping[int, float], rows: ReplicaBatch, active: Sequence[bool]) -> list[bool]:
        """Take in a step, with the losses of those that are going. Says which replicas have ended an epoch."""
        masses = list(map(float, rows.counts)) if rows.weight is None else rows.weight.flatten(1).sum(1).tolist()
        self.steps += 1
        ended = [on and self.steps % count == 0 for on, count in zip(active, self.per_epoch, strict=True)]
        for r, (mass, on) in enumerate(zip(masses, active, strict=True)):
            if on:
                self.sums[r], self.masses[r] = self.sums[r] + losses[r] * mass, self.masses[r] + mass
            if ended[r]:
                epoch, mean = len(self.epochs[r]), self.sums[r] / self.masses[r]
                self.epochs[r].append({"kind": "epoch", "replica": r, "epoch": epoch, "loss": mean})
                self.sums[r] = self.masses[r] = 0.0
        return ended

    def score(self, ended: Sequence[bool], scores: Sequence[float]) -> None:
        """Put the scores of the validation sets into the rows of the epochs that have ended."""
        for r in [r for r, end in enumerate(ended) if end]:
            self.epochs[r][-1]["val_nll"] = scores[r]

    def summary(self) -> Row:
        """The means over the replicas of their newest rows."""
        newest = [rows[-1] for rows in self.epochs if rows]
        row: Row = {"kind": "epoch", "loss": sum(r["loss"] for r in newest) / len(newest)}
        if all("val_nll" in r for r in newest):
            row["val_nll"] = sum(r["val_nll"] for r in newest) / len(newest)
        return row


# Many networks as one: R methods of the same build, trained side by side in one vectorised run.
#
# Splits, seeds, ensemble members, values of a hyper-parameter: a small network keeps no processor busy, R of them at
# once
# do. Parameters are stacked into one tensor of shape (R, P), `torch.func.vmap` runs the forward pass of all replicas,
# and
# Adam updates all rows. Each replica ends up where `fit` with its seed would have taken it, up to rounding.


@dataclasses.dataclass(frozen=True)
class ReplicasResult:
    """What a run of replicas came to.

    Attributes:
        loss: each replica's mean loss over its last epoch. shape: (R,)
        rows: one per replica and epoch: replica, epoch, mean loss, val_nll if there was a validation set.
        steps: optimiser steps, of the replica that took most.
    """

    loss: Tensor
    rows: list[dict[str, Any]]
    steps: int


def fit_replicas(
    methods: Sequence[Method] | Method,
    data: Any,
    *,
    epochs: int,
    batch_size: int = 32,
    lr: float | Sequence[float] = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    schedule: Schedule = WARMUP,
    gradient_clip: float | None = 1.0,
    validation: Any = None,
    early_stopping: EarlyStopping | bool | None = None,
    correct: Correct = "auto",
    seeds: Sequence[int] | None = None,
    checkpoint: str | os.PathLike[str] | Checkpoints | None = None,
    resume: bool | str = "auto",
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
    device: torch.device | str | None = None,
    compile: bool = False,
) -> ReplicasResult:
    """Train methods of the same build independently of each other, in place, with Adam.

    Args:
        methods: the replicas, or an ensemble. Their parameters, buffers and the numbers in their objectives (a PAC
            term's strength, say) may differ; layers and shapes may not.
        data: (x, y) or (x, y, weight) in memory for all, or a list with one for each, which may differ in size.
        epochs: how often each replica sees its points.
        batch_size: points per step and replica.
        lr: learning rate, for all or for each.
        betas, eps: Adam's.
        schedule: factor on the learning rate, of (step, the replica's total steps).
        gradient_clip: greatest norm of a replica's gradient; None for no clipping.
        validation: points whose mean −log p(y|x) is computed after each epoch: one set for all, or a list.
        early_stopping: when a replica stops before `epochs`, by its own score; the others go on.
        correct: whether to fit, after training, what one pass drops; as in `fit`, for each replica on its own inputs.
        seeds: each replica's order of points and perturbations; 0, 1, 2, … by default.
        checkpoint, resume: as in `fit`; one file holds all replicas.
        callbacks: see `Callback`; they are shown the replicas as one run, with mean losses.
        progress: show loss, throughput and time left.
        device: where to train; where the first replica is by default.
        compile: use `torch.compile`: slow to start, faster after.

    Example:
        >>> from bedl import GaussianLinear
        >>> from bedl.heads import Normal
        >>> from bedl.methods import BEDL
        >>> x = torch.linspace(-1, 1, 40)[:, None]
        >>> methods = [BEDL(GaussianLinear(1, 2), Normal(1)) for _ in range(3)]
        >>> fit_replicas(methods, (x, 2 * x), epochs=2, lr=[0.01, 0.1, 1.0]).loss.shape
        torch.Size([3])
    """
    methods = _replicas(methods)
    seeds = list(range(len(methods))) if seeds is None else list(seeds)
    rates = [float(lr)] * len(methods) if isinstance(lr, (int, float)) else [float(rate) for rate in lr]
    if len(seeds) != len(methods) or len(rates) != len(methods):
        raise ValueError(
            f"{len(methods)} replicas need as many seeds and learning rates, not {len(seeds)} and {len(rates)}"
        )
    if len({id(method) for method in methods}) < len(methods):
        raise ValueError("fit_replicas: the same method stands in the list twice; copy it with copy.deepcopy")
    for method in methods:
        check_not_cached(method, "fit_replicas")
        reset_correction(method, correct)
        method.train()
    if epochs < 1:
        raise ValueError(f"fit_replicas: epochs must be at least 1, not {epochs}")
    if isinstance(early_stopping, bool):
        early_stopping = EarlyStopping() if early_stopping else None
    if early_stopping is not None and validation is None:
        raise ValueError("fit_replicas: early_stopping looks at a validation set; pass validation=(x, y)")
    places = Checkpoints(checkpoint) if isinstance(checkpoint, (str, os.PathLike)) else checkpoint
    settings = ReplicaSettings(
        rates, seeds, schedule, gradient_clip, early_stopping, places, resume,
        callbacks=(*check_callbacks(callbacks), *([Progress()] if progress else [])),
    )  # fmt: skip
    warn_of_targets(methods[0], as_points(data[0] if isinstance(data, list) else data))
    stacked = StackedNetworks(methods, device, compile)
    batches = ReplicaBatches(data, seeds, epochs, batch_size, stacked.device, methods[0])
    rows = batch_size if stacked.batched is not None else math.inf  # a row of a table meets each parameter once
    with _own_randomness(stacked.device, seeds), limit_threads(stacked.parameters.numel() * rows):
        run = ReplicaRun(stacked, batches, validation, settings)
        run.adam.betas, run.adam.eps = betas, eps
        run()
    inputs = data if validation is None else validation
    for i, method in enumerate(methods):
        points = as_points(inputs[i] if isinstance(inputs, list) else inputs)
        correct_after_fit(method, points, correct, batches.totals[i], stacked.device)
    last = torch.tensor([rows[-1]["loss"] if rows else float("nan") for rows in run.losses.epochs])
    return ReplicasResult(last, [row for rows in run.losses.epochs for row in rows], run.step)


@contextmanager
def _own_randomness(device: torch.device, seeds: Sequence[int]) -> Iterator[None]:
    """A seed for this run alone; afterwards torch's generators are as they were."""
    before = random_state.capture_torch(device)
    torch.manual_seed(stream_seed(*seeds))
    try:
        yield
    finally:
        random_state.restore_torch(before, device)


def _replicas(methods: Any) -> list[Method]:
    if isinstance(methods, Method) and methods.fit_mode == "members":
        methods = methods.members
    elif isinstance(methods, Method) or not isinstance(methods, Sequence):
        raise TypeError(f"fit_replicas takes a list of methods or an ensemble, not one {type(methods).__name__}")
    for method in methods:
        if not isinstance(method, Method) or method.fit_mode != "gradient":
            raise TypeError(f"fit_replicas trains methods that learn by steps; {type(method).__name__} is none")
    return list(methods)
