"""The target: which task it makes, its codes, and what is said about it."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from bedl.data import DataError, TableEncoder, encoded_batches, open_table

N = 200


def fit(path, y, suffix=".csv", **options):
    frame = pd.DataFrame({"x": np.arange(len(y)) * 0.5, "y": y})
    path = path / f"t{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    table = open_table(path)
    encoder = TableEncoder.fit(table, target="y", **options)
    return encoder, np.concatenate([encoder.targets(batch) for batch in table.batches(33)])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    "labels, classes",
    [
        (["b", "a", "ü"], ["a", "b", "ü"]),
        ([2, 10, 1], ["1", "2", "10"]),
        ([2.0, 10.0, -1.0], ["-1", "2", "10"]),
        ([True, False], None),
    ],
)
def test_classes(tmp_path, suffix, labels, classes):
    y = [labels[i % len(labels)] for i in range(N)]
    encoder, codes = fit(tmp_path, y, suffix)
    assert encoder.task == "classification"
    assert codes.dtype == np.int64
    np.testing.assert_array_equal(codes, pd.Series(y).astype("category").cat.codes)
    if classes:
        assert encoder.classes == classes
    else:
        assert [name.lower() for name in encoder.classes] == ["false", "true"]


def test_few_whole_numbers_are_classes_and_it_is_said(tmp_path):
    encoder, _ = fit(tmp_path, [i % 5 for i in range(N)])
    assert encoder.classes == ["0", "1", "2", "3", "4"]
    assert any("5 distinct whole numbers, taken as classes" in n and "--task regression" in n for n in encoder.notes)
    encoder, y = fit(tmp_path, [i % 5 for i in range(N)], task="regression")
    assert encoder.classes is None
    assert not encoder.notes
    np.testing.assert_array_equal(y, np.arange(N) % 5)


@pytest.mark.parametrize("y", [np.arange(N), np.arange(N) % 21, np.arange(N) % 5 / 2, np.arange(20) % 3])
def test_other_numbers_are_regression(tmp_path, y):
    encoder, targets = fit(tmp_path, y)
    assert encoder.task == "regression"
    np.testing.assert_array_equal(targets, y)


def test_fractions_may_be_classes_if_told(tmp_path):
    encoder, codes = fit(tmp_path, np.arange(N) % 3 / 2, task="classification")
    assert encoder.classes == ["0", "0.5", "1"]
    np.testing.assert_array_equal(codes, np.arange(N) % 3)


def test_a_class_with_a_single_row_is_said(tmp_path):
    for y in (["a", "b"] * 50 + ["lonely"], [1, 2] * 50 + [99]):
        encoder, _ = fit(tmp_path, y)
        assert any("single row" in note and str(y[-1]) in note for note in encoder.notes)


def test_rows_without_a_target_are_left_out_if_told(tmp_path):
    y = [None if i % 4 == 0 else f"c{i % 3}" for i in range(40)]
    frame = pd.DataFrame({"x": np.arange(40), "y": y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    table = open_table(tmp_path / "t.csv")
    encoder = TableEncoder.fit(table, target="y", drop_missing_target=True)
    assert encoder.n_rows == 30
    assert encoder.notes == ["10 rows without a target 'y' were left out"]
    x, codes = map(np.concatenate, zip(*encoded_batches(table, encoder, rows=7), strict=True))
    kept = frame["y"].notna()
    np.testing.assert_array_equal(x[:, 0], frame["x"][kept])
    np.testing.assert_array_equal(codes, frame["y"][kept].str[1:].astype(int))
    with pytest.raises(DataError, match=r"column 'y', row 1: the target is missing.*--drop-missing-target"):
        encoder.targets(next(table.batches()))


def test_classes_that_training_did_not_see(tmp_path):
    encoder, _ = fit(tmp_path, ["a", "b"] * 20)
    with pytest.raises(DataError, match=r"column 'y', row 12: 'c' is none of the classes .* 'a', 'b'"):
        encoder.targets(pa.RecordBatch.from_pydict({"y": ["a", "c"]}), first_row=10)
    encoder, _ = fit(tmp_path, [1, 2] * 20)
    for unknown in (0, 1.5, 3):
        with pytest.raises(DataError, match=r"row 2: .* is none of the classes"):
            encoder.targets(pa.RecordBatch.from_pydict({"y": [1, unknown]}))
    with pytest.raises(DataError, match="row 1: 'one' where a number"):
        encoder.targets(pa.RecordBatch.from_pydict({"y": ["one"]}))


def test_numbers_stored_as_text_are_names_of_classes(tmp_path):
    y = [str(i % 40) for i in range(N)]
    encoder, codes = fit(tmp_path, y, ".parquet")
    assert encoder.classes == [str(i) for i in range(40)]  # in the order of the numbers
    assert not encoder.notes
    np.testing.assert_array_equal(codes, np.arange(N) % 40)
    encoder, targets = fit(tmp_path, y, ".parquet", task="regression")
    np.testing.assert_array_equal(targets, np.arange(N) % 40)
    encoder, _ = fit(tmp_path, [*map(str, range(2, 11)), "K"] * 10, ".parquet")
    assert encoder.classes == sorted(["K", *map(str, range(2, 11))])


def test_a_thousand_classes_are_fine(tmp_path):
    encoder, codes = fit(tmp_path, [f"{i % 1000:04d}x" for i in range(2000)])
    assert len(encoder.classes) == 1000
    np.testing.assert_array_equal(codes, np.arange(2000) % 1000)
