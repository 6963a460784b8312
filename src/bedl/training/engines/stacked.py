"""Networks of the same build as one: parameters in rows of a tensor, one vectorised forward pass, one Adam.

Each replica ends up where `fit` with its seed would have taken it, up to rounding.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bedl import _kernels
from bedl._utils.errors import BEDLError
from bedl.methods import Batch, Method
from bedl.nn.calling import map_parts
from bedl.training import checkpoint
from bedl.training.callbacks import (
    Row,
    as_places,
    counted,
    learning_rates,
    log_density,
    scored,
)
from bedl.training.checkpoint import (
    CheckpointError,
    build_of,
)
from bedl.training.diagnostics import NonFiniteLossError, find_origin
from bedl.training.engines.fused import (
    FlatParameters,
    FusedNetworks,
    UnsupportedModule,
    parameter_order,
    with_coefficients,
)
from bedl.training.engines.replica_data import (
    BatchPrefetcher,
    BatchPreparation,
    Joined,
    ReplicaBatch,
    ReplicaBatches,
)
from bedl.training.loop import Run, Settings


class VectorisationError(BEDLError, RuntimeError):
    """Networks that can be trained one by one, and not as one."""


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
        try:
            losses = self.losses(rows, batch)
        except RuntimeError as error:
            self._check_single(batch)  # raises what is wrong with one network, too
            raise VectorisationError(
                f"{type(self.methods[0]).__name__} cannot be one of many ({str(error).splitlines()[0][:200]}); "
                "train them one by one, with fit"
            ) from error
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

    @torch.no_grad()
    def _check_single(self, batch: Batch) -> None:
        """The loss of the first replica by itself."""
        fixed = {name: x if self.fixed_axes[name] is None else x[0] for name, x in self.fixed.items()}
        own: list[Any] = [None if part is None else map_parts(lambda x: x[0], part) for part in batch]
        numbers = {key: value[0] for key, value in self.numbers.items()}
        self._one(self.parameters[0], fixed, Batch._make(own), numbers)

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


# One run of replicas: its scores, its step, its checkpoints.


class ReplicaScores:
    """Each replica's (weighted) mean −log p(y|x) over its validation set.

    Args:
        stacked: the replicas.
        validation: one set for all, or a list with one each.
    """

    def __init__(self, stacked: StackedNetworks, validation: Any):
        self.stacked = stacked
        self.points = Joined(validation, len(stacked.methods), stacked.device, stacked.methods[0])
        first = self.points.rows([places[:1] for places in self.points.places])
        scored(stacked.methods[0], map_parts(lambda part: part[0], first.x), first.y[0], None)

    def __call__(self, active: ActiveReplicas, chunk: int = 1024) -> dict[int, float]:
        """The scores of those that are active, by number; lower is better."""
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
        return dict(zip(active.numbers, (total[0] / total[1]).tolist(), strict=True))


class ReplicaRun(Run):
    """A run of many networks; to callbacks it shows the same as one of a single network, with mean losses.

    Attributes:
        methods: what is trained, with the parameters of now; `method` where it is one.
        epoch: that of the replica with most steps, counted from 0.
    """

    engine = "replicas"

    def __init__(self, stacked: StackedNetworks, batches: ReplicaBatches, validation: Any, settings: Settings):
        super().__init__(settings, len(stacked.methods))
        self.stacked, self.batches = stacked, batches
        self.scores = None if validation is None else ReplicaScores(stacked, validation)
        rule = settings.early_stopping
        self.best: Any = stacked.parameters.clone() if rule is not None and rule.restore_best else None
        self.adam = VectorAdam(stacked.parameters)
        self.active = ActiveReplicas(stacked, self.adam)
        self.draw = BatchPreparation(stacked.methods, settings.seeds)
        self.prefetcher = BatchPrefetcher(batches, self.draw)
        self.losses = Losses(batches)
        self.total_steps = len(batches)
        runs = zip(settings.rates, batches.totals, strict=True)
        self.learning_rates = [learning_rates(settings.schedule, [rate], total) for rate, total in runs]

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

    def _has_ended(self) -> bool:
        return self.step >= self.total_steps or self.stop or all(self.stopping.stopped)

    def _finish(self) -> None:
        self.active.write_back()
        if self.best is not None:
            seen = torch.tensor([math.isfinite(best) for best in self.stopping.best], device=self.stacked.device)
            self.stacked.parameters[seen] = self.best[seen]
        self.stacked.write_back()
        for number, method in enumerate(self.stacked.methods):
            if method.has_fit_end:
                with torch.no_grad():
                    method.to(self.stacked.device).eval()
                    validation_batches = () if self.scores is None else self._whole(number, self.scores.points)
                    method.on_fit_end(self._whole(number, self.batches.joined), validation_batches)

    def _whole(self, replica: int, joined: Joined, chunk: int = 1024) -> Iterator[Batch]:
        """A replica's own points in parts."""
        own = joined.places[replica]
        for start in range(0, len(own), chunk):
            part = joined.rows([own[start : start + chunk]])
            weight = None if part.weight is None else part.weight[0]
            yield Batch(part.x[0], part.y[0], self.batches.joined.n_train[replica], weight)

    def _advance(self) -> None:
        """One step."""
        rows, batch = self.prefetcher[self.step]
        if self.stacked.methods[0].uses_epoch:
            seen = [self.step / count for count in self.batches.per_epoch]
            batch = batch._replace(epoch=torch.tensor(seen, device=self.stacked.device))
        totals = self.batches.totals
        active = [self.step < total and not done for total, done in zip(totals, self.stopping.stopped, strict=True)]
        self.active.keep(active)
        batch = self.active.of(batch)
        loss, gradient = self.active.stacked.gradients(batch)
        values, lengths = loss.tolist(), norms(gradient).tolist()
        if not math.isfinite(sum(values) + sum(lengths)):
            raise self._not_finite(batch, loss, gradient)
        limit = self.settings.gradient.clip
        rates = [self.learning_rates[r](self.step)[0] if active[r] else 0.0 for r in self.active.numbers]
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
            if self.scores is not None:
                self.active.write_back()
                scores = self.scores(self.active)
                scores = {r: scores[r] for r, end in enumerate(ended) if end}
                for r in self.stopping.update(scores):
                    self.best[r] = self.stacked.parameters[r]
                self.losses.score(scores)
            self._tell("on_epoch", {**self.losses.summary(), "epoch": epoch, "step": self.step})
        self._maybe_save(end_of_epoch=self.epoch > epoch)

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
    def _fingerprint(self) -> dict[str, Any]:
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
            "optimizer": {"mean": self.adam.mean, "square": self.adam.square, "count": self.adam.count},
            "position": {"step": self.step},
            "losses": {"sums": self.losses.sums, "masses": self.losses.masses, "epochs": self.losses.epochs},
            "draws": [generator.get_state() for generator in self.draw.generators],
            "random": checkpoint.capture_torch(self.stacked.device),
        }

    def _set_state(self, state: dict[str, Any], path: Path) -> None:
        self._compare_build(state["build"], path)
        if state["replicas"].shape != self.stacked.parameters.shape:
            raise CheckpointError(f"{path} is of {len(state['replicas'])} networks, this run is of {len(self.methods)}")
        self.stacked.parameters.copy_(state["replicas"])
        self.adam.mean.copy_(state["optimizer"]["mean"])
        self.adam.square.copy_(state["optimizer"]["square"])
        self.adam.count, self.step = state["optimizer"]["count"], state["position"]["step"]
        for name, value in state["losses"].items():
            setattr(self.losses, name, value)
        self.losses.steps = self.step
        for generator, value in zip(self.draw.generators, state["draws"], strict=True):
            generator.set_state(value)
        checkpoint.restore_torch(state["random"], self.stacked.device)

    def load(self, path: Path) -> None:
        super().load(path)
        if self.best is not None:
            self.best = self.best.to(self.stacked.device)


class Losses:
    """Each replica's mean loss per epoch, appended during training."""

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

    def score(self, scores: Mapping[int, float]) -> None:
        """Put the scores of the validation sets into the rows of the epochs that have ended."""
        for r, score in scores.items():
            self.epochs[r][-1]["val_nll"] = score

    def summary(self) -> Row:
        """The means over the replicas of their newest rows."""
        newest = [rows[-1] for rows in self.epochs if rows]
        row: Row = {"kind": "epoch", "loss": sum(r["loss"] for r in newest) / len(newest)}
        if all("val_nll" in r for r in newest):
            row["val_nll"] = sum(r["val_nll"] for r in newest) / len(newest)
        return row
