"""The random generators' states, as plain values that a checkpoint can hold."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["capture", "capture_torch", "restore", "restore_torch", "seed"]


def capture_torch(device: torch.device) -> dict[str, Tensor]:
    """torch's generators: the CPU's, and the device's if that has one of its own."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["device"] = torch.cuda.get_rng_state(device)
    return state


def restore_torch(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "device" in state:
        torch.cuda.set_rng_state(state["device"], device)


def seed(number: int) -> None:
    """Seed them all."""
    torch.manual_seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002
    random.seed(number)


def capture(device: torch.device) -> dict[str, Any]:
    """All of them, Python's and numpy's too: datasets draw from those."""
    name, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002  (the state is what others use)
    version, internal, following = random.getstate()
    return {
        "torch": capture_torch(device),
        "numpy": [
            str(name),
            torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ],
        "python": [version, list(internal), following],
    }


def restore(state: dict[str, Any], device: torch.device) -> None:
    restore_torch(state["torch"], device)
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    version, internal, following = state["python"]
    random.setstate((version, tuple(internal), following))
