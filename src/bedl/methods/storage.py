"""Methods as one safetensors file: weights as tensors, the rest as JSON in its header. Nothing is unpickled.

A network is code, which no file holds: whoever loads a method gives one that is built alike.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
from torch import Tensor

from bedl._utils.errors import ModelFileError
from bedl._utils.io import check_writable, in_order, write_atomically
from bedl._utils.storage import arguments_of, checksum, make, missing_in, rebuild

if TYPE_CHECKING:
    from bedl.methods.base import Method


FORMAT, SCHEMA = "bedl.methods", 1
FILE, CONFIG = "model.safetensors", "config.json"  # of a folder


def save(method: Method, path: str | os.PathLike[str], overwrite: bool) -> Path:
    """Write a method, all of it or nothing."""
    path = Path(path)
    check_writable(path, overwrite)
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in method.state_dict().items()}
    text = json.dumps(_content(method))
    header = {"format": FORMAT, "schema": str(SCHEMA), "bedl": _version(), "method": text}
    header["sha256"] = checksum(tensors, text)
    write_atomically(path, in_order(safetensors.torch.save(tensors, header)))
    return path


def save_folder(method: Method, folder: str | os.PathLike[str], overwrite: bool) -> Path:
    """The same in a folder, as repositories of models have it: with its description as a file of its own."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder / CONFIG, overwrite)
    save(method, folder / FILE, overwrite)
    config = {**_content(method), "library_name": "bedl", "bedl": _version()}
    write_atomically(folder / CONFIG, (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode())
    return folder


def fetch(source: str | os.PathLike[str], revision: str | None) -> Path:
    """The file in a folder, or in a repository of the Hugging Face Hub."""
    if os.path.isdir(source):
        return Path(source) / FILE
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ModelFileError(f"there is no folder {source}; for repositories: pip install huggingface_hub") from None
    return Path(hf_hub_download(str(source), FILE, revision=revision))


def load(cls: type[Method], path: str | os.PathLike[str], given: Mapping[str, Any]) -> Any:
    """Read a method of this class, with arguments that the file cannot hold."""
    path = Path(path)
    content, tensors = _read(path)
    name, stored = content["class"].rpartition(".")[2], content["arguments"]
    if name != cls.__name__:
        raise ModelFileError(f"{path} holds a {name}; read it with {name}.load")
    if unknown := sorted(set(given) - set(stored)):
        raise TypeError(f"{cls.__name__}.load: there is no argument {unknown[0]}; there are {', '.join(stored)}")
    missing = {key: what for key, value in stored.items() if key not in given and (what := missing_in(value))}
    if missing:
        texts = ", ".join(f"{key}=… (was a {what})" for key, what in missing.items())
        raise ModelFileError(
            f"a file cannot hold code: {cls.__name__}.load({str(path)!r}, {texts}) needs what is built as that was"
        )
    try:
        arguments = {key: given[key] if key in given else rebuild(value) for key, value in stored.items()}
    except (KeyError, TypeError, ValueError, AttributeError, ImportError) as error:
        raise ModelFileError(f"{path} is damaged ({type(error).__name__}: {error}); save the method again") from None
    method = make(cls, arguments)
    try:
        method.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelFileError(f"{path} holds the weights of another network than the one given: {error}") from None
    return method.eval()


def _content(method: Method) -> dict[str, Any]:
    cls = type(method)
    return {"class": f"{cls.__module__}.{cls.__qualname__}", "arguments": arguments_of(method)}


def _version() -> str:
    from bedl import __version__

    return __version__


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        whole = path.read_bytes()
        tensors = safetensors.torch.load(whole)
        header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")]).get("__metadata__", {})
    except FileNotFoundError:
        raise ModelFileError(f"there is no file {path}") from None
    except (safetensors.SafetensorError, OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not a whole model file ({error}); save the method again") from None
    if header.get("format") != FORMAT:
        raise ModelFileError(f"{path} is a safetensors file, but not a method that bedl saved")
    schema, text = header.get("schema", ""), header.get("method", "")
    if not (schema.isascii() and schema.isdigit()) or int(schema) > SCHEMA:
        raise ModelFileError(
            f"{path} was saved by bedl {header.get('bedl')} in version {schema} of the format, and this bedl "
            f"({_version()}) reads up to {SCHEMA}; upgrade bedl to read it"
        )
    if header.get("sha256") != checksum(tensors, text):
        raise ModelFileError(f"the contents of {path} do not match their checksum; save the method again")
    return json.loads(text), tensors
