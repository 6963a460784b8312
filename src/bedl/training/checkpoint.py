"""Checkpoints: one safetensors file each, whole or not there at all.

A file holds tensors, and in its header JSON text for everything else, the format's version and a checksum over both. It
is written beside its place, flushed to disk and renamed, so a crash leaves the old files or the new one, never a mix.
Reading checks all of it before anything is touched. Nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from bedl._utils.errors import BEDLError
from bedl._utils.io import in_order, write_atomically
from bedl._utils.storage import checksum
from bedl.nn.layers import CORRECTION

FORMAT = "bedl.training.checkpoint"
VERSION = 2
_NAME = re.compile(r"step-(\d+)\.safetensors")


class CheckpointError(BEDLError):
    """A checkpoint that cannot be used; nothing has been changed."""


# -- nested values as tensors and JSON ------------------------------------------------------------
def flatten(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """A nested value as JSON; its tensors go into `tensors` and leave their names behind.

    Example:
        >>> tensors = {}
        >>> flatten({"lr": 0.1, "betas": (0.9, 0.99), "state": {0: torch.zeros(2)}}, tensors, "adam")
        {'lr': 0.1, 'betas': {'tuple': [0.9, 0.99]}, 'state': {'pairs': [[0, {'tensor': 'adam.state.0'}]]}}
        >>> list(tensors)
        ['adam.state.0']
    """
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().contiguous().clone()
        return {"tensor": path}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and not set(value) & {"tensor", "tuple", "pairs"}:
            return {key: flatten(item, tensors, f"{path}.{key}") for key, item in value.items()}
        return {"pairs": [[key, flatten(item, tensors, f"{path}.{key}")] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [flatten(item, tensors, f"{path}.{number}") for number, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    raise TypeError(
        f"a checkpoint holds tensors, numbers, texts and containers of them; {path} is a {type(value).__name__}"
    )


def unflatten(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `flatten`."""
    if isinstance(value, list):
        return [unflatten(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"tensor"}:
        return tensors[value["tensor"]]
    if set(value) == {"tuple"}:
        return tuple(unflatten(item, tensors) for item in value["tuple"])
    if set(value) == {"pairs"}:
        return {key: unflatten(item, tensors) for key, item in value["pairs"]}
    return {key: unflatten(item, tensors) for key, item in value.items()}


# -- files ----------------------------------------------------------------------------------------
def write(path: Path, state: Mapping[str, Any]) -> None:
    """Write a nested state to `path`, all of it or nothing."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps({key: flatten(value, tensors, key) for key, value in state.items()})
    header = {"format": FORMAT, "version": str(VERSION), "state": text, "sha256": checksum(tensors, text)}
    write_atomically(path, in_order(safetensors.torch.save(tensors, header)))


def read(path: Path) -> dict[str, Any]:
    """The state that `write` wrote, after checking that it is exactly that."""
    if path.is_dir():
        raise CheckpointError(f"{path} is a directory; name one of the checkpoints in it, or pass it as checkpoint=")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise CheckpointError(f"{path} is a safetensors file, but not a checkpoint of bedl.training")
            if not header.get("version", "").isdigit() or int(header["version"]) > VERSION:
                raise CheckpointError(
                    f"{path} has version {header.get('version')} of the checkpoint format, this bedl reads up to "
                    f"{VERSION}; use the bedl that wrote it, or a newer one"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint at {path}") from None
    except (safetensors.SafetensorError, OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file ({error}); {_FALL_BACK}") from None
    text = header.get("state", "")
    if checksum(tensors, text) != header.get("sha256"):
        raise CheckpointError(f"the contents of {path} do not match their checksum; {_FALL_BACK}")
    return {key: unflatten(value, tensors) for key, value in json.loads(text).items()}


_FALL_BACK = "remove it to go on from the checkpoint before it"


def path_of(directory: Path, step: int) -> Path:
    return directory / f"step-{step:010d}.safetensors"


def stored(directory: Path) -> list[Path]:
    """The checkpoints in a directory, oldest first."""
    if not directory.is_dir():
        return []
    named = [(_NAME.fullmatch(path.name), path) for path in directory.iterdir()]
    return [path for _, path in sorted((int(match[1]), path) for match, path in named if match)]


def latest(directory: Path) -> Path | None:
    """The newest checkpoint in a directory, if there is one."""
    paths = stored(directory)
    return paths[-1] if paths else None


def prune(directory: Path, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints, and what crashed writers left behind."""
    for path in stored(directory)[: -keep or None]:
        path.unlink(missing_ok=True)
    for path in directory.glob(".step-*.part*"):
        path.unlink(missing_ok=True)


# -- when to write one, and which to go on from ------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Where and how often checkpoints are written.

    Args:
        directory: for this run alone.
        every_steps: after so many optimiser steps; 0: only at the end of epochs.
        every_seconds: and when so much time has passed since the last one, within an epoch.
        keep: how many of the newest are kept.
        least_seconds: at the end of an epoch only if so much time has passed; epochs of tiny tables take less time
            than a checkpoint.
        resume: "auto": go on from the newest checkpoint if there is one. True: there has to be one. False: there must
            be none. A path: from that one.
    """

    directory: str | os.PathLike[str]
    every_steps: int = 0
    every_seconds: float = math.inf
    keep: int = 2
    least_seconds: float = 0.0
    resume: bool | str | os.PathLike[str] = "auto"

    def __post_init__(self) -> None:
        if self.every_steps < 0 or self.keep < 1 or not self.every_seconds > 0:
            raise ValueError("Checkpoints: every_steps is at least 0, every_seconds more than 0, keep at least 1")


class CheckpointTimer:
    """When the next checkpoint is due.

    Args:
        places: what was asked for; None: never.
    """

    def __init__(self, places: Checkpoints | None):
        self.places, self.last = places, time.monotonic()

    def due(self, step: int, end_of_epoch: bool) -> bool:
        """Whether to write one now, after so many steps."""
        if self.places is None:
            return False
        passed = time.monotonic() - self.last
        due = (
            (end_of_epoch and passed >= self.places.least_seconds)
            or bool(self.places.every_steps and step % self.places.every_steps == 0)
            or passed >= self.places.every_seconds
        )
        if due:
            self.last = time.monotonic()
        return due


def as_checkpoints(checkpoint: str | os.PathLike[str] | Checkpoints | None) -> Checkpoints | None:
    """Checkpoints in a directory; what was said about them as it is."""
    return Checkpoints(checkpoint) if isinstance(checkpoint, (str, os.PathLike)) else checkpoint


def resume_from(places: Checkpoints | None) -> Path | None:
    """The checkpoint to go on from, if there is to be one."""
    if places is None:
        return None
    newest, resume = latest(Path(places.directory)), places.resume
    if resume is False:
        if newest is not None:
            raise CheckpointError(
                f"{newest} is of an earlier run: go on with Checkpoints(…, resume='auto'), or use another directory"
            )
        return None
    if newest is None and resume is True:
        raise CheckpointError("resume=True, but there is no checkpoint; resume='auto' would start anew")
    return newest if resume in (True, "auto") else Path(resume)  # type: ignore[arg-type]


# The random generators' states, as plain values that a checkpoint can hold.


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


# Weights by themselves, and what a checkpoint is compared with.


def build_of(method: nn.Module) -> str:
    """Layers, head and objective with their settings, as text; without the addresses of functions."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(method))


def save_weights(method: nn.Module, path: str | Path) -> None:
    """Write the weights of a method, an ensemble too, to one file, whole or not at all; `load_weights` reads it.

    Example:
        >>> import tempfile, bedl
        >>> from bedl.training import load_weights, save_weights
        >>> one, two = (bedl.BEDL(bedl.GaussianLinear(3, 2), bedl.Normal(1)) for _ in range(2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_weights(one, f"{folder}/weights.safetensors")
        ...     load_weights(two, f"{folder}/weights.safetensors")
        >>> bool((one.net.weight_mean == two.net.weight_mean).all())
        True
    """
    write(Path(path), {"method": dict(method.state_dict()), "build": build_of(method)})


def load_weights(method: nn.Module, path: str | Path) -> None:
    """Load the weights of a checkpoint, or of `save_weights`, into a method of the same build, on any device.

    Raises:
        CheckpointError: if the file is damaged, no checkpoint, or of another network; the method is unchanged.
    """
    content = read(Path(path))
    if "method" not in content:
        raise CheckpointError(f"{path} is of several methods that were trained as one; resume that run instead")
    compare_tensors(content["method"], method, Path(path))
    method.load_state_dict(content["method"])


def compare_settings(theirs: Mapping[str, Any], ours: Mapping[str, Any], path: Path) -> None:
    different = [f"{key}={theirs.get(key)!r} (now {ours[key]!r})" for key in ours if theirs.get(key) != ours[key]]
    if different:
        raise CheckpointError(
            f"{path} is of a run with {', '.join(different)}: going on would not be the same run. Use the same "
            "settings, another directory, or load_weights() to start a new run from these weights"
        )


def compare_tensors(theirs: Mapping[str, Tensor], method: nn.Module, path: Path) -> None:
    ours = method.state_dict()
    # what `correct_variances` fitted comes and goes with the weights, in any network
    theirs, ours = (
        {name: t for name, t in d.items() if name.rpartition(".")[2] not in CORRECTION} for d in (theirs, ours)
    )
    problems = [f"{name} is missing" for name in ours if name not in theirs]
    problems += [f"{name} is not part of this network" for name in theirs if name not in ours]
    problems += [
        f"{name} has shape {tuple(theirs[name].shape)}, not {tuple(ours[name].shape)}"
        for name in ours
        if name in theirs and theirs[name].shape != ours[name].shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise CheckpointError(f"{path} is of another network: {'; '.join(problems[:3])}{more}")


def gather_json(fabric: Any, value: Any) -> list[Any]:
    """A JSON-like value of every process, by bytes: nothing is pickled here either."""
    value = _lists_from_tensors(value)
    if fabric.world_size == 1:
        return [value]
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    length = torch.tensor(len(text), device=fabric.device)
    lengths = fabric.all_gather(length)
    padded = torch.zeros(int(lengths.max()), dtype=torch.uint8, device=fabric.device)
    padded[: len(text)] = text.to(fabric.device)
    gathered = fabric.all_gather(padded).cpu()
    return [json.loads(bytes(row[:n].tolist())) for row, n in zip(gathered, lengths.tolist(), strict=True)]


def _lists_from_tensors(value: Any) -> Any:
    if isinstance(value, Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
    if isinstance(value, dict):
        return {key: _lists_from_tensors(item) for key, item in value.items()}
    return [_lists_from_tensors(item) for item in value] if isinstance(value, list) else value


def tensors_from_lists(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"dtype", "values"}:
        return torch.tensor(value["values"], dtype=getattr(torch, value["dtype"]))
    if isinstance(value, dict):
        return {key: tensors_from_lists(item) for key, item in value.items()}
    return [tensors_from_lists(item) for item in value] if isinstance(value, list) else value
