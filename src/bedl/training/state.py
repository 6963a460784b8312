"""A run's state as a checkpoint, and back: weights, optimiser, random generators, position in the data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bedl.nn.layers import CORRECTION
from bedl.training import checkpoint, random_state
from bedl.training.checkpoint import CheckpointError
from bedl.training.data import stream_seed

if TYPE_CHECKING:
    from bedl.training.run import Run

__all__ = ["build_of", "compare_settings", "load", "load_weights", "save", "save_weights"]

_POSITION = ("epoch", "batch", "step", "loss_sum", "loss_points")


def save(run: Run, directory: Path, keep: int) -> Path:
    """Write the run's checkpoint, then remove old ones. All processes take part, the first one writes."""
    randoms = _gather_json(run.fabric, random_state.capture(run.fabric.device))
    path = checkpoint.path_of(directory, run.step)
    if run.fabric.is_global_zero:
        broken = [name for name, p in run.method.named_parameters() if not bool(p.isfinite().all())]
        if broken:
            raise CheckpointError(
                f"no checkpoint of parameters that are not finite ({broken[0]}); the last good one stays"
            )
        content = {
            "method": dict(run.method.state_dict()),
            "optimizer": {"type": type(run.optimizer.optimizer).__name__, "state": run.optimizer.state_dict()},
            "precision": run.fabric.strategy.precision.state_dict(),
            "position": {name: getattr(run, name) for name in _POSITION},
            "early_stopping": run.watch.state_dict() if run.watch else None,
            "random": randoms,
            "settings": run.settings.fingerprint(run.points.n_train),
            "build": build_of(run.method),
            "torch": torch.__version__,
        }
        checkpoint.write(path, content)
        checkpoint.prune(directory, keep)
    run.fabric.barrier()
    return path


def load(run: Run, path: Path) -> None:
    """Take up a run at a checkpoint. Everything is read and compared first; an error leaves the run as it was."""
    content = checkpoint.read(path)
    compare_settings(content["settings"], run.settings.fingerprint(run.points.n_train), path)
    _compare_tensors(content["method"], run.method, path)
    if content["build"] != build_of(run.method):
        raise CheckpointError(
            f"{path} was written with another network, head or objective of the same shapes; use the same ones, "
            "or start anew with another checkpoint directory"
        )
    _compare_optimizer(content["optimizer"], run.optimizer, path)
    if (content["early_stopping"] is None) != (run.watch is None):
        raise CheckpointError(f"{path} was written with another choice of early_stopping")
    run.method.load_state_dict(content["method"])
    run.optimizer.load_state_dict(content["optimizer"]["state"])
    run.fabric.strategy.precision.load_state_dict(content["precision"])
    for name in _POSITION:
        setattr(run, name, content["position"][name])
    if run.watch:
        run.watch.load_state_dict(content["early_stopping"])
        run.stopped_early = run.watch.over
    randoms, fabric = content["random"], run.fabric
    if len(randoms) == fabric.world_size:
        random_state.restore(_tensors_from_lists(randoms[fabric.global_rank]), fabric.device)
    else:  # another number of processes: the old streams do not fit
        torch.manual_seed(stream_seed(run.settings.seed, fabric.global_rank, run.step))


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
    checkpoint.write(Path(path), {"method": dict(method.state_dict()), "build": build_of(method)})


def load_weights(method: nn.Module, path: str | Path) -> None:
    """Load the weights of a checkpoint, or of `save_weights`, into a method of the same build, on any device.

    Raises:
        CheckpointError: if the file is damaged, from elsewhere, or of another network; the method is left as it was.
    """
    content = checkpoint.read(Path(path))
    if "method" not in content:
        raise CheckpointError(f"{path} is of several methods that were trained as one; resume that run instead")
    _compare_tensors(content["method"], method, Path(path))
    method.load_state_dict(content["method"])


def compare_settings(theirs: Mapping[str, Any], ours: Mapping[str, Any], path: Path) -> None:
    different = [f"{key}={theirs.get(key)!r} (now {ours[key]!r})" for key in ours if theirs.get(key) != ours[key]]
    if different:
        raise CheckpointError(
            f"{path} is of a run with {', '.join(different)}: going on would not be the same run. Use the same "
            "settings, another directory, or load_weights() to start a new run from these weights"
        )


def _compare_tensors(theirs: Mapping[str, Tensor], method: nn.Module, path: Path) -> None:
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


def _compare_optimizer(theirs: Mapping[str, Any], optimizer: Any, path: Path) -> None:
    kind, groups = type(optimizer.optimizer).__name__, optimizer.state_dict()["param_groups"]
    sizes = [len(group["params"]) for group in groups]
    their_sizes = [len(group["params"]) for group in theirs["state"]["param_groups"]]
    if theirs["type"] != kind or their_sizes != sizes:
        raise CheckpointError(
            f"{path} holds {theirs['type']} over {their_sizes} parameters, this run has {kind} over {sizes}"
        )


def _gather_json(fabric: Any, value: Any) -> list[Any]:
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


def _tensors_from_lists(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"dtype", "values"}:
        return torch.tensor(value["values"], dtype=getattr(torch, value["dtype"]))
    if isinstance(value, dict):
        return {key: _tensors_from_lists(item) for key, item in value.items()}
    return [_tensors_from_lists(item) for item in value] if isinstance(value, list) else value
