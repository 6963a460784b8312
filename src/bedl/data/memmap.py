"""Encoded batches, one after the other, and encoded tables on disk for what does not fit into memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import IO

import numpy as np

from bedl._utils.errors import DataFileError
from bedl.data.encode import TableEncoder
from bedl.data.profile import Progress
from bedl.data.readers import BATCH_ROWS, Table
from bedl.data.unknown import UnknownValues
from bedl.evaluation import tasks


def encoded_batches(
    table: Table,
    encoder: TableEncoder,
    rows: int = BATCH_ROWS,
    unknown: UnknownValues | None = None,
    extra: str = "error",
    with_target: bool = True,
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """(features, targets) of each batch; targets are None without `with_target`.

    Rows without a target are left out if the encoder was told so when it was fitted.
    """
    first_row = 0
    encoder.check_columns(table.columns, extra)
    for batch in table.batches(rows):
        features = encoder.features(batch, unknown, extra, first_row)
        targets = None
        if with_target and encoder.drop_missing_target:
            kept = encoder.labelled(batch)
            # Rows keep their numbers in messages unless some are left out within this very batch.
            features, targets = features[kept], encoder.targets(batch.filter(kept), first_row)
        elif with_target:
            targets = encoder.targets(batch, first_row)
        first_row += len(batch)
        yield features, targets


def encode_to_memmap(
    table: Table, encoder: TableEncoder, folder: str | PathLike[str], progress: Progress | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Writes the encoded table to features.npy and targets.npy, and opens both, memory-mapped, to read.

    Memory holds one batch at a time, whatever the size of the table. The files appear when they are complete.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".encoding-") as temporary:
            parts = _write(table, encoder, Path(temporary), progress)
            for part in parts:
                os.replace(part, folder / part.name)
    except DataFileError:
        raise
    except OSError as error:
        raise DataFileError(f"{folder} cannot be written to: {error}. Choose another folder") from None
    features, targets = (np.load(folder / part.name, mmap_mode="r") for part in parts)
    return features, targets


def _write(table: Table, encoder: TableEncoder, folder: Path, progress: Progress | None) -> tuple[Path, Path]:
    """Rows are appended batch by batch, as text files do not state their number; the headers are completed last."""
    paths = folder / "features.npy", folder / "targets.npy"
    with open(paths[0], "w+b") as x_file, open(paths[1], "w+b") as y_file:
        target_type = np.dtype(tasks.get(encoder.task).dtype)
        n = 0
        for complete in (False, True):
            _write_header(x_file, (n, encoder.n_features), np.dtype(np.float32))
            _write_header(y_file, (n, *encoder.target_shape), target_type)
            if complete:
                break
            for features, targets in encoded_batches(table, encoder):
                assert targets is not None
                x_file.write(np.ascontiguousarray(features).data)
                y_file.write(np.ascontiguousarray(targets).data)
                n += len(features)
                if progress is not None:
                    progress(len(features))
    return paths


def _write_header(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype) -> None:
    file.seek(0)
    # NumPy pads the header so that the first axis can grow to any length in place.
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
