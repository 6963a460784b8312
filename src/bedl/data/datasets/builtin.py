"""Data sets that go by a name: small ones that scikit-learn brings along, and the downloaded ones under $BEDL_DATA."""

from __future__ import annotations

import gzip
import re
import struct
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bedl._utils.errors import DataError, DataFileNotFoundError
from bedl.data.datasets.download import data_root
from bedl.data.readers import BUILTIN_NAMES, Table, from_columns

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


FOREIGN: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # what is done to the digits of the test part
    "mirrored": lambda images: images[:, :, ::-1],
    "turned": lambda images: np.rot90(images, axes=(1, 2)),
    "inverted": lambda images: 16 - images,
}


def builtin_table(name: str, root: str | PathLike[str] | None = None) -> Table:
    """The data set called `name`, as a table whose last column is `target`.

    The bundled sets have parts too: every fifth row is in `digits:test`, the others in `digits:train`. The images of
    `digits:mirrored`, `digits:turned` and `digits:inverted` are those of the test part seen in a mirror, turned by 90°,
    and dark for bright: things that a model of digits should be unsure of.

    Example:
        >>> builtin_table("digits").image_shape
        (8, 8)
    """
    kind, *rest = name.split(":")
    if kind == "uci":
        return _uci_table(name, rest, root)
    if kind in IMAGE_CLASSES:
        if rest not in ([], ["train"], ["test"]):
            raise DataError(f"{name!r}: image sets are {kind}:train and {kind}:test")
        images, labels, classes = load_images(kind, train=rest != ["test"], root=root)
        shape = images.shape[1:] if images.shape[1] > 1 else images.shape[2:]
        return _image_table(name, images.reshape(len(images), -1), np.array(classes)[labels], shape)
    if kind not in BUILTIN_NAMES:
        raise DataFileNotFoundError(f"there is no data set {name!r}; there are {', '.join(BUILTIN_NAMES)}, uci:<name>")
    parts = ["train", "test", *(FOREIGN if kind == "digits" else [])]
    if len(rest) > 1 or not set(rest) <= set(parts):
        raise DataError(f"there is no data set {name!r}; the parts are {', '.join(f'{kind}:{part}' for part in parts)}")
    return _bundled_table(kind, rest[0] if rest else "")


def _bundled_table(name: str, part: str) -> Table:
    try:
        from sklearn import datasets
    except ImportError:
        raise DataFileNotFoundError(f"{name!r} comes with scikit-learn: pip install scikit-learn") from None
    # In their own units: scaling is the business of whoever fits.
    options: dict[str, Any] = {"scaled": False} if name == "diabetes" else {}
    data = getattr(datasets, f"load_{name}")(**options)
    chosen = _rows_of(part, len(data.data))
    x, y, name_of_part = data.data[chosen], data.target[chosen], f"{name}:{part}" if part else name
    if name == "diabetes":
        return from_columns(name_of_part, list(data.feature_names), x, y)
    target = np.array([str(label) for label in data.target_names])[y]
    if name == "digits":
        if part in FOREIGN:
            x = FOREIGN[part](x.reshape(-1, 8, 8)).reshape(x.shape)
        return _image_table(name_of_part, x.astype(np.uint8), target, (8, 8))
    return from_columns(name_of_part, list(data.feature_names), x, target)


def _rows_of(part: str, n: int) -> np.ndarray:
    test = np.arange(n) % 5 == 4  # the sets are sorted by class or not at all, so that this keeps the proportions
    return np.flatnonzero(~test if part == "train" else test if part else np.ones(n, dtype=bool))


def _image_table(name: str, pixels: np.ndarray, target: np.ndarray, shape: tuple[int, ...]) -> Table:
    columns = [f"pixel_{number}" for number in range(pixels.shape[1])]
    return from_columns(name, columns, pixels, target, tuple(int(size) for size in shape))


