"""Encoded tables on disk, and memory that does not grow with the table."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bedl.data import DataError, DataFileError, TableEncoder, encode_to_memmap, encoded_batches, open_table, readers


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=500), "b": rng.choice(["u", "v"], 500), "y": rng.normal(size=500)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    return open_table(tmp_path / "t.csv")


def test_the_files_hold_what_the_batches_hold(table, tmp_path):
    encoder = TableEncoder.fit(table, target="y")
    seen = []
    x, y = encode_to_memmap(table, encoder, tmp_path / "new" / "folder", progress=seen.append)
    assert isinstance(x, np.memmap)
    assert isinstance(y, np.memmap)
    assert x.dtype == np.float32
    assert y.dtype == np.float64
    assert sum(seen) == 500
    batches = list(encoded_batches(table, encoder, rows=99))
    np.testing.assert_array_equal(x, np.concatenate([features for features, _ in batches]))
    np.testing.assert_array_equal(y, np.concatenate([targets for _, targets in batches]))
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == ["features.npy", "targets.npy"]
    np.testing.assert_array_equal(np.load(tmp_path / "new" / "folder" / "features.npy"), x)


def test_without_targets(table):
    encoder = TableEncoder.fit(table, target="y")
    assert [targets for _, targets in encoded_batches(table, encoder, with_target=False)] == [None]


def test_an_error_leaves_no_files(table, tmp_path):
    encoder = TableEncoder.fit(table, target="y")
    (tmp_path / "bad.csv").write_text("a,b,y\n" + "1,u,2\n" * 70_000 + "1,w,2\n")
    with pytest.raises(DataError, match="row 70001"):
        encode_to_memmap(open_table(tmp_path / "bad.csv"), encoder, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []
    with pytest.raises(DataFileError, match="cannot be written to"):
        encode_to_memmap(table, encoder, tmp_path / "bad.csv")


MEASURE = """
import re, sys
from bedl.data import TableEncoder, encoded_batches, open_table
table = open_table(sys.argv[1])
encoder = TableEncoder.fit(table, target="x0")
assert sum(len(y) for _, y in encoded_batches(table, encoder)) == table.n_rows
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) // 1000)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak of memory where Linux tells it")
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_memory_does_not_grow_with_the_table(tmp_path, suffix):
    """800,000 rows of 20 numbers are 128 MB as float64, and twice that as text; the process stays below 300 MB."""
    from pyarrow import csv

    rng = np.random.default_rng(0)
    data = pa.table({f"x{i}": rng.normal(size=800_000) for i in range(20)})
    path = tmp_path / f"big{suffix}"
    csv.write_csv(data, path) if suffix == ".csv" else pq.write_table(data, path)
    peak = subprocess.run([sys.executable, "-c", MEASURE, str(path)], check=True, capture_output=True, text=True)
    assert int(peak.stdout) < 300


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_arrow_reads_without_asking_python(name, tmp_path, monkeypatch):
    """Its thread reads ahead; one that waited for Python while the interpreter shut down aborted the process."""
    streams = []
    open_csv = readers.pacsv.open_csv
    monkeypatch.setattr(readers.pacsv, "open_csv", lambda s, **options: streams.append(s) or open_csv(s, **options))
    pd.DataFrame({"a": [1, 2]}).to_csv(tmp_path / name, index=False)
    assert sum(len(batch) for batch in open_table(tmp_path / name).batches()) == 2
    assert all(isinstance(s, pa.NativeFile) and not isinstance(s, pa.PythonFile) for s in streams)
    assert streams
