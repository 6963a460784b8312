"""Encoding: what cannot be used is refused, with the column, the row and the remedy."""

import numpy as np
import pyarrow as pa
import pytest

from bedl.data import DataError, TableEncoder, encoded_batches, open_table
from bedl.data.unknown import UnknownValues


def table_of(path, text: str):
    (path / "table.csv").write_text(text)
    return open_table(path / "table.csv")


def typed(path, **columns):
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path / "table.parquet")
    return open_table(path / "table.parquet")


FIT_ERRORS = {
    "one row": ("x,y\n1,2\n", {}, "1 row.*at least two"),
    "no such target": ("x,z\n1,2\n2,3\n", {}, "no column 'y' .named as target.*Choose among 'x', 'z'"),
    "no such ignored": ("x,y\n1,2\n2,3\n", {"ignore": ["w"]}, "no column 'w' .named as ignored"),
    "no such categorical": ("x,y\n1,2\n2,3\n", {"categorical": ["w"]}, "no column 'w' .named as categorical"),
    "target ignored": ("x,y\n1,2\n2,3\n", {"ignore": ["y"]}, "cannot be the target and be ignored"),
    "task": ("x,y\n1,2\n2,3\n", {"task": "clustering"}, "'auto', 'classification', 'count', .*'regression'"),
    "infinite": ("x,y\n1,2\ninf,3\n2,4\n", {}, "column 'x', row 2: the value is infinite.*--ignore x"),
    "too large": (
        "x,y\n1,2\n2,3\n1e39,4\n",
        {},
        r"column 'x', row 3: the value is 1e\+39, beyond the range of float32",
    ),
    "infinite target": ("x,y\n1,2\n2,-inf\n3,4\n", {"task": "regression"}, "column 'y', row 2: the value is infinite"),
    "mixed": ("x,y\n" + "1.5,2\n" * 20 + "big,3\n", {}, r"'x' holds numbers but .* row 21: 'big'.*--categorical x"),
    "mixed dates": ("x,y\n" + "2024-01-02,2\n" * 20 + "soon,3\n", {}, "'x' holds dates but .* row 21: 'soon'"),
    "impossible date": ("x,y\n2024-01-02,2\n2024-02-31,3\n", {}, "'x' holds dates but .* row 2: '2024-02-31'"),
    "nothing left": ("x,y\n,1\n,2\n", {}, "no column left.*'x' has no values"),
    "only the target": ("y\n1\n2\n", {}, "no column left to predict 'y' from"),
    "missing target": ("x,y\n1,2\n2,\n3,NA\n4,5\n", {}, "'y' is missing in 2 of 4 rows.*--drop-missing-target"),
    "constant target": ("x,y\n1,2\n2,2\n3,2\n", {}, "'y' is 2 in every row"),
    "constant class": ("x,y\n1,a\n2,a\n", {}, "'y' is 'a' in every row"),
    "text in regression": ("x,y\n1,2\n2,b\n", {"task": "regression"}, "no number in row 2: 'b'.*--task classification"),
    "booleans in regression": ("x,y\n1,true\n2,false\n", {"task": "regression"}, "no number in row 1: 'true'"),
    "date target": ("x,y\n1,2024-01-02\n2,2024-01-05\n", {}, "is a date.*days since"),
    "mixed target": ("x,y\n" + "1,2.5\n" * 20 + "2,big\n", {}, r"'y' mixes numbers with text.* row 21: 'big'"),
    "many classes": ("x,y\n" + "".join(f"1,c{i}\n2,c{i}\n" for i in range(1001)), {}, "more than 1000 classes"),
    "many numeric classes": (
        "x,y\n" + "".join(f"1,{i}\n2,{i}\n" for i in range(1001)),
        {"task": "classification"},
        "more than 1000 classes.*--task regression",
    ),
    "very many classes": ("x,y\n" + "".join(f"1,c{i}\n" for i in range(50_000)), {}, "more than 1000 classes"),
}


