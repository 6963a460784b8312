"""Numbers as people write them, and columns that only look like something to learn from."""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

import numpy as np
import pandas
import pyarrow as pa
import pytest
from sklearn.feature_extraction.text import TfidfTransformer

from bedl.data import DataError, TableEncoder, encoded_batches, open_table, parsing
from bedl.data.profile import identifies

ROWS = 40


def table(folder: Path, **columns: list) -> Path:
    names = list(columns)
    lines = [";".join(names)] + [
        ";".join(str(columns[name][i]) for name in names) for i in range(len(columns[names[0]]))
    ]
    (folder / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "t.csv"


X = [i * 0.37 for i in range(ROWS)]
TRUE = [1000 + 137.25 * i for i in range(ROWS)]


def german(value: float) -> str:
    return f"{value:,.2f}".translate(str.maketrans(",.", ".,"))


@pytest.mark.parametrize(
    "written",
    [lambda v: f"${v:,.2f}", lambda v: f"{v:,.2f} USD", german, lambda v: german(v) + " €", lambda v: f"{v:,.2f}"],
)
@pytest.mark.parametrize("role", ["target", "feature"])
def test_money_and_decimal_commas_are_numbers(tmp_path, written, role):
    texts = [written(value) for value in TRUE]
    path = table(tmp_path, x=X, y=texts) if role == "target" else table(tmp_path, y=X, x=texts)
    encoder = TableEncoder.fit(open_table(path), "y")
    assert encoder.task == "regression"
    assert any("numbers written as" in note for note in encoder.notes)
    encoder = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    ((x, y),) = encoded_batches(open_table(path), encoder)
    np.testing.assert_allclose(y if role == "target" else x[:, 0], TRUE, rtol=1e-6)


@pytest.mark.parametrize("written", ["${:,.0f}", "{:,.0f} USD"])
def test_three_digits_behind_the_mark_of_money_are_thousands(tmp_path, written):
    values = [900 + 40 * i for i in range(ROWS)]
    texts = [written.format(value) for value in values]
    german = [text.replace(",", ".").replace("$", "€") for text in texts]
    for column, style in ((texts, "1,234.5"), (german, "1.234,5")):
        path = table(tmp_path, x=X, y=column)
        encoder = TableEncoder.fit(open_table(path), "y")
        ((_, y),) = encoded_batches(open_table(path), encoder)
        np.testing.assert_allclose(y, values)
        assert any(style in note for note in encoder.notes)


def test_the_style_is_found_over_all_batches(tmp_path, monkeypatch):
    monkeypatch.setattr("bedl.data.readers._CHUNK", 64)
    texts = [str(i) for i in range(30)] + ["1,5"] * 9 + ["2.000,5"]
    encoder = TableEncoder.fit(open_table(table(tmp_path, x=X, y=texts)), "y")
    y = np.concatenate([y for _, y in encoded_batches(open_table(tmp_path / "t.csv"), encoder)])
    np.testing.assert_allclose(y, [*range(30), *[1.5] * 9, 2000.5])


def test_what_may_be_either_is_asked(tmp_path):
    path = table(tmp_path, x=X, y=[f"{i % 7 + 1},{100 + i}" for i in range(ROWS)])
    with pytest.raises(DataError, match="--decimal"):
        TableEncoder.fit(open_table(path), "y")
    for decimal, expected in ((",", 1.1), (".", 1100.0)):
        encoder = TableEncoder.fit(open_table(path), "y", decimal=decimal)
        ((_, y),) = encoded_batches(open_table(path), encoder)
        assert y[0] == pytest.approx(expected)
    with pytest.raises(DataError, match="'auto'"):
        TableEncoder.fit(open_table(path), "y", decimal=";")


def test_a_decimal_comma_that_was_asked_for_holds_for_every_column(tmp_path):
    path = table(tmp_path, x=[f"{i + 1}.{500 + i}" for i in range(ROWS)], y=[f"{i},5" for i in range(ROWS)])
    encoder = TableEncoder.fit(open_table(path), "y", decimal=",")
    ((x, y),) = encoded_batches(open_table(path), encoder)
    np.testing.assert_allclose(x[:, 0], [1000 * (i + 1) + 500 + i for i in range(ROWS)])
    np.testing.assert_allclose(y, np.arange(ROWS) + 0.5)


def test_dates_are_read_beside_decimal_commas(tmp_path):
    lines = ["day;x;y", *(f"2020-01-{1 + i % 28:02d};{i},5;{i % 7},25" for i in range(40))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    table = open_table(tmp_path / "t.csv")
    encoder = TableEncoder.fit(table, "y", decimal=",")
    x, y = (np.concatenate(parts) for parts in zip(*encoded_batches(table, encoder), strict=True))
    assert [column.kind for column in encoder._columns] == ["date", "number"]
    assert np.ptp(x[:, 0]) == 27
    assert y[:2].ravel().tolist() == [0.25, 1.25]


def test_words_stay_words():
    for texts in (["red", "1,5"], ["1,23,4"], ["1.5.2"], ["01.02.2020"], ["$"], ["1,2345.6"], ["--1"], ["10-20"]):
        assert parsing.number_styles(pa.array(texts)) == set(), texts


@pytest.mark.parametrize("label", [lambda i: f"name {i}", lambda i: f"#{i - i % 8 // 3}"])
def test_nearly_as_many_classes_as_rows_stop_and_ask(tmp_path, label):
    path = table(tmp_path, x=X, y=[label(i) for i in range(ROWS)])
    with pytest.raises(DataError, match=r"many with a single row.*--task regression.*identifier.*--task classific"):
        TableEncoder.fit(open_table(path), "y")
    assert TableEncoder.fit(open_table(path), "y", "classification").task == "classification"


@pytest.mark.parametrize(
    ("label", "value"),
    [
        (lambda i: f"{i % 300 + 0.5}k", lambda i: 1e3 * (i % 300 + 0.5)),
        (lambda i: f"${i % 150}.5M" if i % 9 else "3k", lambda i: 1e6 * (i % 150 + 0.5) if i % 9 else 3e3),
        (lambda i: f"{100 + i % 90} sq ft", lambda i: 100 + i % 90),
        (lambda i: f"{i / 4:.2f} %", lambda i: i / 4),
        (lambda i: f"-{i / 2} m²" if i % 7 else "?", lambda i: -i / 2 if i % 7 else None),
        (lambda i: f"{i + 1} bedroom{'s' * (i > 0)}", lambda i: i + 1),
        (lambda i: f"1.{i:03d},5 kg", lambda i: 1000.5 + i),
    ],
)
@pytest.mark.parametrize("role", ["target", "feature"])
def test_numbers_with_units_and_suffixes(tmp_path, label, value, role):
    rows = [i for i in range(400) if role == "feature" or value(i) is not None]
    texts, values = [label(i) for i in rows], [value(i) for i in rows]
    columns = {"x": rows, "y": texts} if role == "target" else {"x": texts, "y": rows}
    path = table(tmp_path, **columns)
    encoder = TableEncoder.fit(open_table(path), "y", "auto" if role == "target" else "regression")
    assert encoder.task == "regression"
    encoder = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    ((x, y),) = encoded_batches(open_table(path), encoder)
    if role == "target":
        np.testing.assert_allclose(y, values, rtol=1e-6)
        return
    known = np.array([v is not None for v in values])
    np.testing.assert_allclose(x[known, 0], [v for v in values if v is not None], rtol=1e-5)
    assert encoder.feature_names == (["x"] if known.all() else ["x", "x_missing"])
    if not known.all():
        np.testing.assert_array_equal(x[:, 1], ~known)


def test_another_unit_in_a_later_row_is_an_error(tmp_path):
    encoder = TableEncoder.fit(open_table(table(tmp_path, x=[f"{i} kg" for i in range(40)], y=X)), "y")
    with pytest.raises(DataError, match="'x', row 1: '3 lb' where a number is expected"):
        encoder.features(pa.RecordBatch.from_pydict({"x": ["3 lb"]}))


FORMS = [
    "%m/%d/%Y",
    "%d.%m.%Y",
    "%d/%m/%Y %H:%M",
    "%d %b %Y",
    "%B %d, %Y",
    "%b %d, %Y %I:%M %p",
    "%Y/%m/%d",
    "%d-%b-%Y",
]


@pytest.mark.parametrize("form", FORMS)
def test_dates_in_the_usual_forms(tmp_path, form):
    days = pandas.date_range("2020-01-20 13:30", periods=100, freq="37h")
    path = table(tmp_path, x=[*days.strftime(form)[:-1].str.replace(",", ""), "?"], y=range(100))
    encoder = TableEncoder.fit(open_table(path), "y", "regression")
    assert encoder.feature_names[0] == "x_days"
    encoder = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    ((x, _),) = encoded_batches(open_table(path), encoder)
    told = pandas.to_datetime(days.strftime(form), format=form)[:-1]
    expected = (told - told[0]) / pandas.Timedelta(days=1)
    np.testing.assert_allclose(x[:-1, 0] - x[0, 0], expected, atol=1e-4)
    assert x[-1, -1] == 1  # the question mark


def test_the_order_of_day_and_month_is_asked_for_where_both_fit(tmp_path):
    texts = [f"{1 + i % 12:02d}/{1 + i % 11:02d}/2023" for i in range(ROWS)]
    path = table(tmp_path, x=texts, y=X)
    with pytest.raises(DataError, match=r"'01/01/2023' .row 1.: does the day or the month.*--date-order dmy"):
        TableEncoder.fit(open_table(path), "y")
    for order, expected in (("dmy", 1 + 31), ("mdy", 31 + 1)):
        encoder = TableEncoder.fit(open_table(path), "y", date_order=order)
        ((x, _),) = encoded_batches(open_table(path), encoder)
        assert x[1, 0] - x[0, 0] == expected
    dots = table(tmp_path, x=[text.replace("/", ".") for text in texts], y=X)
    assert "written as 31/12/2023" in TableEncoder.fit(open_table(dots), "y").notes[0]
    with pytest.raises(DataError, match="'dmy' or 'mdy'"):
        TableEncoder.fit(open_table(path), "y", date_order="ymd")


def test_no_such_day_is_an_error(tmp_path):
    path = table(tmp_path, x=[f"{1 + i % 28}.02.2023" for i in range(ROWS)], y=X)
    encoder = TableEncoder.fit(open_table(path), "y")
    with pytest.raises(DataError, match=r"row 1: '30.02.2023' where a date"):
        encoder.features(pa.RecordBatch.from_pydict({"x": ["30.02.2023"]}))


@pytest.mark.parametrize("marker", parsing.MARKERS)
def test_markers_of_missing_numbers(tmp_path, marker):
    path = table(tmp_path, x=[marker, *X[1:]], y=[*TRUE[:-1], marker.upper()], c=["+", "-"] * (ROWS // 2))
    encoder = TableEncoder.fit(open_table(path), "y", drop_missing_target=True)
    assert encoder.feature_names == ["x", "x_missing", "c=+", "c=-"]  # among labels a mark is a label
    ((x, y),) = encoded_batches(open_table(path), encoder)
    np.testing.assert_array_equal(x[:, 1], [1, *[0] * (ROWS - 2)])
    np.testing.assert_allclose(y, TRUE[:-1])


def test_a_probable_marker_is_asked_about_and_a_named_one_is_missing(tmp_path):
    x, y = [-999, -999, *X[2:]], [*TRUE[:-1], "lost"]
    path = table(tmp_path, x=x, y=y)
    encoder = TableEncoder.fit(open_table(path), "y", drop_missing_target=True, na_values=["lost"])
    assert any(
        "'x' is -999 in 2 rows, far from all other values" in n and "--na-values -999" in n for n in encoder.notes
    )
    encoder = TableEncoder.fit(open_table(path), "y", drop_missing_target=True, na_values=["lost", -999])
    encoder = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    ((x, y),) = encoded_batches(open_table(path), encoder)
    np.testing.assert_array_equal(x[:, 1], [1, 1, *[0] * (ROWS - 3)])
    assert not any("-999" in note for note in TableEncoder.fit(open_table(table(tmp_path, x=X, y=TRUE)), "y").notes)


def test_free_text_is_hashed_tf_idf(tmp_path):
    words = "quiet sunny garden cellar view small large old modern balcony".split()
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, 6)) + f" no {i}" for i in range(300)]
    path = table(tmp_path, t=texts, y=[float("garden" in text) + i / 1e4 for i, text in enumerate(texts)])
    encoder = TableEncoder.fit(open_table(path), "y", "regression")
    assert any("'t' holds free text" in note for note in encoder.notes)
    encoder = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    x = np.concatenate([x for x, _ in encoded_batches(open_table(path), encoder, rows=64)])
    counts = np.zeros((300, 64))
    for row, text in enumerate(texts):
        for word in text.split()[:-1]:
            counts[row, crc32(word.encode()) % 64] += 1
    np.testing.assert_allclose(x, TfidfTransformer().fit_transform(counts).toarray(), rtol=1e-4, atol=1e-6)


def test_sizes_of_a_few_names_are_classes(tmp_path):
    for labels in (["250 ml", "500 ml", "1 l"], [f"{n}th" for n in range(4, 12)]):
        path = table(tmp_path, x=range(400), y=[labels[i % len(labels)] for i in range(400)])
        assert TableEncoder.fit(open_table(path), "y").task == "classification"


def test_whole_numbers_that_name_rows_are_left_out(tmp_path):
    shuffled = np.random.default_rng(0).permutation(ROWS).tolist()
    twice = [i // 2 for i in range(ROWS)]
    path = table(tmp_path, x=X, shop_id=shuffled, id=list(range(ROWS)), parent_id=twice, year=list(range(ROWS)), y=X)
    encoder = TableEncoder.fit(open_table(path), "y")
    assert encoder.columns == ["x", "parent_id", "year"]  # measurements may be distinct; ids that repeat say something
    assert sum("called like an identifier" in note for note in encoder.notes) == 2
    assert not identifies("valid")


ZIPS = [f"{code:05d}" for code in (501, 1001, 90210, 2139)] * (ROWS // 4)


def test_codes_with_leading_zeros_are_labels(tmp_path):
    encoder = TableEncoder.fit(open_table(table(tmp_path, x=X, zip=ZIPS, y=TRUE)), "y")
    assert encoder.feature_names == ["x", *(f"zip={code}" for code in sorted(set(ZIPS)))]
    assert any("'zip' is taken as categories (values begin with zeros" in note for note in encoder.notes)
    ((x, _),) = encoded_batches(open_table(table(tmp_path, x=X, zip=ZIPS, y=TRUE)), encoder)
    assert (x[:, 1:].sum(1) == 1).all()


@pytest.mark.parametrize("texts", [["0", "1"] * 20, ["0.5", "00.7"] * 20, ["-05", "06"] * 20, ["05", ""] * 20])
def test_which_zeros_lead(tmp_path, texts):
    kinds = [name.partition("=")[0] for name in _features(tmp_path, texts)]
    assert kinds == (["c", "c_missing"] if texts[0] == "05" else ["c"])


def _features(folder, texts):
    names = TableEncoder.fit(open_table(table(folder, x=X, c=texts, y=TRUE)), "y").feature_names
    return [name for name in names if name != "x"]


def test_a_target_of_codes_is_classes_unless_numbers_are_asked_for(tmp_path):
    months = [f"{1 + i % 12:02d}" for i in range(ROWS)]
    path = table(tmp_path, x=X, y=months)
    encoder = TableEncoder.fit(open_table(path), "y")
    assert encoder.classes == sorted(set(months))
    numbers = TableEncoder.fit(open_table(path), "y", task="regression")
    ((_, y),) = encoded_batches(open_table(path), numbers)
    np.testing.assert_array_equal(y, [int(month) for month in months])
