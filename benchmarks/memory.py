"""Peak memory of a training step, in that of the deterministic network: of tensors that live at the same time."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bedl.methods import Batch
from bedl.training import adam
from benchmarks.nets import NETS
from benchmarks.passes import targets

__all__ = ["measure"]


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of all storages that operations make inside the block, while they live.

    Args:
        given: what was there before and does not count, though views of it are made.

    Attributes:
        peak: the most there were at once.
    """

    def __init__(self, *given: Tensor) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in given}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._take(leaf.untyped_storage())
        return result

    def _take(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._give_back, key, size)

    def _give_back(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


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
