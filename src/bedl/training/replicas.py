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

from bedl.methods import Averaged, Batch, Collection
from bedl.training.data import stream_seed
from bedl.training.nonfinite import NonFiniteLossError, find_origin
from bedl.training.replica_data import ReplicaBatches, Rows
from bedl.training.schedule import WARMUP, Schedule
from bedl.training.stacked import Stacked
from bedl.training.vector_adam import VectorAdam, clip_rows

__all__ = ["ReplicasResult", "fit_replicas"]


@dataclasses.dataclass(frozen=True)
class ReplicasResult:
    """What a run of replicas came to.

    Attributes:
        loss: each replica's mean loss over its last epoch. shape: (R,)
        rows: one per replica and epoch: replica, epoch, mean loss.
        steps: optimiser steps, of the replica that took most.
    """

    loss: Tensor
    rows: list[dict[str, Any]]
    steps: int


def fit_replicas(
    methods: Sequence[Any] | Collection,
    data: Any,
    *,
    epochs: int,
    batch_size: int = 32,
    lr: float | Sequence[float] = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    schedule: Schedule = WARMUP,
    gradient_clip: float | None = 1.0,
    seeds: Sequence[int] | None = None,
    device: torch.device | str | None = None,
    compile: bool = False,
) -> ReplicasResult:
    """Train methods of the same build independently of each other, in place, with Adam.

    Args:
        methods: the replicas, or an ensemble. Their parameters, buffers and the numbers in their objectives (a PAC
            term's strength, say) may differ; layers and shapes may not.
        data: (x, y) in memory for all, or a list with one for each, which may differ in size.
        epochs: how often each replica sees its points.
        batch_size: points per step and replica.
        lr: learning rate, for all or for each.
        betas, eps: Adam's.
        schedule: factor on the learning rate, of (step, the replica's total steps).
        gradient_clip: greatest norm of a replica's gradient; None for no clipping.
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
    if not isinstance(methods, (Collection, Sequence)):
        raise TypeError(f"fit_replicas takes a list of methods or an ensemble, not one {type(methods).__name__}")
    methods = list(methods.members if isinstance(methods, Collection) else methods)
    seeds = list(range(len(methods))) if seeds is None else list(seeds)
    rates = torch.as_tensor([lr] * len(methods) if isinstance(lr, (int, float)) else list(lr), dtype=torch.float64)
    if len(seeds) != len(methods) or len(rates) != len(methods):
        raise ValueError(
            f"{len(methods)} replicas need as many seeds and learning rates, not {len(seeds)} and {len(rates)}"
        )
    if len({id(method) for method in methods}) < len(methods):
        raise ValueError("fit_replicas: the same method stands in the list twice; copy it with copy.deepcopy")
    if epochs < 1:
        raise ValueError(f"fit_replicas: epochs must be at least 1, not {epochs}")
    stacked = Stacked(methods, device, compile)
    batches = ReplicaBatches(data, seeds, epochs, batch_size, stacked.device)
    adam = VectorAdam(stacked.parameters, betas, eps)
    draw = _Preparation(methods, seeds)
    losses = torch.full((len(batches), len(methods)), float("nan"))
    for step in range(len(batches)):
        rows = batches[step]
        batch = draw(rows, batches.sizes)
        loss, gradient = stacked.gradients(batch)
        if not bool(loss.isfinite().all() & gradient.isfinite().all()):
            raise _not_finite(stacked, batch, loss, gradient, step)
        if gradient_clip is not None:
            gradient = clip_rows(gradient, gradient_clip)
        factors = [schedule(step, total) if step < total else 0.0 for total in batches.totals]
        adam.step(gradient, (rates * torch.tensor(factors, dtype=torch.float64)).to(stacked.device))
        losses[step] = loss.cpu()
    stacked.write_back()
    return _result(losses, batches)


class _Preparation:
    """Batches for all replicas, with what each method draws for its own, from a generator of its own."""

    def __init__(self, methods: Sequence[Any], seeds: Sequence[int]):
        self.methods = methods
        # the stream that `fit` gives a single process with this seed
        self.generators = [torch.Generator().manual_seed(stream_seed(seed, 0)) for seed in seeds]
        self.draws = all(isinstance(method, Averaged) for method in methods)

    def __call__(self, rows: Rows, sizes: Sequence[int]) -> Batch:
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


def _result(losses: Tensor, batches: ReplicaBatches) -> ReplicasResult:
    rows, last = [], []
    for r, (total, count, n) in enumerate(zip(batches.totals, batches.per_epoch, batches.sizes, strict=True)):
        sizes = torch.full((count,), float(batches.batch_size))
        sizes[-1] = n - (count - 1) * batches.batch_size
        means = (losses[:total, r].reshape(-1, count) * sizes).sum(1) / n  # shape: (epochs,)
        rows += [{"kind": "epoch", "replica": r, "epoch": epoch, "loss": float(m)} for epoch, m in enumerate(means)]
        last.append(means[-1])
    return ReplicasResult(torch.stack(last), rows, len(batches))
