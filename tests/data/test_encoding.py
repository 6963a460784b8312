"""Encoding: what each kind of column becomes, against pandas and scikit-learn."""

import datetime as dt
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.preprocessing import OneHotEncoder

from bedl.data import TableEncoder, open_table
from bedl.data.readers import Table


def table_of(frame: pd.DataFrame, path, suffix: str = ".csv") -> Table:
    path = path / f"table{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path, index=False)
    return open_table(path)


def encode(table: Table, encoder: TableEncoder, **options) -> np.ndarray:
    return np.concatenate([encoder.features(batch, **options) for batch in table.batches(7)])


def make_frame(n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    when = pd.Timestamp("2023-11-01") + pd.to_timedelta(rng.integers(0, 400, n), unit="D")
    frame = pd.DataFrame(
        {
            "size": rng.normal(3, 2, n),
            "rooms": rng.integers(1, 6, n),
            "garden": rng.random(n) < 0.5,
            "town": rng.choice(["Århus", "Bonn", "Cork"], n),
            "built": when,
            "price": rng.normal(100, 10, n),
        }
    )
    return frame


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_every_kind_of_column(tmp_path, suffix):
    frame = make_frame()
    table = table_of(frame, tmp_path, suffix)
    encoder = TableEncoder.fit(table, target="price")
    x = encode(table, encoder)
    assert encoder.task == "regression"
    assert encoder.classes is None
    assert encoder.n_rows == 60
    assert encoder.columns == ["size", "rooms", "garden", "town", "built"]
    towns = ["town=Bonn", "town=Cork", "town=Århus"]
    dates = ["built_days", "built_weekday_sin", "built_weekday_cos", "built_yearday_sin", "built_yearday_cos"]
    assert encoder.feature_names == ["size", "rooms", "garden", *towns, *dates]
    assert x.dtype == np.float32
    assert x.shape == (60, encoder.n_features)
    np.testing.assert_array_equal(x[:, 0], frame["size"].to_numpy(np.float32))
    np.testing.assert_array_equal(x[:, 1], frame["rooms"])
    np.testing.assert_array_equal(x[:, 2], frame["garden"])
    np.testing.assert_array_equal(x[:, 3:6], OneHotEncoder(sparse_output=False).fit_transform(frame[["town"]]))
    days = (frame["built"] - frame["built"].mean()).dt.total_seconds() / 86_400
    np.testing.assert_allclose(x[:, 6], days, rtol=1e-5, atol=1e-4)
    # Positions on the circles: pandas' weekday up to a fixed turn, its day of the year as it is.
    weekday = np.angle(x[:, 8] + 1j * x[:, 7]) * 7 / (2 * np.pi)
    assert set(np.round(weekday - frame["built"].dt.day_of_week, 3) % 7) == {4.0}  # 1 January 1970 was a Thursday
    yearday = np.angle(x[:, 10] + 1j * x[:, 9]) % (2 * np.pi) * 365.25 / (2 * np.pi)
    np.testing.assert_allclose(yearday % 365.2, frame["built"].dt.day_of_year - 1, atol=1e-2)
    y = np.concatenate([encoder.targets(batch) for batch in table.batches(7)])
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y, frame["price"])


def test_csv_and_parquet_are_encoded_alike_and_by_the_same_encoder(tmp_path):
    frame = make_frame()
    text, typed = table_of(frame, tmp_path), table_of(frame[frame.columns[::-1]], tmp_path, ".parquet")
    encoder = TableEncoder.fit(text, target="price")
    np.testing.assert_allclose(encode(text, encoder), encode(typed, encoder), atol=1e-5)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_missing_values(tmp_path, suffix):
    frame = make_frame()
    for number, name in enumerate(["size", "garden", "town", "built"]):
        frame[name] = frame[name].astype(object) if name in ("garden", "town") else frame[name]
        frame.loc[number::7, name] = None
    table = table_of(frame, tmp_path, suffix)
    encoder = TableEncoder.fit(table, target="price")
    x = pd.DataFrame(encode(table, encoder), columns=encoder.feature_names)
    for name in ["size", "garden", "town", "built"]:
        np.testing.assert_array_equal(x[f"{name}_missing"], frame[name].isna())
    np.testing.assert_allclose(x["size"], frame["size"].fillna(frame["size"].mean()), rtol=1e-6)
    garden = frame["garden"].astype(float)
    np.testing.assert_allclose(x["garden"], garden.fillna(garden.mean()), rtol=1e-6)
    assert (x.loc[frame["town"].isna(), ["town=Bonn", "town=Cork", "town=Århus"]] == 0).all(axis=None)
    assert (x.loc[frame["built"].isna(), [c for c in x if c.startswith("built_") and "missing" not in c]] == 0).all(
        axis=None
    )
    notes = "\n".join(encoder.notes)
    assert "'size' is missing in 9 rows: these get the mean" in notes
    assert "'town' is missing in 9 rows, which is taken as a category" in notes


