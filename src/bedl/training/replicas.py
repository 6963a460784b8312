"""Many networks as one: R methods of the same build, trained side by side in one vectorised run.

Splits, seeds, ensemble members, values of a hyper-parameter: a small network keeps no processor busy, R of them at once
do. Parameters are stacked into one tensor of shape (R, P), `torch.func.vmap` runs the forward pass of all replicas, and
Adam updates all rows. Each replica ends up where `fit` with its seed would have taken it, up to rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bedl.methods import Batch, Method
from bedl.nn import refuse_frozen
from bedl.training.data import stream_seed
from bedl.training.early_stopping import EarlyStopping
from bedl.training.nonfinite import NonFiniteLossError, find_origin
from bedl.training.replica_data import ReplicaBatches, Rows
from bedl.training.replica_stopping import ReplicaWatch
from bedl.training.schedule import WARMUP, Schedule
from bedl.training.stacked import Stacked
from bedl.training.vector_adam import VectorAdam, clip_rows

__all__ = ["ReplicasResult", "fit_replicas"]


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
    seeds: Sequence[int] | None = None,
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
        seeds: each replica's order of points and perturbations; 0, 1, 2, … by default.
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
    rates = torch.as_tensor([lr] * len(methods) if isinstance(lr, (int, float)) else list(lr), dtype=torch.float64)
    if len(seeds) != len(methods) or len(rates) != len(methods):
        raise ValueError(
            f"{len(methods)} replicas need as many seeds and learning rates, not {len(seeds)} and {len(rates)}"
        )
    if len({id(method) for method in methods}) < len(methods):
        raise ValueError("fit_replicas: the same method stands in the list twice; copy it with copy.deepcopy")
    for method in methods:
        refuse_frozen(method, "fit_replicas")
    if epochs < 1:
        raise ValueError(f"fit_replicas: epochs must be at least 1, not {epochs}")
    if isinstance(early_stopping, bool):
        early_stopping = EarlyStopping() if early_stopping else None
    if early_stopping is not None and validation is None:
        raise ValueError("fit_replicas: early_stopping looks at a validation set; pass validation=(x, y)")
    stacked = Stacked(methods, device, compile)
    batches = ReplicaBatches(data, seeds, epochs, batch_size, stacked.device, methods[0])
    watch = None if validation is None else ReplicaWatch(stacked, validation, early_stopping)
    adam = VectorAdam(stacked.parameters, betas, eps)
    draw = _Preparation(methods, seeds)
    losses = _Losses(batches)
    stopped = [False] * len(methods)
    for step in range(len(batches)):
        rows = batches[step]
        batch = draw(rows, batches.n_train)
        loss, gradient = stacked.gradients(batch)
        if not bool(loss.isfinite().all() & gradient.isfinite().all()):
            raise _not_finite(stacked, batch, loss, gradient, step)
        if gradient_clip is not None:
            gradient = clip_rows(gradient, gradient_clip)
        going = [step < total and not done for total, done in zip(batches.totals, stopped, strict=True)]
        factors = [schedule(step, total) if on else 0.0 for on, total in zip(going, batches.totals, strict=True)]
        adam.step(gradient, (rates * torch.tensor(factors, dtype=torch.float64)).to(stacked.device))
        ended = losses.add(loss, rows, going)
        if watch is not None and any(ended):
            losses.score(ended, watch.update(ended))
            stopped = watch.stopped
            if all(stopped):
                break
    if watch is not None:
        watch.restore()
    stacked.write_back()
    return losses.result()


def _replicas(methods: Any) -> list[Method]:
    if isinstance(methods, Method) and methods.learns == "in its members":
        methods = methods.members
    elif isinstance(methods, Method) or not isinstance(methods, Sequence):
        raise TypeError(f"fit_replicas takes a list of methods or an ensemble, not one {type(methods).__name__}")
    for method in methods:
        if not isinstance(method, Method) or method.learns != "by steps":
            raise TypeError(f"fit_replicas trains methods that learn by steps; {type(method).__name__} is none")
    return list(methods)


class _Preparation:
    """Batches for all replicas, with what each method draws for its own, from a generator of its own."""

    def __init__(self, methods: Sequence[Any], seeds: Sequence[int]):
        self.methods = methods
        # the stream that `fit` gives a single process with this seed
        self.generators = [torch.Generator().manual_seed(stream_seed(seed, 0)) for seed in seeds]
        self.draws = True

    def __call__(self, rows: Rows, sizes: Sequence[Any]) -> Batch:
        """shapes: as in Batch, with R replicas in front; n_train: shape (R,)"""
        n_train = torch.tensor(sizes, dtype=torch.float32, device=rows.y.device)
        batch = Batch(rows.x, rows.y, n_train, rows.weight)
        if not self.draws:
            return batch
        copies = []
        for r, (method, generator) in enumerate(zip(self.methods, self.generators, strict=True)):
            count = rows.counts[r] or 1
            own = Batch(rows.x[r, :count], rows.y[r, :count], sizes[r])
            prepared = method.prepare(own, generator)
            if prepared is own:
                self.draws = False  # nothing is drawn in these objectives
                return batch
            padding = rows.x[r, count:]
            copies.append(torch.cat([prepared.perturbed, padding]) if len(padding) else prepared.perturbed)
        return batch._replace(perturbed=torch.stack(copies))


def _not_finite(stacked: Stacked, batch: Batch, loss: Tensor, gradient: Tensor, step: int) -> NonFiniteLossError:
    """The error for the first replica whose loss or gradient is not finite; all keep the parameters they had."""
    stacked.write_back()
    replica = int((~(loss.isfinite() & gradient.isfinite().all(1))).nonzero()[0])
    parts: list[Any] = [None if part is None else part[replica] for part in batch]  # type: ignore[index]
    own = Batch._make(parts)._replace(n_train=int(parts[2]))
    origin = find_origin(stacked.methods[replica], [own])
    where = dataclasses.replace(origin, where=f"replica {replica}: {origin.where}")
    return NonFiniteLossError(step, float(loss[replica]), where, checkpoint=None)


class _Losses:
    """Each replica's mean loss per epoch, as it comes about."""

    def __init__(self, batches: ReplicaBatches):
        self.per_epoch, self.steps = batches.per_epoch, 0
        self.sums, self.masses = ([0.0] * len(self.per_epoch) for _ in range(2))
        self.epochs: list[list[dict[str, Any]]] = [[] for _ in self.per_epoch]

    def add(self, loss: Tensor, rows: Rows, going: Sequence[bool]) -> list[bool]:
        """Take in a step. Says which replicas have ended an epoch. loss: shape (R,)"""
        masses = list(map(float, rows.counts)) if rows.weight is None else rows.weight.sum(1).tolist()
        self.steps += 1
        ended = [on and self.steps % count == 0 for on, count in zip(going, self.per_epoch, strict=True)]
        for r, (value, mass, on) in enumerate(zip(loss.tolist(), masses, going, strict=True)):
            if on:
                self.sums[r], self.masses[r] = self.sums[r] + value * mass, self.masses[r] + mass
            if ended[r]:
                row = {
                    "kind": "epoch",
                    "replica": r,
                    "epoch": len(self.epochs[r]),
                    "loss": self.sums[r] / self.masses[r],
                }
                self.epochs[r].append(row)
                self.sums[r] = self.masses[r] = 0.0
        return ended

    def score(self, ended: Sequence[bool], scores: Sequence[float]) -> None:
        for r in [r for r, end in enumerate(ended) if end]:
            self.epochs[r][-1]["val_nll"] = scores[r]

    def result(self) -> ReplicasResult:
        last = torch.tensor([rows[-1]["loss"] for rows in self.epochs])
        return ReplicasResult(last, [row for rows in self.epochs for row in rows], self.steps)
