"""The UCI regression sets with their standard splits, as laid out by J. M. Hernández-Lobato and Y. Gal.

UCI_Datasets/<name>/data/data.txt, index_features.txt, index_target.txt, n_splits.txt, index_train_<k>.txt, …
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from bedl._utils.errors import DataError, DataFileNotFoundError
from bedl.data.datasets.download import data_root


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