def test_float_nan_in_parquet_counts_as_missing(tmp_path):
    pq.write_table(pa.table({"x": [1.0, float("nan"), 4.0], "y": [1.0, 2.0, 3.5]}), tmp_path / "nan.parquet")
    encoder = TableEncoder.fit(open_table(tmp_path / "nan.parquet"), target="y")
    assert encode(open_table(tmp_path / "nan.parquet"), encoder).tolist() == [[1, 0], [2.5, 1], [4, 0]]


def test_what_is_left_out_is_said(tmp_path):
    n = 200
    frame = pd.DataFrame(
        {
            "id": [f"customer-{i}" for i in range(n)],
            "same": "x",
            "seven": 7,
            "nothing": [None] * n,
            "skip": range(n),
            "x": np.arange(n) * 0.5,
            "y": np.arange(n) ** 2,
        }
    )
    table = table_of(frame, tmp_path)
    encoder = TableEncoder.fit(table, target="y", ignore=["skip"])
    assert encoder.feature_names == ["x"]
    notes = "\n".join(encoder.notes)
    assert "'id' has another text in every row, like an identifier, and was left out" in notes
    assert "'same' has the same value in every row" in notes
    assert "'seven' has the same value in every row" in notes
    assert "'nothing' has no values" in notes
    assert encode(table, encoder).shape == (n, 1)  # columns left out in training may be there, or not
    batch = next(table.batches()).select(["x"])
    assert encoder.features(batch).shape == (n, 1)


