"""MNIST, Fashion-MNIST and CIFAR-10 as torchvision lays them out on disk.

MNIST/raw/train-images-idx3-ubyte[.gz], …   FashionMNIST/raw/…
cifar-10-batches-bin/data_batch_1.bin, …    or cifar-10-batches-py/data_batch_1, …
"""

from __future__ import annotations

import gzip
import importlib
import pickle
import struct
import zlib
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bedl._utils.errors import DataError, DataFileNotFoundError
from bedl.data.datasets.download import data_root

__all__ = ["IMAGE_CLASSES", "load_images", "read_cifar_batch"]


IMAGE_CLASSES: dict[str, list[str]] = {
    "mnist": [str(digit) for digit in range(10)],
    "fashion_mnist": "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot".split(","),
    "cifar10": "airplane automobile bird cat deer dog frog horse ship truck".split(),
}
_IDX_FOLDERS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}
_MAX_IMAGE_BYTES = 1 << 30  # far beyond any of these sets; what says it is larger is damaged
_CIFAR_ROW = 1 + 3 * 32 * 32


def load_images(
    name: str, train: bool = True, root: str | PathLike[str] | None = None
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Images, uint8 of shape (N, C, H, W), labels, int64 of shape (N,), and the names of the classes.

    Args:
        name: "mnist", "fashion_mnist" or "cifar10".
        train: the training part, or the test part.
        root: the folder the set lies in; $BEDL_DATA, else ~/.cache/bedl, by default.
    """
    if name not in IMAGE_CLASSES:
        raise DataError(f"the image sets are {', '.join(IMAGE_CLASSES)}, not {name!r}")
    place = data_root(root)
    if name == "cifar10":
        images, labels = _cifar(place, train)
    else:
        images, labels = _idx_pair(place / _IDX_FOLDERS[name] / "raw", name, train)
    classes = IMAGE_CLASSES[name]
    if len(images) != len(labels):
        raise _damaged(place, name, f"{len(images)} images but {len(labels)} labels")
    if len(labels) == 0 or labels.max() >= len(classes):
        raise _damaged(place, name, "labels are not 0 to 9")
    return np.array(images), labels.astype(np.int64), list(classes)  # a copy of its own: bytes cannot be written to


def _damaged(path: Path, name: str, why: str) -> DataError:
    return DataError(f"{path} is damaged: {why}. Remove it and download it again: bedl data fetch {name}")


def _absent(path: Path, name: str) -> DataFileNotFoundError:
    return DataFileNotFoundError(
        f"{path} is missing. Set BEDL_DATA to the folder that holds the data sets, or download: bedl data fetch {name}"
    )


# -- the IDX format of MNIST ----------------------------------------------------------------------
def _idx_pair(folder: Path, name: str, train: bool) -> tuple[np.ndarray, np.ndarray]:
    part = "train" if train else "t10k"
    images = _read_idx(folder / f"{part}-images-idx3-ubyte", name, axes=3)
    labels = _read_idx(folder / f"{part}-labels-idx1-ubyte", name, axes=1)
    return images[:, None], labels


def _read_idx(path: Path, name: str, axes: int) -> np.ndarray:
    """Bytes 0, 0, 8 (uint8), the number of axes; each axis as a big-endian uint32; the values."""
    path, content = _content(path, name)
    size = 4 + 4 * axes
    if len(content) < size or content[:4] != bytes([0, 0, 8, axes]):
        raise _damaged(path, name, "it does not begin like an IDX file of bytes")
    shape = struct.unpack(f">{axes}I", content[4:size])
    expected = size + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise _damaged(path, name, f"it has {len(content)} bytes where its header says {expected}")
    return np.frombuffer(content, np.uint8, offset=size).reshape(shape)


def _content(path: Path, name: str) -> tuple[Path, bytes]:
    packed = path.with_name(path.name + ".gz")
    try:
        if path.is_file():
            with open(path, "rb") as file:
                return path, _bounded(path, name, file.read(_MAX_IMAGE_BYTES + 1))
        if packed.is_file():
            with gzip.open(packed, "rb") as file:
                return packed, _bounded(packed, name, file.read(_MAX_IMAGE_BYTES + 1))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(packed, name, str(error)) from None
    raise _absent(path, name)


def _bounded(path: Path, name: str, content: bytes) -> bytes:
    if len(content) > _MAX_IMAGE_BYTES:
        raise _damaged(path, name, f"it holds more than {_MAX_IMAGE_BYTES >> 30} GiB")
    return content


# -- CIFAR-10 -------------------------------------------------------------------------------------
def _cifar(root: Path, train: bool) -> tuple[np.ndarray, np.ndarray]:
    names = [f"data_batch_{number}" for number in range(1, 6)] if train else ["test_batch"]
    binary, pickled = root / "cifar-10-batches-bin", root / "cifar-10-batches-py"
    if not binary.is_dir() and pickled.is_dir():
        parts = [read_cifar_batch(_existing(pickled / name)) for name in names]
    else:
        parts = [_cifar_binary(_existing(binary / f"{name}.bin")) for name in names]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return images.reshape(-1, 3, 32, 32), labels


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise _absent(path, "cifar10")
    return path


def _cifar_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows of one byte for the label and 3 × 32 × 32 for the image."""
    content = _content(path, "cifar10")[1]
    if not content or len(content) % _CIFAR_ROW:
        raise _damaged(
            path, "cifar10", f"its {len(content)} bytes are no multiple of {_CIFAR_ROW}, the size of an image"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, _CIFAR_ROW)
    return rows[:, 1:], rows[:, 0]


# CIFAR-10's Python version is a pickle, and unpickling runs what the file says. This reader runs nothing of it.
#
# Only names that rebuild NumPy arrays are admitted; any other is refused before it is called. Files of our own are
# never
# pickles.


_MAX_PICKLE_BYTES = 256 << 20
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
        if path.stat().st_size > _MAX_PICKLE_BYTES:
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
