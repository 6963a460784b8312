"""Peak memory: the bytes of tensors that live at the same time."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["PeakMemory"]


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