def test_texts_of_one_row_each_say_nothing_about_where_a_row_stands(tmp_path):
    """Kept by the order of the rows, they would tell the first rows from the others, whatever they hold."""
    n = 600
    words = [f"w{i}" for i in range(n // 3)] + ["often"] * (n // 3) + ["seldom", "now"] * (n // 6)
    pairs = [f"p{i // 2}" for i in range(n)]  # each twice: the hundred that are kept stand anywhere
    frame = pd.DataFrame({"word": words, "pair": pairs, "y": np.arange(n)})
    encoder = TableEncoder.fit(table_of(frame, tmp_path), target="y")
    word, pair = encoder.to_dict()["columns"]
    assert sorted(word["categories"]) == ["now", "often", "seldom"]
    assert any("the 3 most frequent ones are kept" in note for note in encoder.notes)
    kept = np.array([int(label[1:]) for label in pair["categories"]])
    assert len(kept) == 100
    assert 100 < np.mean(kept) < 200  # of 0 … 299
    frame["nearly"] = [f"w{i}" for i in range(n - 200)] + ["often"] * 200
    encoder = TableEncoder.fit(table_of(frame, tmp_path), target="y")
    assert any("'nearly' has another text in most rows" in note for note in encoder.notes)


@pytest.mark.parametrize("form", ["%m/%d/%Y", "%d.%m.%Y", "%d/%m/%Y %H:%M", "%d-%m-%y"])
def test_dates_in_another_order_are_said_to_be_such(tmp_path, form):
    days = pd.date_range("2020-01-01", periods=300)
    for values in (days.strftime(form), days[np.arange(300) % 7].strftime(form)):
        frame = pd.DataFrame({"day": values, "x": np.arange(300) / 7, "y": np.arange(300)})
        encoder = TableEncoder.fit(table_of(frame, tmp_path), target="y")
        assert any("'day'" in note and "write them as YYYY-MM-DD" in note for note in encoder.notes)


def test_many_categories(tmp_path):
    rng = np.random.default_rng(0)
    words = np.array([f"w{i:03d}" for i in range(300)])
    picked = words[np.minimum(rng.geometric(0.03, 3000) - 1, 299)]
    frame = pd.DataFrame({"word": picked, "y": rng.normal(size=3000)})
    table = table_of(frame, tmp_path)
    encoder = TableEncoder.fit(table, target="y", max_categories=20)
    counts = frame["word"].value_counts()
    assert encoder.n_features == 21
    assert encoder.feature_names[-1] == "word_other"
    x = encode(table, encoder)
    assert sorted(x[:, :20].sum(0), reverse=True) == counts[:20].tolist()
    assert x[:, 20].sum() == counts[20:].sum()
    assert any(f"has {len(counts)} categories: the 20 most frequent ones" in note for note in encoder.notes)
    new = pa.RecordBatch.from_pydict({"word": ["never seen"]})
    assert encoder.features(new)[0].tolist() == [0] * 20 + [1]  # 'other' is what it is for


def test_frequent_categories_are_found_in_bounded_memory(tmp_path, monkeypatch):
    from bedl.data import profile

    monkeypatch.setattr(
        profile.LabelCounts,
        "__init__",
        lambda self: vars(self).update(most=50, counts=profile.Counter(), total=0, exact=True),
    )
    words = [f"rare-{i}" if i % 3 else f"common-{i % 4}" for i in range(3000)]
    frame = pd.DataFrame({"word": words, "y": np.arange(3000) % 17 / 7})
    (tmp_path / "t.csv").write_text(frame.to_csv(index=False))
    table = open_table(tmp_path / "t.csv")
    small = Table(table.name, table.columns, table.n_rows, lambda rows, columns: table.read(100, columns))
    encoder = TableEncoder.fit(small, target="y", max_categories=4)
    assert encoder.feature_names == ["word=common-0", "word=common-1", "word=common-2", "word=common-3", "word_other"]
    assert "more than" in "".join(encoder.notes)


def test_labels_that_look_like_numbers(tmp_path):
    frame = pd.DataFrame({"zip": ["01234", "99999", "01234", "5"] * 3, "y": np.arange(12) / 7})
    table = table_of(frame, tmp_path)
    encoder = TableEncoder.fit(table, target="y", categorical=["zip"])
    assert encoder.feature_names == ["zip=01234", "zip=5", "zip=99999"]


def test_features_stored_as_text_that_are_numbers(tmp_path):
    frame = pd.DataFrame({"a": [str(i) for i in range(12)], "y": np.arange(12) / 7})
    table = table_of(frame, tmp_path, ".parquet")
    encoder = TableEncoder.fit(table, target="y")
    assert encode(table, encoder)[:, 0].tolist() == list(range(12))
    (note,) = encoder.notes
    assert note.startswith("column 'a' is text that holds numbers, taken as numbers (categorical=['a'], ")


def test_numbers_and_text_that_are_clearly_labels(tmp_path):
    frame = pd.DataFrame({"size": ["S", "M", "38", "40"] * 5, "y": np.arange(20) / 7})
    encoder = TableEncoder.fit(table_of(frame, tmp_path), target="y")
    assert encoder.feature_names == ["size=38", "size=40", "size=M", "size=S"]
    assert encoder.notes == ["column 'size' mixes numbers with text and is taken as categories"]


def test_large_numbers_that_differ_little_stay_apart(tmp_path):
    seconds = 1.7e9 + np.arange(50)
    frame = pd.DataFrame({"t": seconds, "y": np.arange(50) / 7})
    table = table_of(frame, tmp_path)
    encoder = TableEncoder.fit(table, target="y")
    np.testing.assert_allclose(np.diff(encode(table, encoder)[:, 0]), 1.0, rtol=1e-5)
    assert "difference from the mean" in encoder.notes[0]


def test_means_do_not_cancel(tmp_path):
    """Moments of batches are merged; sums of squares would lose all digits here."""
    rng = np.random.default_rng(0)
    values = 1e9 + rng.normal(size=5000)
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{v!r},{i / 7}\n" for i, v in enumerate(values.tolist())))
    table = open_table(tmp_path / "t.csv")
    from bedl.data.profile import ColumnProfile

    column = ColumnProfile("x")
    for batch in table.batches(100):
        column.see(batch.column("x"))
    assert column.mean == pytest.approx(values.mean(), rel=1e-14)
    assert column.std == pytest.approx(values.std(), rel=1e-9)


def test_dates_with_time_zone_and_time_of_day(tmp_path):
    frame = pd.DataFrame(
        {"t": ["2024-03-01T00:00:00Z", "2024-03-01T12:00:00+02:00", "2024-03-02 00:00:00Z"], "y": [1.5, 2, 4]}
    )
    table = table_of(frame, tmp_path)
    encoder = TableEncoder.fit(table, target="y")
    days = encode(table, encoder)[:, 0]
    np.testing.assert_allclose(days - days[0], [0, 10 / 24, 1], atol=1e-6)
    typed = pa.RecordBatch.from_pydict({"t": [dt.date(2024, 3, 2)]})
    np.testing.assert_allclose(encoder.features(typed)[0, 0], days[2], atol=1e-6)


def test_images_keep_their_corners():
    table = open_table("digits")
    encoder = TableEncoder.fit(table, target="target")
    assert encoder.n_features == 64  # some pixels are always 0
    assert encoder.image_shape == (8, 8)
    assert encoder.classes == [str(i) for i in range(10)]
    assert TableEncoder.fit(table, target="target", ignore=["pixel_0"]).image_shape is None


def test_feature_names_are_distinct(tmp_path):
    frame = pd.DataFrame({"a": [1, None, 3], "a_missing": [0.5, 1, 2], "y": [1.5, 2, 3]})
    encoder = TableEncoder.fit(table_of(frame, tmp_path), target="y")
    assert encoder.feature_names == ["a", "a_missing", "a_missing#2"]


def test_description_as_json_gives_the_same_encoder(tmp_path):
    frame = make_frame()
    frame.loc[3, "size"] = None
    table = table_of(frame, tmp_path)
    for target in ("price", "town", "rooms"):
        encoder = TableEncoder.fit(table, target=target, drop_missing_target=True)
        again = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
        assert again.to_dict() == encoder.to_dict()
        assert again.feature_names == encoder.feature_names
        np.testing.assert_array_equal(encode(table, again), encode(table, encoder))
        batch = next(table.batches())
        np.testing.assert_array_equal(again.targets(batch), encoder.targets(batch))


def test_progress_is_told(tmp_path):
    seen = []
    TableEncoder.fit(table_of(make_frame(), tmp_path), target="price", progress=seen.append)
    assert seen == [60, 60]  # a second pass for the towns
