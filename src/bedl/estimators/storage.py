"""What the description in a file says, compared with the weights beside it before anything of that size is made."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from bedl._utils.errors import BEDLError, ModelFileError
from bedl._utils.io import check_writable, in_order, write_atomically
from bedl.objectives import PAC, HyperPrior, Sum
from bedl.training.checkpoint import checksum

HARMLESS = 10**6  # numbers; a network of so few costs nothing, whatever the file holds
_TYPES: dict[str, type | tuple[type, ...]] = {
    "class": str, "params": dict, "input_shape": list, "n_features_in": int, "feature_names_in": (list, type(None)),
    "target_names": (list, type(None)), "dtype": str, "n_seen": (int, float), "built": dict, "task": str,
}  # fmt: skip


def check_sizes(content: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """A TypeError or ValueError unless the description is one, and of a network that the weights could be of.

    Args:
        content: the description, see `bedl.estimators.storage`.
        weights: the tensors of the file.

    Example:
        >>> says = {"class": "BEDLRegressor", "params": {"hidden_layers": {"tuple": [20000, 20000]}, "ensemble": 1},
        ...         "input_shape": [4], "n_features_in": 4, "feature_names_in": None, "target_names": None,
        ...         "dtype": "float32", "n_seen": 10, "built": {"method": "bedl", "options": {"dict": {}}},
        ...         "task": "regression"}
        >>> check_sizes(says, {"weight": torch.zeros(50, 4)})
        Traceback (most recent call last):
        ValueError: it describes a network of 400100000 weights, and holds 200 numbers
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
        raise ValueError(f"it describes a network of {claimed} weights, and holds {held} numbers")
    if ensemble > max(len(weights), 1):
        raise ValueError(f"it describes {ensemble} networks, and holds {len(weights)} tensors")


# Fitted estimators as one safetensors file: weights as tensors, the rest as JSON in its header. Nothing is pickled.
#
# The header holds a checksum over both, and what the JSON asks for is compared with the weights before it is built.


FORMAT = "bedl.estimators"
SCHEMA = 5
CHECKSUM_SINCE_SCHEMA = 3  # from this version of the format on there is a checksum
_OBJECTIVES = {"PAC": PAC, "HyperPrior": HyperPrior}
_LEFT_OUT = (
    "callbacks",
    "checkpoint",
    "compile",
    "device",
    "teacher",
    "verbose",
)  # of the process that trained, not of the model


# -- writing ------------------------------------------------------------------------------------------
def save(estimator: Any, path: Path, overwrite: bool) -> Path:
    """Write an estimator, all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    check_writable(path, overwrite)
    params = {key: value for key, value in estimator.get_params(deep=False).items() if key not in _LEFT_OUT}
    names = getattr(estimator, "feature_names_in_", None)
    content = {
        "class": type(estimator).__name__,
        "params": {key: _as_json(value) for key, value in params.items()},
        "input_shape": list(estimator.input_shape_),
        "n_features_in": int(estimator.n_features_in_),
        "feature_names_in": None if names is None else [str(name) for name in names],
        "target_names": estimator.target_names_,
        "encoder": None if estimator.encoder_ is None else estimator.encoder_.to_dict(),
        "dtype": estimator.dtype_,
        "n_seen": float(estimator.n_seen_),
        "built": {"method": estimator.built_[0], "options": _as_json(estimator.built_[1])},
        **estimator._state(),
    }
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in estimator.method_.state_dict().items()}
    text = json.dumps(content)
    header = {"format": FORMAT, "schema": str(SCHEMA), "bedl": _version(), "model": text}
    header["sha256"] = checksum(tensors, text)
    write_atomically(path, in_order(safetensors.torch.save(tensors, header)))
    return path


def _version() -> str:
    from bedl import __version__

    return __version__


def _as_json(value: Any) -> Any:
    """A parameter as JSON; what JSON cannot hold leaves a note of what it was."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, (int, np.integer)) for item in value):
        return {"tuple": [int(item) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _as_json(item) for key, item in value.items()}}
    if isinstance(value, dict) and all(
        isinstance(item, (bool, int, float, str)) for pair in value.items() for item in pair
    ):
        return {"pairs": [list(pair) for pair in value.items()]}
    if isinstance(value, Sum):
        terms = [_as_json(term) for term in value.terms]
        return {"sum": terms} if all("objective" in term for term in terms) else {"missing": repr(value)}
    if type(value).__name__ in _OBJECTIVES and type(value) is _OBJECTIVES[type(value).__name__]:
        fields = dataclasses.asdict(value)
        if all(item is None or isinstance(item, (int, float, str)) for item in fields.values()):
            return {"objective": type(value).__name__, "fields": fields}
    return {"missing": f"{type(value).__name__}"}


