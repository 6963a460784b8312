"""A table as numbers on disk: rows to learn from, and rows held out for the scores."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bedl import tasks
from bedl.data import DataError, Table, TableEncoder, encode_to_memmap
from bedl.data.survey import Progress
from bedl.errors import option
from bedl.files import OutputFileError, remedy
from bedl.tabular.rows import batch_rows

__all__ = ["EncodedTable", "encode", "split"]

FEWEST = 20  # rows; of fewer none are held out
NAMES = ("features", "targets")


@dataclass(frozen=True)
class EncodedTable:
    """Memory-mapped rows to learn from, and rows held out for the scores, if any.

    Attributes:
        x, y: rows to learn from. shapes: (n, features), (n, *targets)
        held_x, held_y: rows held out.
    """

    x: np.ndarray
    y: np.ndarray
    held_x: np.ndarray | None = None
    held_y: np.ndarray | None = None

    @property
    def counts(self) -> dict[str, int]:
        """How many rows are for training, and how many are held out."""
        return {"training": len(self.x), "held_out": 0 if self.held_x is None else len(self.held_x)}


def encode(
    table: Table, encoder: TableEncoder, folder: Path, share: float, seed: int, progress: Progress
) -> EncodedTable:
    """The table as numbers in a folder, some rows of it held out; what is there and complete is not made again.

    Args:
        table: the table to learn from.
        encoder: the encoder that says how it is read.
        folder: where the numbers go.
        share: the share of the rows that are held out.
        seed: the seed of the choice.
        progress: called with the number of rows done since the last call.
    """
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        x, y = encode_to_memmap(table, encoder, folder, progress)
        split(x, y, share, seed, tasks.get(encoder.task).column == "class", folder)
        (folder / "complete").touch()
    held = [f"held_{name}" for name in NAMES] if (folder / "held_features.npy").exists() else []
    return EncodedTable(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in [*NAMES, *held]))


def _write_rows(path: Path, source: np.ndarray, chosen: np.ndarray, step: int) -> None:
    """Some rows to a file, by calls that report a full disk: writing to a memory map would end the process."""
    fields = {
        "descr": np.lib.format.dtype_to_descr(source.dtype),
        "fortran_order": False,
        "shape": (len(chosen), *source.shape[1:]),
    }
    try:
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, fields)
            for start in range(0, len(chosen), step):
                file.write(np.ascontiguousarray(source[chosen[start : start + step]]).data)
    except OSError as error:
        raise OutputFileError(f"{path} could not be written: {error}. {remedy(error)}") from None


def split(x: np.ndarray, y: np.ndarray, share: float, seed: int, classes: bool, folder: Path) -> None:
    """Some rows at random, from every class where there are classes, moved to files of their own."""
    from bedl.estimators.inputs import held_out

    n = len(x)
    count = round(share * n) if n >= FEWEST else 0
    if not count:
        return
    if n - count < 2:
        raise DataError(
            f"a holdout of {share:g} leaves {n - count} of {n} rows to learn from. Hold out a smaller "
            f"share ({option('holdout', 0.1)})"
        )
    kept, out = held_out(n, count, seed, np.asarray(y) if classes else None)
    step = batch_rows(x.shape[1])
    for chosen, prefix in ((out, "held_"), (kept, "kept_")):
        for source, name in ((x, "features"), (y, "targets")):
            _write_rows(folder / f"{prefix}{name}.npy", source, chosen, step)
    for name in NAMES:
        os.replace(folder / f"kept_{name}.npy", folder / f"{name}.npy")
