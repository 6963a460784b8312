"""Checkpoints: one safetensors file each, whole or not there at all.

A file holds tensors, and in its header JSON text for everything else, the format's version and a checksum over both. It
is written beside its place, flushed to disk and renamed, so a crash leaves the old files or the new one, never a mix.
Reading checks all of it before anything is touched. Nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from bedl.errors import BEDLError
from bedl.files import in_order, write_atomically

__all__ = [
    "FORMAT", "VERSION", "CheckpointError", "Checkpoints", "Pace", "checksum", "flatten", "latest", "prune", "read",
    "resume_from", "unflatten", "write",
]  # fmt: skip

FORMAT = "bedl.training.checkpoint"
VERSION = 1
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


def checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    """SHA-256 of a text and of tensors: their names, types, shapes and numbers."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


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
    """

    directory: str | os.PathLike[str]
    every_steps: int = 0
    every_seconds: float = math.inf
    keep: int = 2
    least_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.every_steps < 0 or self.keep < 1 or not self.every_seconds > 0:
            raise ValueError("Checkpoints: every_steps is at least 0, every_seconds more than 0, keep at least 1")


class Pace:
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


def resume_from(places: Checkpoints | None, resume: bool | str | os.PathLike[str]) -> Path | None:
    """The checkpoint to go on from, if there is to be one."""
    newest = latest(Path(places.directory)) if places else None
    if resume is False:
        if newest is not None:
            raise CheckpointError(f"{newest} is of an earlier run: go on with resume='auto', or use another directory")
        return None
    if newest is None and resume is True:
        raise CheckpointError("resume=True, but there is no checkpoint; resume='auto' would start anew")
    return newest if resume in (True, "auto") else Path(resume)  # type: ignore[arg-type]
