"""Ten million rows through fit's encoding and through predictions: memory stays flat."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from tools.campaign.ledger import Fault

TRIES = 3
SECONDS = 7200
ROWS = 10_000_000
FLAT = 1.05  # memory at the end over that after the first fifth
KINDS = ("predict a CSV file", "predict a Parquet file", "encode a CSV file")


def attempt(number: int, folder: Path) -> str:
    """One way of reading `ROWS` rows; memory is looked at after each batch."""
    kind = KINDS[number % len(KINDS)]
    path = _written(folder, ".parquet" if "Parquet" in kind else ".csv")
    measured, count = _seen(kind, path, folder)
    first, whole = max(measured[: len(measured) // 5 + 1]), max(measured)
    if whole > FLAT * first:
        raise Fault(f"{kind}: memory grew from {first >> 20} to {whole >> 20} MiB over {count} rows")
    if count != ROWS:
        raise Fault(f"{kind}: {count} of {ROWS} rows")
    return f"{kind}: {count} rows, {first >> 20} MiB after a fifth, {whole >> 20} MiB at most"


def _seen(kind: str, path: Path, folder: Path) -> tuple[list[int], int]:
    """The memory after each batch, and the number of rows."""
    from bedl.data import TableEncoder, encode_to_memmap, open_table
    from bedl.estimators import tabular

    measured: list[int] = []
    small = folder / "small.csv"
    small.write_text("a,b,c,y\n" + "".join(f"{a:.4f},{b:.4f},{c:.4f},{2 * a:.4f}\n" for a, b, c in _numbers(500)))
    if kind.startswith("encode"):
        encoder = TableEncoder.fit(open_table(small), "y")
        x, _ = encode_to_memmap(open_table(path), encoder, folder / "encoded", lambda n: measured.append(_memory()))
        return measured, len(x)
    model = tabular.fit(small, "y", epochs=1, hidden=(5,), method="bedl", device="cpu")
    count = 0
    for part in model.stream(path):
        count += len(part["prediction"])
        measured.append(_memory())
    return measured, count


def _written(folder: Path, suffix: str) -> Path:
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    path, schema = folder / f"t{suffix}", pa.schema([(name, pa.float64()) for name in "abcy"])
    writer = pq.ParquetWriter(path, schema) if suffix == ".parquet" else pacsv.CSVWriter(path, schema)
    with writer:
        for start in range(0, ROWS, 100_000):
            numbers = _numbers(min(100_000, ROWS - start)).round(4)
            writer.write_batch(pa.record_batch([*numbers.T, 2 * numbers[:, 0]], schema=schema))
    return path


def _numbers(n: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, 3)).clip(-4, 4)


def _memory() -> int:
    """Bytes of this process in memory that are not pages of files."""
    return _statm()[1] - _statm()[2]


def _statm() -> list[int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return [int(field) * page for field in Path("/proc/self/statm").read_text().split()]
