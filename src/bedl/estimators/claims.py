"""What the description in a file claims, compared with the weights beside it before anything of that size is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

__all__ = ["check_claims"]

HARMLESS = 10**6  # numbers; a network of so few costs nothing, whatever the file holds
_TYPES: dict[str, type | tuple[type, ...]] = {
    "class": str, "params": dict, "input_shape": list, "n_features_in": int, "feature_names_in": (list, type(None)),
    "target_names": (list, type(None)), "dtype": str, "n_seen": (int, float), "built": dict, "task": str,
}  # fmt: skip


def check_claims(content: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """A TypeError or ValueError unless the description is one, and of a network that the weights could be of.

    Args:
        content: the description, see `bedl.estimators.storage`.
        weights: the tensors of the file.

    Example:
        >>> says = {"class": "BEDLRegressor", "params": {"hidden_layers": {"tuple": [20000, 20000]}, "ensemble": 1},
        ...         "input_shape": [4], "n_features_in": 4, "feature_names_in": None, "target_names": None,
        ...         "dtype": "float32", "n_seen": 10, "built": {"method": "bedl", "options": {"dict": {}}},
        ...         "task": "regression"}
        >>> check_claims(says, {"weight": torch.zeros(50, 4)})
        Traceback (most recent call last):
        ValueError: it claims a network of 400100000 weights, and holds 200 numbers
    """
    for name, kinds in _TYPES.items():
        if not isinstance(content[name], kinds) or isinstance(content[name], bool):
            raise TypeError(f"{name} is {type(content[name]).__name__}")
    for name in ("feature_names_in", "target_names", "classes"):
        if not all(isinstance(item, (str, int, float)) for item in content.get(name) or ()):
            raise TypeError(f"{name} holds something else than names")
    for name in ("target_loc", "target_scale"):
        if not all(isinstance(item, (int, float)) and math.isfinite(item) for item in content.get(name, ())):
            raise TypeError(f"{name} holds something else than numbers")
    if content["dtype"] not in ("float16", "bfloat16", "float32", "float64"):
        raise ValueError(f"dtype is {content['dtype']!r}")
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} holds a number that is not finite")
    shape, ensemble = content["input_shape"], content["params"].get("ensemble", 1)
    hidden = content["params"].get("hidden_layers", "auto")
    hidden = () if hidden == "auto" else hidden  # as the method has it, which no file can enlarge
    hidden = hidden["tuple"] if isinstance(hidden, dict) else [hidden] if isinstance(hidden, int) else hidden
    widths = [*shape, *hidden, 1]
    if not shape or not all(type(width) is int and width > 0 for width in (*widths, ensemble)):
        raise TypeError("input_shape, hidden_layers and ensemble are not all positive whole numbers")
    held = sum(tensor.numel() for tensor in weights.values())
    # Of a network that the caller gives, hidden layers say nothing; its inputs may be large images, its weights few.
    own = content["params"].get("net") is None
    claimed = ensemble * sum(a * b for a, b in pairwise([math.prod(shape), *hidden, 1])) if own else shape[0]
    if claimed > max(held, HARMLESS):
        raise ValueError(f"it claims a network of {claimed} weights, and holds {held} numbers")
    if ensemble > max(len(weights), 1):
        raise ValueError(f"it claims {ensemble} networks, and holds {len(weights)} tensors")
