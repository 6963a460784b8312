"""Reading: every format gives the same rows, batch by batch, as often as asked, and pandas agrees."""

import gzip
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bedl.data import DataError, open_table
from bedl.data.readers import Table


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    size = rng.normal(size=1000).round(3)
    return pd.DataFrame({"size": size, "kind": rng.choice(["a", "b, c", 'q"', "ü"], 1000), "n": np.arange(1000)})


def rows(table: Table, n: int = 300) -> pd.DataFrame:
    return pa.Table.from_batches(list(table.batches(n))).to_pandas()


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz", ".TSV", ".parquet"])
def test_all_formats_give_the_same_rows(tmp_path, frame, suffix):
    path = tmp_path / f"data{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        text = frame.to_csv(index=False, sep="\t" if "tsv" in suffix.lower() else ",")
        data = text.encode()
        path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    table = open_table(path)
    assert table.columns == ["size", "kind", "n"]
    assert table.n_rows == 1000
    for _ in range(2):  # can be read again
        read = rows(table)
        assert read["kind"].tolist() == frame["kind"].tolist()
        assert read["size"].astype(float).tolist() == frame["size"].tolist()
    assert [len(batch) for batch in table.batches(300)] == [300, 300, 300, 100]


def test_columns_can_be_chosen(tmp_path, frame):
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet", index=False)
    for name in ("a.csv", "a.parquet"):
        batch = next(open_table(tmp_path / name).batches(columns=["n"]))
        assert batch.schema.names == ["n"]


def test_text_columns_keep_one_type_over_the_whole_file(tmp_path):
    """The first megabytes are whole numbers, the last value is text: pyarrow's own inference fails here."""
    path = tmp_path / "late.csv"
    path.write_text("x\n" + "12345678\n" * 400_000 + "word\n")
    batches = list(open_table(path).batches())
    assert {str(batch.schema.field(0).type) for batch in batches} == {"string"}
    assert sum(map(len, batches)) == 400_001
    assert batches[-1].column(0)[-1].as_py() == "word"


def test_quotes_line_breaks_and_missing_values(tmp_path):
    path = tmp_path / "quoted.csv"
    path.write_bytes(b'\xef\xbb\xbfname , "b,c"\r\n"one\r\ntwo",1\r\nNA,\r\n\r\n"x ""y""",nan\r\n')
    table = open_table(path)
    assert table.columns == ["name", "b,c"]
    assert pa.Table.from_batches(table.batches()).to_pydict() == {
        "name": ["one\r\ntwo", None, 'x "y"'],
        "b,c": ["1", None, None],
    }


def test_semicolons_and_nameless_index(tmp_path):
    path = tmp_path / "semicolon.csv"
    path.write_text(";a\n0;1\n")
    assert rows(open_table(path)).to_dict("list") == {"column_1": ["0"], "a": ["1"]}


def test_a_column_called_script_is_a_column(tmp_path):
    path = tmp_path / "script.csv"
    path.write_text("<script>,'; drop table\n1,2\n")
    assert open_table(path).columns == ["<script>", "'; drop table"]


def test_lines_longer_than_a_block_are_read(tmp_path):
    path = tmp_path / "long.csv"
    long = "x" * 3_000_000
    path.write_text(f"a,b\n1,2\n{long},3\n4,5\n")
    assert rows(open_table(path))["a"].str.len().tolist() == [1, 3_000_000, 1]


def test_wide_rows_come_in_smaller_batches(tmp_path):
    path = tmp_path / "wide.csv"
    line = ",".join(["0.123456789"] * 1000) + "\n"
    path.write_text(",".join(f"c{i}" for i in range(1000)) + "\n" + line * 1700)
    batches = list(open_table(path).batches())
    assert sum(map(len, batches)) == 1700
    assert max(batch.nbytes for batch in batches) < 20 << 20


def test_dictionary_and_large_types_of_parquet(tmp_path):
    array = pa.array(["u", "v", "u"]).dictionary_encode()
    pq.write_table(pa.table({"d": array, "l": pa.array(["a", "b", None], pa.large_string())}), tmp_path / "d.parquet")
    assert rows(open_table(tmp_path / "d.parquet"))["d"].tolist() == ["u", "v", "u"]


@pytest.mark.parametrize("name", ["digits", "diabetes", "breast_cancer", "iris", "wine"])
def test_built_in_sets_are_those_of_scikit_learn(name):
    from sklearn import datasets

    data = getattr(datasets, f"load_{name}")(**({"scaled": False} if name == "diabetes" else {}))
    table = open_table(name)
    read = rows(table)
    assert table.columns[-1] == table.default_target == "target"
    np.testing.assert_array_equal(read[table.columns[:-1]].to_numpy(), data.data)
    expected = data.target if name == "diabetes" else [str(data.target_names[code]) for code in data.target]
    assert read["target"].tolist() == list(expected)
    assert table.image_shape == ((8, 8) if name == "digits" else None)


@pytest.mark.parametrize("name", ["mnist:valid", "uci:", "uci:a:b", "iris:x"])
def test_unknown_parts_of_built_in_sets(name, tmp_path):
    with pytest.raises((DataError, OSError), match=r"uci|mnist|built|data set"):
        open_table(name, root=tmp_path)


def test_batches_need_rows():
    with pytest.raises(DataError, match="at least one row"):
        open_table("iris").batches(0)


def test_the_room_needs_no_torch():
    code = """
import sys
import bedl.data as data
assert "pyarrow" not in sys.modules
data.TableEncoder, data.TableWriter, data.fetch, data.encode_to_memmap, data.open_table
assert not {"torch", "sklearn", "pooch", "pandas"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