# -- reading ------------------------------------------------------------------------------------------
def load(path: str | os.PathLike[str], **given: Any) -> Any:
    """Read an estimator that was written with `save`, whichever it is.

    Args:
        path: the file.
        given: parameters that no file can hold: the `net` (a module or callable), an own objective or activation.
    """
    return restore(Path(path), None, given)


def restore(path: Path, kind: type | None, given: dict[str, Any], sha256: str | None = None) -> Any:
    """Read an estimator; of any class if `kind` is None or the common base; of one file only, if its hash is given."""
    from bedl.estimators import BEDLClassifier, BEDLRegressor

    content, tensors = _read(path, sha256)
    try:
        content = _as_now(content)
        check_sizes(content, tensors)
        known = content["params"]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise _damaged(path, error) from None
    unknown = sorted(set(given) - set(known) - set(_LEFT_OUT))
    if unknown:
        raise TypeError(f"load: there is no parameter {unknown[0]}")
    classes = {cls.__name__: cls for cls in (BEDLRegressor, BEDLClassifier)}
    cls = classes.get(content["class"])
    if cls is None:
        raise ModelFileError(f"{path} holds a {content['class']}, which this bedl does not know")
    if kind is not None and not issubclass(cls, kind):
        raise ModelFileError(f"{path} holds a {cls.__name__}; read it with {cls.__name__}.load or bedl.estimators.load")
    try:
        estimator = _restored(cls, content, given, path)
        estimator.method_ = _method(estimator, tensors, path)
    except BEDLError:
        raise
    except Exception as error:
        if given:  # code of the caller, whose errors are the caller's
            raise
        raise _damaged(path, error) from None
    return estimator


def _restored(cls: type, content: dict[str, Any], given: dict[str, Any], path: Path) -> Any:
    """The estimator, but for the weights."""
    estimator = cls(**_parameters(content["params"], given, path))
    estimator.n_features_in_ = content["n_features_in"]
    estimator.input_shape_ = tuple(content["input_shape"])
    if content["feature_names_in"] is not None:
        estimator.feature_names_in_ = np.asarray(content["feature_names_in"], dtype=object)
    estimator.target_names_, estimator.dtype_ = content["target_names"], content["dtype"]
    estimator.n_seen_, estimator.history_ = content["n_seen"], []
    estimator.encoder_ = _encoder(content)
    estimator._set_state(content)
    estimator.built_ = _built(content, given, path)
    return estimator


def _encoder(content: dict[str, Any]) -> Any:
    """How tables with text or missing values are read; None for numbers, which earlier versions took alone."""
    if content.get("encoder") is None:
        return None
    from bedl.data.encode import FeatureEncoder

    encoder = FeatureEncoder.from_dict(content["encoder"])
    if [len(encoder.feature_names)] != list(content["input_shape"]):
        raise ValueError(f"{len(encoder.feature_names)} features for an input of shape {content['input_shape']}")
    return encoder


def _damaged(path: Path, error: Exception) -> ModelFileError:
    what = str(error).splitlines()[0][:200] if str(error) else ""
    return ModelFileError(f"{path} is damaged ({type(error).__name__}: {what}); save the model again")


