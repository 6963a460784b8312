"""What an object was made with, as JSON, so that one like it can be made again; code is left out, and named."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self


class RecordsArguments:
    """Keeps the arguments of its constructor, as `describe` has them."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        try:
            bound = inspect.signature(cls.__init__).bind(made, *args, **kwargs)
        except (
            TypeError,
            ValueError,
        ):  # of a copy, which has none; or wrong ones, for the constructor to refuse
            return made
        bound.apply_defaults()
        vars(made)["_made_with"] = {name: describe(value) for name, value in list(bound.arguments.items())[1:]}
        return made


def arguments_of(made: RecordsArguments) -> dict[str, Any]:
    """The arguments of its constructor; where they are attributes as well, as these are now."""
    recorded: dict[str, Any] = vars(made).get("_made_with", {})
    attributes = {**vars(made), **vars(made).get("_modules", {})}
    now = {name: describe(attributes[name]) for name in recorded if name in attributes}
    return {**recorded, **{name: value for name, value in now.items() if not missing_in(value)}}


def describe(value: Any) -> Any:
    """A value as JSON; of what JSON cannot hold, such as a network, ``{"missing": type}``."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return {"list" if isinstance(value, list) else "tuple": [describe(item) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: describe(item) for key, item in value.items()}}
    if isinstance(value, RecordsArguments):
        return {"class": _name_of(type(value)), "arguments": arguments_of(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return {"class": _name_of(type(value)), "arguments": {name: describe(item) for name, item in fields.items()}}
    return {"missing": type(value).__name__}


def missing_in(description: Any) -> str | None:
    """What is left out of a description: the type of the first such value, or None."""
    if not isinstance(description, dict):
        return None
    if "missing" in description:
        return str(description["missing"])
    if "class" in description and not description["class"].startswith("bedl."):
        return str(description["class"].rpartition(".")[2])  # code of the user
    inner = next((description[key] for key in ("list", "tuple", "dict", "arguments") if key in description), ())
    parts = inner.values() if isinstance(inner, Mapping) else inner
    return next((found for found in map(missing_in, parts) if found), None)


def rebuild(description: Any) -> Any:
    """The value again; classes are those of bedl alone, so that a file runs no other code."""
    if not isinstance(description, dict):
        return description
    if "list" in description:
        return [rebuild(item) for item in description["list"]]
    if "tuple" in description:
        return tuple(rebuild(item) for item in description["tuple"])
    if "dict" in description:
        return {key: rebuild(item) for key, item in description["dict"].items()}
    return make(_class_of(description["class"]), {k: rebuild(v) for k, v in description["arguments"].items()})


def make(cls: type, arguments: Mapping[str, Any]) -> Any:
    """An object of these arguments, by the names that they have in the signature of its constructor."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if name not in arguments:
            continue
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            positional += arguments[name]
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named |= arguments[name]
        else:
            named[name] = arguments[name]
    return cls(*positional, **named)


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _class_of(name: str) -> type:
    module, _, own = name.rpartition(".")
    if not module.startswith("bedl."):
        raise ValueError(f"{name} is no class of bedl")
    found = getattr(importlib.import_module(module), own, None)
    if not isinstance(found, type) or not (issubclass(found, RecordsArguments) or dataclasses.is_dataclass(found)):
        raise ValueError(f"{name} is no class that a file may name")
    return found


def checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    """SHA-256 of a text and of tensors: their names, types, shapes and numbers."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
