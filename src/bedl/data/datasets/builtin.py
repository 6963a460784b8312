"""Data sets that go by a name: small ones that scikit-learn brings along, and the downloaded ones under $BEDL_DATA."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any

import numpy as np

from bedl._utils.errors import DataError, DataFileNotFoundError
from bedl.data.datasets.images import IMAGE_CLASSES, load_images
from bedl.data.datasets.uci import UCIData, load_uci
from bedl.data.readers import BUILTIN_NAMES, Table, from_columns

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
