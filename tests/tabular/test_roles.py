"""Columns of groups, times and weights: in Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from bedl.data import DataError, TableEncoder, open_table
from bedl.data.encode import Roles, read_roles
from bedl.estimators import tabular
from bedl.estimators.tabular.fitting import encode
from tests.cli.verbs import run

QUICK: dict[str, Any] = {"method": "bedl", "epochs": 2, "device": "cpu"}


def frame(n: int = 60) -> pandas.DataFrame:
    rng = np.random.default_rng(0)
    return pandas.DataFrame(
        {
            "x": rng.normal(size=n),
            "patient": [f"p{i % 12}" for i in range(n)],
            "day": [f"{1 + i % 28:02d}.{1 + i // 28:02d}.2023" for i in range(n)],
            "w": rng.uniform(0.5, 2, n),
            "y": rng.normal(size=n),
        }
    )


def encoded(table: pandas.DataFrame, roles: Roles, folder: Path) -> Any:
    opened = open_table(table)
    encoder = TableEncoder.fit(opened, "y", ignore=roles.no_features)
    return encoder, encode(opened, encoder, folder, 0.25, 0, lambda rows: None, roles)


def test_groups_are_held_out_whole_and_are_no_feature(tmp_path: Path) -> None:
    table = frame()
    encoder, rows = encoded(table, Roles(group="patient", weight="w"), tmp_path)
    assert encoder.columns == ["x", "day"]
    of = {x: (patient, w) for x, patient, w in table[["x", "patient", "w"]].astype({"x": np.float32}).to_numpy()}
    kept, out = ([of[x] for x in np.asarray(part[:, 0])] for part in (rows.x, rows.held_x))
    assert not {patient for patient, _ in kept} & {patient for patient, _ in out}
    assert len({patient for patient, _ in out}) == 3
    np.testing.assert_allclose(rows.roles["weight"], [w for _, w in kept])
    assert len(set(zip([patient for patient, _ in kept], rows.roles["groups"].tolist(), strict=True))) == 9


def test_the_latest_rows_are_held_out(tmp_path: Path) -> None:
    table = frame().sample(frac=1, random_state=0)
    encoder, rows = encoded(table, Roles(time="day"), tmp_path)
    assert "day_days" in encoder.feature_names
    days = encoder.feature_names.index("day_days")
    assert rows.x[:, days].max() <= rows.held_x[:, days].min()
    assert len(rows.roles["order"]) == len(rows.x)


def test_rows_without_a_target_have_no_role(tmp_path: Path) -> None:
    table = frame()
    table.loc[:9, "y"] = np.nan
    opened = open_table(table)
    encoder = TableEncoder.fit(opened, "y", ignore=["w"], drop_missing_target=True)
    found = read_roles(opened, encoder, Roles(weight="w"))
    np.testing.assert_allclose(found["weight"], table["w"][10:])


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"group": "patient", "time": "day"}, "a group or a time, not both"),
        ({"group": "house"}, "no column 'house' .named as group."),
        ({"weight": "patient"}, "'patient' does not hold numbers"),
        ({"time": "patient"}, "'patient' does not hold numbers or dates"),
        ({"weight": "x"}, "'x' cannot hold weights"),
        ({"group": "one"}, "'one' holds one group only"),
        ({"group": "some"}, "'some', row 3: the value is missing, and each row needs one"),
    ],
)
def test_what_is_refused(roles: dict[str, str], message: str) -> None:
    table = frame().assign(one="a", some=[None if i == 2 else f"g{i % 5}" for i in range(60)])
    with pytest.raises(DataError, match=message):
        tabular.fit(table, "y", **roles, **QUICK)


def test_on_the_command_line(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    words = ["fit", tmp_path / "t.csv", "--target", "y", "--method", "bedl", "--epochs", 2, "--json", "--holdout", 0.2]
    found = run(*words, "--group", "patient", "--weight", "w", "--out", tmp_path / "m", ok=True)
    assert json.loads(found.stdout)["rows"] == {"training": 50, "held_out": 10}
    card = json.loads((tmp_path / "m" / "model.json").read_text())
    assert (card["settings"]["group"], card["settings"]["weight"]) == ("patient", "w")
    # neither is needed to predict
    frame().drop(columns=["patient", "w", "y"]).to_csv(tmp_path / "q.csv", index=False)
    run("predict", tmp_path / "m", tmp_path / "q.csv", "--out", tmp_path / "p.csv", ok=True)
    run(*words, "--time", "day", "--likelihood", "normal", "--out", tmp_path / "n", ok=True)
