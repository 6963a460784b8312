"""One network on one device, several, or several machines: the engine on Lightning's Fabric.

The gradient of a step is exact, however its points are spread over processes and micro-batches.

The loss is F(S), S the mean over all points of the step of the method's statistics. Its gradient is F'(S)·∇S, so each
micro-batch b contributes the gradient of the *surrogate*  (n_b/n)·F'(S)·s_b  with F'(S) held constant. What it costs:

- one micro-batch per process: nothing; S is gathered from the same forward pass (k numbers are all-reduced).
- several, and F only adds up: nothing; F' is known beforehand.
- several, and F is a root: S must be known before the first backward, so a first pass without gradients goes over the
  micro-batches: about a third more time, no more memory than their inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bedl.methods import Batch, Method
from bedl.nn import variance_products
from bedl.training import checkpoint
from bedl.training.callbacks import Row, counted, learning_rates, scored
from bedl.training.checkpoint import (
    CheckpointError,
    build_of,
    capture_torch,
    compare_tensors,
    gather_json,
    restore_torch,
    tensors_from_lists,
)
from bedl.training.compile import Compiled, should_compile, variance_precision
from bedl.training.data import DataCursor, Fetched, Points, cast, stream_seed
from bedl.training.diagnostics import (
    NonFiniteLossError,
    check_constant_predictions,
    find_origin,
    warn_of_missing_gradients,
)
from bedl.training.loop import Run, Settings, adam, correct_after_fit, reset_correction

_POSITION = ("epoch", "batch", "step", "loss_sum", "loss_points")


MicroBatch = tuple[
    Batch, float
]  # a micro-batch and how much it counts: its number of points, or the sum of their weights


class Statistics(nn.Module):
    """A method seen as a module whose forward gives its statistics: what Fabric wraps for precision and processes.

    Args:
        method: the method to look at.
        compile: whether to run it through `torch.compile`.
        variances: what products that make variances round their operands to, if anything.
    """

    def __init__(self, method: Method, compile: bool = False, variances: torch.dtype | None = None):
        super().__init__()
        self.method, self.variances = method, variances
        self.run = Compiled(self._run) if compile else self._run

    def forward(self, batch: Batch, loss: bool = False) -> Tensor:
        """The statistics of a batch, shape (k,), or its loss, shape (1,)."""
        with variance_products(self.variances):
            return self.run(batch, loss)

    def _run(self, batch: Batch, loss: bool) -> Tensor:
        statistics = self.method.statistics(batch)
        return self.method.combine(statistics, batch.n_train).reshape(1) if loss else statistics


class GradientStep:
    """Accumulates, in the parameters' `.grad`, the gradient of a step's loss.

    Args:
        fabric: the Fabric that set up `module`.
        module: `Statistics(method)` as Fabric wrapped it.
        method: the method itself.
    """

    def __init__(self, fabric: Any, module: Any, method: Method):
        self.fabric, self.module, self.method = fabric, module, method

    def __call__(self, micro_batches: Sequence[MicroBatch], n_points: float) -> Tensor:
        """Back-propagate this process's micro-batches.

        Args:
            micro_batches: they, prepared.
            n_points: how many points the step has over all processes, or the sum of their weights.

        Returns:
            the loss of the whole step, the same on every process. shape: ()
        """
        n_train, world = micro_batches[0][0].n_train, self.fabric.world_size
        if (
            world == 1 and len(micro_batches) == 1
        ):  # all the points are here: nothing has to be gathered before the root
            loss = self._forward(micro_batches[0][0], loss=True)
            self.fabric.backward(loss.sum())
            return loss.detach()[0]
        slope: Tensor | None = None
        if len(micro_batches) > 1 and not self.method.additive:
            slope = self._slope(self._first_pass(micro_batches, n_points), n_train)
        local: Tensor | None = None
        for number, (batch, count) in enumerate(micro_batches):
            waits = world > 1 and number < len(micro_batches) - 1  # processes exchange gradients once, with the last
            with self.fabric.no_backward_sync(self.module) if waits else nullcontext():
                statistics = self._forward(batch)
                part = statistics.detach() * (count / n_points)
                local = part if local is None else local + part
                if slope is None:
                    slope = self._slope(part if self.method.additive else self._over_processes(part), n_train)
                # DDP averages over processes what has to be added up
                self.fabric.backward((slope * statistics).sum() * (world * count / n_points))
        assert local is not None
        with torch.no_grad():
            return self.method.combine(self._over_processes(local), n_train)

    def _forward(self, batch: Batch, loss: bool = False) -> Tensor:
        """As `Statistics.forward`."""
        precision = self.fabric.strategy.precision
        # Fabric hands results back in torch's default type, which would round them here
        double = precision.precision == "64-true"
        with precision.tensor_init_context() if double else nullcontext():
            return self.module(batch, loss)

    def _slope(self, mean: Tensor, n_train: Any) -> Tensor:
        """F'(S). mean: shape (k,); result: shape (k,)"""
        with torch.enable_grad():
            mean = mean.detach().requires_grad_()
            return torch.autograd.grad(self.method.combine(mean, n_train), mean)[0]

    def _over_processes(self, part: Tensor) -> Tensor:
        # a copy: the reduction is in place, and parts of this process go on being added up
        return self.fabric.all_reduce(part.clone(), reduce_op="sum") if self.fabric.world_size > 1 else part

    @torch.no_grad()
    def _first_pass(self, micro_batches: Sequence[MicroBatch], n_points: float) -> Tensor:
        """S, the mean statistics over all micro-batches and processes, leaving no trace. shape: (k,)"""
        before = capture_torch(self.fabric.device)
        buffers = [(buffer, buffer.clone()) for buffer in self.method.buffers()]
        parts = [self._forward(batch) * (count / n_points) for batch, count in micro_batches]
        for buffer, value in buffers:  # running statistics of batch norm must see each batch once
            buffer.copy_(value)
        restore_torch(before, self.fabric.device)  # dropout draws the same again
        return self._over_processes(torch.stack(parts).sum(0))