def _uci_table(name: str, rest: list[str], root: str | PathLike[str] | None) -> Table:
    if not (len(rest) == 1 or (len(rest) == 3 and rest[1].isdecimal() and rest[2] in ("train", "test"))):
        raise DataError(
            f"{name!r}: UCI sets are uci:<name>, or parts of a split: uci:<name>:0:train, uci:<name>:0:test"
        )
    data = load_uci(rest[0], int(rest[1]) if rest[1:] else None, root)
    if isinstance(data, UCIData):
        x, y = data.x, data.y
    else:
        x, y = (data.x_train, data.y_train) if rest[2] == "train" else (data.x_test, data.y_test)
    return from_columns(name, [f"x{number}" for number in range(x.shape[1])], x, y)


# The UCI regression sets with their standard splits, as laid out by J. M. Hernández-Lobato and Y. Gal.


@dataclass(frozen=True)
class UCIData:
    """A whole set: x of shape (rows, features), y of shape (rows,), both float64, and its number of splits."""

    name: str
    x: np.ndarray
    y: np.ndarray
    n_splits: int


@dataclass(frozen=True)
class UCISplit:
    """One split of a set: training and test part, float64, and the row numbers they were taken from."""

    name: str
    split: int
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    train_rows: np.ndarray
    test_rows: np.ndarray


def uci_names(root: str | PathLike[str] | None = None) -> list[str]:
    """Names of the sets under `root`/UCI_Datasets; `root` is $BEDL_DATA by default. Empty if there are none."""
    folder = data_root(root) / "UCI_Datasets"
    return sorted(path.parent.parent.name for path in folder.glob("*/data/data.txt"))


def load_uci(name: str, split: int | None = None, root: str | PathLike[str] | None = None) -> UCIData | UCISplit:
    """A UCI set, or one of its standard splits into training and test part (90 % and 10 %).

    Args:
        name: the name of the set, such as "concrete"; `uci_names()` lists them.
        split: number of the split, from 0; None for the whole set.
        root: the folder that holds UCI_Datasets; $BEDL_DATA, else ~/.cache/bedl, by default.
    """
    folder = data_root(root) / "UCI_Datasets" / name / "data"
    if not re.fullmatch(r"[\w-]+", name) or not (folder / "data.txt").is_file():
        known = ", ".join(uci_names(root)) or "none"
        raise DataFileNotFoundError(
            f"there is no UCI set {name!r} in {data_root(root) / 'UCI_Datasets'} (there: {known}). Set BEDL_DATA to "
            "the folder that holds UCI_Datasets, or download it: bedl data fetch uci"
        )
    table = _numbers(folder / "data.txt", columns=2)
    features = _indices(folder / "index_features.txt", table.shape[1])
    target = _indices(folder / "index_target.txt", table.shape[1])
    if len(target) != 1:
        raise DataError(f"{folder / 'index_target.txt'} should hold one column number, not {len(target)}")
    x, y = table[:, features], table[:, target[0]]
    n_splits = int(_numbers(folder / "n_splits.txt")[0, 0])
    if split is None:
        return UCIData(name, x, y, n_splits)
    if not 0 <= split < n_splits:
        raise DataError(f"UCI set {name!r} has the splits 0 to {n_splits - 1}, not {split}")
    train, test = (_indices(folder / f"index_{part}_{split}.txt", len(table)) for part in ("train", "test"))
    if np.intersect1d(train, test).size:
        raise DataError(f"split {split} of UCI set {name!r} has rows in both parts. Download it again")
    return UCISplit(name, split, x[train], y[train], x[test], y[test], train, test)


def _numbers(path: Path, columns: int = 1) -> np.ndarray:
    if not path.is_file():
        raise DataFileNotFoundError(f"{path} is missing. Download the UCI sets again: bedl data fetch uci")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # NumPy only warns of an empty file
            table = np.loadtxt(path, ndmin=2)
    except (ValueError, UserWarning) as error:
        raise DataError(f"{path} is damaged ({error}). Download the UCI sets again: bedl data fetch uci") from None
    if table.shape[1] < columns or not np.isfinite(table).all():
        raise DataError(f"{path} is damaged: it should hold {columns} columns of finite numbers or more")
    return table


def _indices(path: Path, end: int) -> np.ndarray:
    values = _numbers(path).ravel()
    indices = values.astype(np.int64)
    if (indices != values).any() or (indices < 0).any() or (indices >= end).any() or len(set(indices)) < len(indices):
        raise DataError(f"{path} is damaged: it should hold distinct whole numbers from 0 to {end - 1}")
    return indices
