"""One exact gradient, however the points of a step are spread over processes and micro-batches.

The loss is F(S), S the mean over all points of the step of the method's statistics. Its gradient is F'(S)·∇S, so each
micro-batch b contributes the gradient of the *surrogate*  (n_b/n)·F'(S)·s_b  with F'(S) held constant. What it costs:

- one micro-batch per process: nothing; S is gathered from the same forward pass (k numbers are all-reduced).
- several, and F only adds up: nothing; F' is known beforehand.
- several, and F is a root: S must be known before the first backward, so a first pass without gradients goes over the
  micro-batches: about a third more time, no more memory than their inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bedl.methods import Batch, Method
from bedl.nn import variance_products
from bedl.training.checkpoint import capture_torch, restore_torch
from bedl.training.compile import Compiled

__all__ = ["GradientStep", "MicroBatch"]


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