class FabricRun(Run):
    """A run of one network, on one device or several.

        for each epoch:                                   the order follows from (seed, epoch)
            for each global batch:                        `batch_size` points over all processes
                this process's share, in micro-batches    → GradientStep: the exact gradient of the whole batch
                clip, check, optimiser step, checkpoint

    The result does not depend on how a global batch is spread over processes and micro-batches, up to rounding.

    Attributes:
        method: what is trained.
        batch: the next global batch of the epoch, counted from 0.
    """

    engine = "fabric"

    def __init__(self, fabric: Any, method: Method, points: Points, validation: Points | None, settings: Settings):
        super().__init__(settings)
        self.fabric, self.method, self.points, self.validation = fabric, method, points, validation
        reset_correction(method, settings.correct)
        method.to(fabric.device)  # before the optimiser looks at where parameters are
        optimizer = (settings.optimizer or adam())([p for p in method.parameters() if p.requires_grad])
        self.total_steps = settings.epochs * points.steps(settings.batch_size)
        base = [group["lr"] for group in optimizer.param_groups]
        self.learning_rates = learning_rates(settings.schedule, base, self.total_steps)
        compile = self._compiles()
        variances = variance_precision(settings.gradient.variance_products, compile, fabric.device.type)
        self.module, self.optimizer = fabric.setup(Statistics(method, compile, variances), optimizer)
        self.gradient = GradientStep(fabric, self.module, method)
        self.epoch = self.batch = 0
        self.loss_sum, self.loss_points = 0.0, 0.0
        self.stopped_early = False
        self.rows: list[Row] = []
        self.seen: Batch | None = None  # the last batch, but that at the end of an epoch

    def _compiles(self) -> bool:
        s, fabric = self.settings, self.fabric
        before = checkpoint.capture(fabric.device)
        try:
            size = -(-s.batch_size // (s.gradient.accumulate * fabric.world_size))
            return should_compile(s.compile, self.method, self.points, size, self.total_steps, fabric.device.type)
        finally:
            checkpoint.restore(before, fabric.device)

    def _has_ended(self) -> bool:
        return self.epoch >= self.settings.epochs or self.stopped_early

    def _finish(self) -> None:
        if self.best is not None:
            self.method.load_state_dict(self.best)
        inputs = self.points if self.validation is None else self.validation
        correct_after_fit(self.method, inputs, self.settings.correct, self.step, self.fabric.device)
        if self.method.has_fit_end:
            with torch.no_grad():
                self.method.eval()
                validation_batches = () if self.validation is None else self._whole(self.validation)
                self.method.on_fit_end(self._whole(self.points), validation_batches)
        if self.seen is not None and self.fabric.world_size == 1:  # over processes, parameters may be spread
            check_constant_predictions(self.method, self.seen)

    def _whole(self, points: Points, chunk: int = 1024) -> Iterator[Batch]:
        """A set in parts, on the device."""
        for fetched in points.everything(0, 1, chunk):
            x, y, weight = self.fabric.to_device(cast(*fetched, self.method))
            yield Batch(x, y, self.points.n_train, weight)

    def _advance(self) -> None:
        """An epoch, or what is left of it."""
        self.method.train()
        for micro_batches, n_points, last in self._steps():
            self._step(micro_batches, n_points)
            if self.stop:
                self.stopped_early = True
            if last:
                self._end_of_epoch()
            self._maybe_save(end_of_epoch=last)
            if self.stopped_early:
                return

    def _end_of_epoch(self) -> None:
        row: Row = {
            "kind": "epoch",
            "epoch": self.epoch,
            "step": self.step,
            "loss": self.loss_sum / (self.loss_points or 1),
        }
        if self.validation is not None:
            row["val_nll"] = self.evaluate(self.validation)
            if self.stopping.update({0: row["val_nll"]}):
                self.best = {name: value.detach().cpu().clone() for name, value in self.method.state_dict().items()}
            self.stopped_early |= self.stopping.stopped[0]
        self.rows.append(row)
        self._tell("on_epoch", row)
        self.fabric.log_dict({k: v for k, v in row.items() if isinstance(v, float)}, step=self.step)
        self.epoch, self.batch, self.loss_sum, self.loss_points = self.epoch + 1, 0, 0.0, 0

    # -- one step ---------------------------------------------------------------------------------
    def _steps(self) -> Iterator[tuple[list[MicroBatch], float, bool]]:
        """What is left of this epoch: micro-batches, how much all points of the step count, whether it is the last."""
        s, fabric = self.settings, self.fabric
        rank, world = fabric.global_rank, fabric.world_size
        for share in self.points.shards(
            DataCursor(s.batch_size, s.seeds[0], self.epoch, self.batch, rank, world, s.gradient.accumulate)
        ):
            micro_batches = [self._prepared(points, count) for points, count in share.micro_batches]
            weighted = counted(self.method, micro_batches[0][0].y, micro_batches[0][0].weight)[1] is not None
            yield (
                micro_batches,
                self._total(sum(c for _, c in micro_batches)) if weighted else share.n_points,
                share.last,
            )

    def _prepared(self, points: Fetched, count: float) -> MicroBatch:
        """A micro-batch on its device, and how much it counts: the sum of its weights, or how many points it has."""
        x, y, weight = points
        counts = counted(self.method, y, weight)[1]
        if counts is not None:
            count = float(counts.double().sum()) if count else 0.0
        x, y, weight = self.fabric.to_device(cast(x, y, weight, self.method))
        batch = Batch(x, y, self.points.n_train, weight, epoch=self._epoch_of(y.device))
        return self.method.prepare(batch), count

    def _epoch_of(self, device: torch.device) -> Tensor | None:
        """How often points have been seen so far, if the method asks for it. shape: ()"""
        if not self.method.uses_epoch:
            return None
        return torch.tensor(self.epoch + self.batch * self.settings.epochs / self.total_steps, device=device)

    def _total(self, count: float) -> float:
        """The sum over processes."""
        if self.fabric.world_size == 1:
            return count
        total = torch.tensor(count, dtype=torch.float64, device=self.fabric.device)
        return float(self.fabric.all_reduce(total, reduce_op="sum"))

    def _step(self, micro_batches: list[MicroBatch], n_points: float) -> None:
        if n_points == 0:  # all weights are 0
            self.step, self.batch = self.step + 1, self.batch + 1
            return
        for group, rate in zip(self.optimizer.param_groups, self.learning_rates(self.step), strict=True):
            group["lr"] = rate
        before = capture_torch(self.fabric.device)
        self.optimizer.zero_grad()
        loss = self.gradient(micro_batches, n_points)
        if self.seen is None and self.fabric.world_size == 1:  # over processes, parameters may be spread
            warn_of_missing_gradients(self.method)
        norm = self._clip()
        total = float(loss)
        scaled = getattr(self.fabric.strategy.precision, "scaler", None) is not None  # float16 skips overflows itself
        if not torch.isfinite(loss + (0.0 if scaled else norm.to(loss.device))):
            restore_torch(before, self.fabric.device)
            origin = find_origin(self.method, [batch for batch, _ in micro_batches], self.fabric.autocast)
            self.optimizer.zero_grad()
            raise NonFiniteLossError(self.step, total, origin, self.checkpoint)
        self.optimizer.step()
        if self.seen is None or len(micro_batches[0][0].y) >= len(self.seen.y):
            self.seen = micro_batches[0][0]
        self.step, self.batch = self.step + 1, self.batch + 1
        self.loss_sum, self.loss_points = self.loss_sum + total * n_points, self.loss_points + n_points
        rate = self.optimizer.param_groups[0]["lr"]
        row = {"kind": "step", "epoch": self.epoch, "step": self.step, "loss": total, "lr": rate, "points": n_points}
        self._tell("on_step", row)

    def _clip(self) -> Tensor:
        limit = self.settings.gradient.clip
        norm = self.fabric.clip_gradients(
            self.module, self.optimizer, max_norm=float("inf") if limit is None else limit, error_if_nonfinite=False
        )
        return torch.as_tensor(0.0) if norm is None else norm

    # -- several processes, and checkpoints -------------------------------------------------------
    @property
    def _is_first(self) -> bool:
        return self.fabric.is_global_zero

    def _agreed(self, value: bool) -> bool:
        return self.fabric.broadcast(value) if self.fabric.world_size > 1 else value

    def save(self, directory: Path, keep: int) -> Path:
        path = super().save(directory, keep)
        self.fabric.barrier()
        return path

    def _fingerprint(self) -> dict[str, Any]:
        s = self.settings
        return {"n_train": self.points.n_train, "batch_size": s.batch_size, "seed": s.seeds[0]}

    def _build(self) -> str:
        return build_of(self.method)

    def _state(self) -> dict[str, Any]:
        randoms = gather_json(self.fabric, checkpoint.capture(self.fabric.device))
        broken = [name for name, p in self.method.named_parameters() if not bool(p.isfinite().all())]
        if broken:
            raise CheckpointError(
                f"no checkpoint of parameters that are not finite ({broken[0]}); the last good one stays"
            )
        return {
            "method": dict(self.method.state_dict()),
            "optimizer": {"type": type(self.optimizer.optimizer).__name__, "state": self.optimizer.state_dict()},
            "precision": self.fabric.strategy.precision.state_dict(),
            "position": {name: getattr(self, name) for name in _POSITION},
            "random": randoms,
        }

    def _set_state(self, state: dict[str, Any], path: Path) -> None:
        compare_tensors(state["method"], self.method, path)
        self._compare_build(state["build"], path)
        self._compare_optimizer(state["optimizer"], path)
        self.method.load_state_dict(state["method"])
        self.optimizer.load_state_dict(state["optimizer"]["state"])
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        for name in _POSITION:
            setattr(self, name, state["position"][name])
        randoms, fabric = state["random"], self.fabric
        if len(randoms) == fabric.world_size:
            checkpoint.restore(tensors_from_lists(randoms[fabric.global_rank]), fabric.device)
        else:  # another number of processes: the old streams do not fit
            torch.manual_seed(stream_seed(self.settings.seeds[0], fabric.global_rank, self.step))

    def load(self, path: Path) -> None:
        super().load(path)
        self.stopped_early = self.stopping.stopped[0]

    def _compare_optimizer(self, theirs: Mapping[str, Any], path: Path) -> None:
        kind, groups = type(self.optimizer.optimizer).__name__, self.optimizer.state_dict()["param_groups"]
        sizes = [len(group["params"]) for group in groups]
        their_sizes = [len(group["params"]) for group in theirs["state"]["param_groups"]]
        if theirs["type"] != kind or their_sizes != sizes:
            raise CheckpointError(
                f"{path} holds {theirs['type']} over {their_sizes} parameters, this run has {kind} over {sizes}"
            )

    # -- scores -----------------------------------------------------------------------------------
    @torch.no_grad()
    def evaluate(self, points: Points, chunk: int = 1024) -> float:
        """(Weighted) mean −log p(y|x) over a set, shared among the processes."""
        world = self.fabric.world_size
        total = torch.zeros(2, dtype=torch.float64, device=self.fabric.device)
        for fetched in points.everything(self.fabric.global_rank, world, chunk):
            x, y, weight = self.fabric.to_device(cast(*fetched, self.method))
            with self.fabric.autocast():
                log_p, counts = scored(self.method, x, y, weight)
            total += torch.stack([-(counts.double() * log_p.double()).sum(), counts.double().sum()])
        total = self.fabric.all_reduce(total, reduce_op="sum") if world > 1 else total
        return float(total[0] / total[1])
