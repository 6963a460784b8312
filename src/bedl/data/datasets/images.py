"""MNIST, Fashion-MNIST and CIFAR-10 as `bedl data fetch` lays them out on disk.

MNIST/raw/train-images-idx3-ubyte[.gz], …   FashionMNIST/raw/…   cifar-10-batches-bin/data_batch_1.bin, …
"""

from __future__ import annotations

import gzip
import struct
import zlib
from os import PathLike
from pathlib import Path

import numpy as np

from bedl._utils.errors import DataError, DataFileNotFoundError
from bedl.data.datasets.download import data_root

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
    """Files of rows: one byte for the label, 3 × 32 × 32 for the image."""
    parts = []
    for name in [f"data_batch_{number}" for number in range(1, 6)] if train else ["test_batch"]:
        path = root / "cifar-10-batches-bin" / f"{name}.bin"
        if not path.is_file():
            raise _absent(path, "cifar10")
        content = _content(path, "cifar10")[1]
        if not content or len(content) % _CIFAR_ROW:
            raise _damaged(
                path, "cifar10", f"its {len(content)} bytes are no multiple of {_CIFAR_ROW}, the size of an image"
            )
        parts.append(np.frombuffer(content, np.uint8).reshape(-1, _CIFAR_ROW))
    rows = np.concatenate(parts)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]
