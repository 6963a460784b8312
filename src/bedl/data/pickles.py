"""CIFAR-10's Python version is a pickle, and unpickling runs what the file says. This reader runs nothing of it.

Only names that rebuild NumPy arrays are admitted; any other is refused before it is called. Files of our own are never
pickles.
"""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from bedl.data.errors import DataError

__all__ = ["read_cifar_batch"]

_MOST_BYTES = 256 << 20
_ARRAY_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _latin1  # how protocol 2 spells bytes
        if (module, name) not in _ARRAY_NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no part of an array")
        if module.endswith("multiarray"):  # its home has moved with NumPy 2
            core = "_core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "core"
            module = f"numpy.{core}.multiarray"
        return getattr(importlib.import_module(module), name)


def _latin1(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it encodes text as {encoding!r}")
    return text.encode("latin1")


def read_cifar_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(images, labels) of a CIFAR-10 batch: uint8 of shape (N, 3072), and int64 of shape (N,)."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError("it is too large for a batch of CIFAR-10")
        with open(path, "rb") as file:
            batch = _ArraysOnly(file, encoding="bytes").load()
        images, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
        if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3072 or labels.shape != images.shape[:1]:
            raise ValueError(f"its arrays have the shapes {images.shape} and {labels.shape}")
        if labels.dtype.kind != "i" or labels.min(initial=0) < 0:
            raise ValueError("its labels are no class numbers")
    # A damaged pickle can fail in as many ways as there are opcodes.
    except Exception as error:
        raise DataError(f"{path} is not the CIFAR-10 batch it should be, and was not read: {error}") from None
    return images, labels