def _read(path: Path, sha256: str | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the weights, from one look at the file: it may be replaced meanwhile."""
    try:
        whole = path.read_bytes()
        if sha256 is not None and hashlib.sha256(whole).hexdigest() != sha256:
            raise _other_file(path)
        tensors = safetensors.torch.load(whole)
        header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")]).get("__metadata__", {})
        _check_header(header, path)
        text = header["model"]
        # A flipped bit may hit the name of the checksum, or the version that asks for one, but not both.
        sealed = "sha256" in header or int(header["schema"]) >= CHECKSUM_SINCE_SCHEMA
        if sealed and header.get("sha256") != checksum(tensors, text):
            raise ModelFileError(f"the contents of {path} do not match their checksum; save the model again")
        return json.loads(text), tensors
    except FileNotFoundError:
        raise (ModelFileError(f"there is no file {path}") if sha256 is None else _other_file(path)) from None
    except (safetensors.SafetensorError, OSError, UnicodeDecodeError, ValueError, KeyError, RecursionError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{path} is not a whole model file ({error}); save the model again") from None


def _other_file(path: Path) -> ModelFileError:
    return ModelFileError(f"{path} is missing or not the file that was saved. Copy the folder again, or train again")


def _check_header(header: dict[str, str], path: Path) -> None:
    if header.get("format") != FORMAT:
        raise ModelFileError(f"{path} is a safetensors file, but not an estimator that bedl saved")
    schema = header.get("schema", "")
    if not (schema.isascii() and schema.isdigit()) or int(schema) > SCHEMA:
        raise ModelFileError(
            f"{path} was saved by bedl {header.get('bedl')} in version {schema} of the format, and this bedl "
            f"({_version()}) reads up to {SCHEMA}; upgrade bedl to read it"
        )


def _parameters(stored: dict[str, Any], given: dict[str, Any], path: Path) -> dict[str, Any]:
    values = {key: _from_json(value) for key, value in stored.items()}
    values.update(given)
    if isinstance(values.get("random_state"), dict):
        values["random_state"] = None  # only a new run would need it
    _refuse_code(values, path)
    return values


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(value["tuple"])
    if "dict" in value:
        return {key: _from_json(item) for key, item in value["dict"].items()}
    if "pairs" in value:
        return dict(value["pairs"])
    if "sum" in value:
        return Sum(*(_from_json(term) for term in value["sum"]))
    if "objective" in value:
        return _OBJECTIVES[value["objective"]](**value["fields"])
    return value


def _as_now(content: dict[str, Any]) -> dict[str, Any]:
    """What version 1 of the format said, in the words of this one: it knew regularisers and no methods."""
    if "unseen" in content["params"]:  # before version 5 it was called that
        params = dict(content["params"])
        del params["unseen"]
        content = {**content, "params": params}
    if "built" in content:
        return content
    params = dict(content["params"])
    classes = content["class"] == "BEDLClassifier"
    regularizer = params.pop("regularizer")
    if regularizer == "pac":
        regularizer = _as_json(PAC(evidence="misleading") if classes else PAC())
    elif regularizer == "hyperprior":
        regularizer = _as_json(HyperPrior())
    options = {"dict": {"regularizer": regularizer}}
    params |= {"method": "bedl", "method_options": options}
    task = "classification" if classes else "regression"
    return {**content, "params": params, "task": task, "built": {"method": "bedl", "options": options}}


def _built(content: dict[str, Any], given: dict[str, Any], path: Path) -> tuple[str, dict[str, Any]]:
    """The method to build again: the one that was built, whatever "auto" may mean by now."""
    name, options = content["built"]["method"], _from_json(content["built"]["options"])
    options.update(given.get("method_options") or {})
    _refuse_code({f"method_options[{key!r}]": value for key, value in options.items()}, path)
    return name, options


def _refuse_code(values: dict[str, Any], path: Path) -> None:
    """An error that names what a file could not hold and has to be given."""
    missing = {key: value["missing"] for key, value in values.items() if isinstance(value, dict) and "missing" in value}
    if missing:
        texts = ", ".join(f"{key}=… (was a {what})" for key, what in missing.items())
        raise ModelFileError(
            f"a file cannot hold code: load({str(path)!r}, {texts}) needs the same that was trained with"
        )


def _method(estimator: Any, tensors: dict[str, Tensor], path: Path) -> Any:
    n = estimator.input_shape_[0]
    scaling = (np.zeros(n), np.ones(n)) if estimator.standardize else None
    method = estimator._fresh(estimator._problem(scaling), seed=0)
    try:
        method.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelFileError(f"{path} holds the weights of another network than the one given: {error}") from None
    return method
