"""The UCI folder layout, from files made here; the real ones too, if they are there."""

import os

import numpy as np
import pyarrow as pa
import pytest

from bedl.data import DataError, DataFileNotFoundError, load_uci, open_table, uci_names

DATA = np.round(np.random.default_rng(0).normal(size=(20, 5)), 3)  # column 4 is not used


def write(root, name="toy", **changes):
    folder = root / "UCI_Datasets" / name / "data"
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "data.txt": "".join("\t".join(f" {v} " for v in row) + "\n" for row in DATA) + "\n",
        "index_features.txt": "0\n2\n3\n",
        "index_target.txt": "1\n",
        "n_splits.txt": "2\n",
        "index_train_0.txt": "\n".join(map(str, range(18))),
        "index_test_0.txt": "18\n19\n",
        "index_train_1.txt": "\n".join(f"{i:.18e}" for i in range(2, 20)),  # as NumPy writes numbers
        "index_test_1.txt": "1\n0\n",
    } | changes
    for file, text in files.items():
        (folder / file).write_text(text)
    return root


def test_whole_set_and_splits(tmp_path, monkeypatch):
    monkeypatch.setenv("BEDL_DATA", str(write(tmp_path)))
    assert uci_names() == ["toy"]
    whole = load_uci("toy")
    np.testing.assert_array_equal(whole.x, DATA[:, [0, 2, 3]])
    np.testing.assert_array_equal(whole.y, DATA[:, 1])
    assert whole.n_splits == 2
    split = load_uci("toy", split=1)
    np.testing.assert_array_equal(split.x_train, DATA[2:, [0, 2, 3]])
    np.testing.assert_array_equal(split.y_test, DATA[[1, 0], 1])
    np.testing.assert_array_equal(split.test_rows, [1, 0])


def test_as_tables(tmp_path):
    write(tmp_path)
    table = pa.Table.from_batches(open_table("uci:toy", root=tmp_path).batches())
    assert table.column_names == ["x0", "x1", "x2", "target"]
    assert table["target"].to_pylist() == DATA[:, 1].tolist()
    part = open_table("uci:toy:1:test", root=tmp_path)
    assert part.n_rows == 2
    assert next(part.batches()).column("x1").to_pylist() == DATA[[1, 0], 2].tolist()


def test_absent(tmp_path):
    write(tmp_path)
    for name in ("other", "../toy", "toy/../toy", ""):
        with pytest.raises(DataFileNotFoundError, match=r"no UCI set .*there: toy.*bedl data fetch uci"):
            load_uci(name, root=tmp_path)
    with pytest.raises(DataError, match="splits 0 to 1, not 2"):
        load_uci("toy", split=2, root=tmp_path)
    (tmp_path / "UCI_Datasets/toy/data/index_test_0.txt").unlink()
    with pytest.raises(DataFileNotFoundError, match=r"index_test_0.txt is missing"):
        load_uci("toy", split=0, root=tmp_path)
    assert uci_names(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    "file, text, message",
    [
        ("data.txt", "", "data.txt is damaged"),
        ("data.txt", "1 2\n3\n", "data.txt is damaged"),
        ("data.txt", "1 2 3 4\n3 nan 2 1\n", "finite numbers"),
        ("index_features.txt", "0\n7\n", "distinct whole numbers from 0 to 4"),
        ("index_features.txt", "0\n0\n", "distinct whole numbers"),
        ("index_target.txt", "1\n2\n", "one column number"),
        ("index_test_0.txt", "17\n18\n", "rows in both parts"),
        ("index_train_0.txt", "0.5\n", "distinct whole numbers from 0 to 19"),
        ("index_train_0.txt", "99\n", "distinct whole numbers from 0 to 19"),
    ],
)
def test_damaged(tmp_path, file, text, message):
    write(tmp_path, **{file: text})
    with pytest.raises(DataError, match=message):
        load_uci("toy", split=0, root=tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("BEDL_DATA"), reason="BEDL_DATA is not set")
def test_the_real_sets():
    sizes = {"bostonHousing": (506, 13), "concrete": (1030, 8), "naval-propulsion-plant": (11934, 16)}
    for name, shape in sizes.items():
        data = load_uci(name)
        assert data.x.shape == shape
        split = load_uci(name, split=19)
        assert len(split.x_train) + len(split.x_test) == shape[0]
        assert len(split.x_test) == round(shape[0] * 0.1)