@pytest.mark.parametrize("text, options, message", FIT_ERRORS.values(), ids=FIT_ERRORS)
def test_fitting(tmp_path, text, options, message):
    with pytest.raises(DataError, match=message):
        TableEncoder.fit(table_of(tmp_path, text), target="y", **options)


def test_column_types_without_meaning(tmp_path):
    table = typed(tmp_path, x=[[1, 2], [3]], y=[1.5, 2.5])
    with pytest.raises(DataError, match=r"'x' is of type list.*--ignore x"):
        TableEncoder.fit(table, target="y")
    table = typed(tmp_path, x=[1.0, float("inf")], y=[1.5, 2.5])
    with pytest.raises(DataError, match="column 'x', row 2: the value is infinite"):
        TableEncoder.fit(table, target="y")


@pytest.mark.parametrize("column", ["x", "y"])
def test_a_type_without_meaning_where_text_was(tmp_path, column):
    encoder = TableEncoder.fit(typed(tmp_path, x=["a", "b"] * 4, y=["c", "c", "d", "d"] * 2), target="y")
    table = typed(tmp_path, **{"x": ["a", "b"], "y": ["c", "d"], column: [{"a": 1}, {"a": 2}]})
    with pytest.raises(DataError, match=rf"column '{column}' is of type struct.*, where training saw text"):
        list(encoded_batches(table, encoder))


def test_the_row_of_a_bad_target(tmp_path):
    encoder = TableEncoder.fit(typed(tmp_path, x=[1, 2], y=[1.5, 2.5]), target="y")
    with pytest.raises(DataError, match="column 'y', row 12: the value is infinite"):
        encoder.targets(pa.RecordBatch.from_pydict({"y": [1.0, float("inf")]}), first_row=10)
    with pytest.raises(DataError, match="column 'y', row 12: the target is missing, as in 1 rows"):
        encoder.targets(pa.RecordBatch.from_pydict({"y": [1.0, float("nan")]}), first_row=10)


def test_rows_are_counted_over_batches(tmp_path):
    table = table_of(tmp_path, "x,y\n" + "".join(f"{i},{i}\n" for i in range(70_000)) + "inf,1\n")
    with pytest.raises(DataError, match="row 70001"):
        TableEncoder.fit(table, target="y")


@pytest.fixture
def encoder(tmp_path):
    text = "x,town,when,ok,y\n" + "".join(
        f"{i},{'ab'[i % 2]},2024-01-{i + 1:02d},{i % 2 == 0},{i / 7}\n" for i in range(9)
    )
    return TableEncoder.fit(table_of(tmp_path, text), target="y")


GOOD = {"x": ["1"], "town": ["a"], "when": ["2024-05-01"], "ok": ["True"]}


def batch(**changes):
    return pa.RecordBatch.from_pydict({**GOOD, **changes})


PREDICT_ERRORS = {
    "unseen category": (
        batch(town=["c"]),
        "'town', row 11: training saw no 'c' there, only 'a', 'b'.*--handle-unknown warn",
    ),
    "missing category": (batch(town=pa.array([None], pa.string())), "'town', row 11: the value is missing"),
    "missing number": (batch(x=pa.array([None], pa.string())), "'x', row 11: the value is missing.*--handle-unknown"),
    "text in numbers": (batch(x=["big"]), "'x', row 11: 'big' where a number is expected"),
    "dates in numbers": (batch(x=pa.array([0], pa.timestamp("s"))), "'x', row 11: .*timestamp.* where a number"),
    "no date": (batch(when=["yesterday"]), "'when', row 11: 'yesterday' where a date"),
    "numbers as dates": (batch(when=[7]), "'when', row 11: .*int64 where a date"),
    "no boolean": (batch(ok=["maybe"]), "'ok', row 11: 'maybe' where true or false"),
    "infinite": (batch(x=["-inf"]), "'x', row 11: the value is infinite"),
    "extra": (batch(new=["1"], newer=["2"]), "training saw no column.* 'new', 'newer'.*--extra ignore"),
}


