"""Any bytes whatever: a table comes out, or an error of bedl's own; and what fits can be encoded."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bedl._utils.errors import BEDLError
from bedl.data import TableEncoder, encoded_batches, open_table

VALUES = [
    "1",
    "2.5",
    "-3e4",
    "",
    "NA",
    "x",
    "y",
    " z ",
    "true",
    "False",
    "2024-02-29",
    "2024-01-01T10:00Z",
    "inf",
    '"a,b"',
    "ü",
    "0",
]
NASTY = ['"', "\n", "\r\n", ",", ",,", "\0", "\ufeff", "1e999", "9" * 400, "0001-01-01", "9999-12-31", "1_0", "٣"]


def encode_everything(path):
    table = open_table(path)
    encoder = TableEncoder.fit(table, target=table.columns[-1])
    for x, y in encoded_batches(table, encoder, rows=3):
        assert np.isfinite(x).all()
        assert np.isfinite(y).all()
        assert x.shape == (len(y), encoder.n_features)
    again = TableEncoder.from_dict(encoder.to_dict())
    assert again.to_dict() == encoder.to_dict()


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.lists(st.sampled_from(VALUES * 3 + NASTY), min_size=3, max_size=3), min_size=1, max_size=8))
def test_rows_of_all_sorts(tmp_path_factory, suffix, rows):
    path = tmp_path_factory.mktemp("fuzz") / f"t{suffix}"
    path.write_bytes("a,b,c\n".replace(",", "," if suffix == ".csv" else "\t").encode())
    with open(path, "ab") as file:
        for row in rows:
            file.write(("," if suffix == ".csv" else "\t").join(row).encode() + b"\n")
    with suppress(BEDLError):
        encode_everything(path)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=200))
def test_bytes_of_all_sorts(tmp_path_factory, name, content):
    path = tmp_path_factory.mktemp("fuzz") / name
    path.write_bytes(content)
    with suppress(BEDLError):
        encode_everything(path)
