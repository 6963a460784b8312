"""Peak memory of a training step, in that of the deterministic network: of tensors that live at the same time."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from bedl.bench.util import PeakMemory
from bedl.methods import Batch
from bedl.training import adam
from benchmarks.nets import NETS
from benchmarks.passes import targets

__all__ = ["measure"]


def measure(name: str, batch: int) -> float:
    """Parameters, gradients, Adam's moments and the peak of a step, over the same of the deterministic network."""
    net = NETS[name]
    x, y = net.inputs(batch, 0), targets(net, batch)
    plain, method = net.plain(), net.factory(0)

    def plain_loss() -> Tensor:
        outputs = plain(x)
        if net.classes:
            return F.cross_entropy(outputs, y)
        return F.gaussian_nll_loss(outputs[:, 0], y, F.softplus(outputs[:, 1]))

    def bedl_loss() -> Tensor:
        return method.loss(Batch(x, y, 60_000))

    totals = []
    plain_adam = functools.partial(torch.optim.Adam, lr=1e-4)
    for model, loss, make in ((method, bedl_loss, adam(1e-4)), (plain, plain_loss, plain_adam)):
        optimizer = make(model.parameters())
        with PeakMemory(x, y) as memory:
            for _ in range(2):
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()
        totals.append(memory.peak + sum(p.nbytes for p in model.parameters()))
    return totals[0] / totals[1]