@pytest.mark.parametrize("rows, message", PREDICT_ERRORS.values(), ids=PREDICT_ERRORS)
def test_predicting(encoder, rows, message):
    with pytest.raises(DataError, match=message):
        encoder.features(rows, first_row=10)


def test_missing_columns(encoder):
    with pytest.raises(DataError, match="lacks 'town', 'ok'"):
        encoder.features(batch().select(["x", "when"]))


def test_what_may_be_ignored(encoder):
    unknown = UnknownValues()
    x = encoder.features(batch(town=["c"], x=pa.array([None], pa.string())), unknown, first_row=4)
    assert np.isnan(x[0, :3]).all()  # the number, and both towns
    assert np.isfinite(x[0, 3:]).all()
    assert unknown.notes() == [
        "column 'x': 1 row holds a value that training did not see, first in row 5: 'no value'",
        "column 'town': 1 row holds a value that training did not see, first in row 5: 'c'",
    ]
    possible = encoder.possible_rows(x)[:, 0]
    assert np.isfinite(possible).all()
    assert (possible[:, 1:3].sum(1) == 1).all()
    np.testing.assert_array_equal(possible[:, 3:], np.tile(x[0, 3:], (len(possible), 1)))
    np.testing.assert_array_equal(encoder.features(batch(new=["1"]), extra="ignore"), encoder.features(batch()))
    with pytest.raises(DataError, match="'error' or 'ignore'"):
        encoder.features(batch(), extra="whatever")


def test_possible_values_are_not_missing_in_columns_where_some_were(tmp_path):
    texts = [f"{'quiet old big'.split()[i % 3]} house {i} near the {'lake park'.split()[i % 2]}" for i in range(60)]
    days = [f"2020-{1 + i % 12:02d}-{1 + i % 28:02d}" for i in range(60)]
    columns = {"x": [float(i) for i in range(60)], "when": days, "text": texts}
    gaps = {name: [None if i % 7 == 3 else value for i, value in enumerate(values)] for name, values in columns.items()}
    encoder = TableEncoder.fit(typed(tmp_path, **gaps, y=[float(i) for i in range(60)]), "y")
    possible = encoder.possible_rows(np.full((1, encoder.n_features), np.nan))
    assert np.isfinite(possible).all()
    flags = [i for i, name in enumerate(encoder.feature_names) if name.endswith("missing")]
    assert len(flags) == 3
    assert (possible[..., flags] == 0).all()


def test_the_target_may_be_absent_until_it_is_needed(encoder):
    assert encoder.features(batch()).shape == (1, encoder.n_features)
    assert not encoder.has_target(batch().schema.names)
    with pytest.raises(DataError, match="lacks the target 'y'"):
        encoder.targets(batch())


def test_descriptions_from_elsewhere(encoder):
    fields = encoder.to_dict()
    with pytest.raises(DataError, match=r"newer bedl .format 99; this one reads up to 3.*pip install --upgrade"):
        TableEncoder.from_dict({**fields, "version": 99})
    with pytest.raises(DataError, match="no description of a table encoder"):
        TableEncoder.from_dict({"version": 1})
    with pytest.raises(DataError, match=r"damaged.*columns"):
        TableEncoder.from_dict({k: v for k, v in fields.items() if k != "columns"})
    with pytest.raises(DataError, match="damaged"):
        TableEncoder.from_dict({**fields, "columns": [{"kind": "spell"}]})
    category = {"kind": "category", "name": "a", "categories": ["red", 1], "has_other": False, "has_missing": False}
    with pytest.raises(DataError, match=r"damaged.*categories"):
        TableEncoder.from_dict({**fields, "columns": [category]})
