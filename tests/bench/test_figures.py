"""Rows → means with their errors, ours beside the published ones, as text and as a page."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from bedl._utils.io import OutputExistsError, Row, RowFileError
from bedl.bench import Choice, row_file, run, sheets, shown, tables
from bedl.bench.benchmark import best_of
from bedl.bench.page import render, write_page
from bedl.bench.presets import figures, uci_log_likelihoods
from tests.bench.toys import Toy
from tests.cli.verbs import run as call


def toy_rows(tmp_path: Path, choice: Choice | None = None) -> list[Row]:
    table, rows = Toy(tmp_path), row_file(tmp_path / "toy.jsonl")
    run(table, table.cells(choice), rows)
    return rows.rows()


def uci_row(dataset: str, method: str, split: int, value: float, **more: object) -> Row:
    fields = {"table": "uci", "dataset": dataset, "method": method, "preset": "paper", "split": split, "seed": 0}
    rest = {"settings": {"deviations": ["<b>none</b>"]}, "seconds": 1.0, "failed": None}
    return {**fields, "metrics": {"log_likelihood": value, "rmse": 2.0}, **rest, **more}


def test_means_and_their_errors_over_the_splits(tmp_path: Path) -> None:
    first = sheets(Toy(), toy_rows(tmp_path))[0]
    line = first.lines[0]
    entry = line.entries[first.head.index("b")]
    values = [-1.0, -2.0, -3.0, -4.0]
    assert entry is not None
    assert entry.mean == pytest.approx(np.mean(values))
    assert entry.error == pytest.approx(np.std(values, ddof=1) / 2)
    assert (line.label, line.source, entry.n, entry.whole) == ("bedl", "paper", 4, True)


def test_published_figures_stand_below_the_method_that_they_are_of(tmp_path: Path) -> None:
    likelihood, error = sheets(Toy(), toy_rows(tmp_path, Choice(("paper", "best"))))
    labels = [(line.label, line.source) for line in likelihood.lines]
    assert labels == [
        ("bedl", "paper"), ("bedl", "best"), ("BEDL", "published"), ("edl", "paper"), ("auto", "best"),
        ("Oracle", "elsewhere"),
    ]  # fmt: skip
    assert "Oracle" not in {line.label for line in error.lines}


def test_splits_that_are_missing_are_said(tmp_path: Path) -> None:
    sheet = sheets(Toy(), toy_rows(tmp_path, Choice(splits=[0, 1])))[0]
    assert shown(sheet.lines[0].entries[0], sheet.columns[0]) == "−0.50 ± 0.50 (2)"
    assert shown(None, sheet.columns[0]) == "–"


def test_failures_and_other_tables_do_not_count(tmp_path: Path) -> None:
    rows = [uci_row("boston", "bedl", 0, -2.0), uci_row("boston", "bedl", 1, -9.0, failed="no"),
            uci_row("boston", "bedl", 2, -7.0, table="gap")]  # fmt: skip
    entry = sheets(tables.get("uci"), rows)[0].lines[0].entries[0]
    assert entry is not None
    assert (entry.mean, entry.n, entry.error) == (-2.0, 1, None)


def test_a_value_that_is_none_is_no_figure() -> None:
    rows = [uci_row("boston", "bedl", 0, -2.0), uci_row("boston", "bedl", 1, None)]  # type: ignore[arg-type]
    sheet = sheets(tables.get("uci"), rows)[0]
    assert shown(sheet.lines[0].entries[0], sheet.columns[0]).startswith("–")


def test_the_best_of_ours_is_found_by_what_is_better() -> None:
    rows = [uci_row("boston", "bedl", 0, -2.0), uci_row("boston", "pbp", 0, -3.0)]
    rows[1]["metrics"]["rmse"] = 1.0
    likelihood, rmse = sheets(tables.get("uci"), rows)
    assert [[line.label for line in best] for best in (*best_of(likelihood), *best_of(rmse))] == [["bedl"], ["pbp"]]
    rows[1]["metrics"]["log_likelihood"] = -2.001  # reads the same
    assert [line.label for line in best_of(sheets(tables.get("uci"), rows)[0])[0]] == ["bedl", "pbp"]
    rows.append(uci_row("boston", "pbp", 1, -3.0))  # one split against two is no comparison
    assert best_of(sheets(tables.get("uci"), rows)[0]) == [[]]


def test_published_numbers_are_those_of_the_paper() -> None:
    """A few read off the paper's table by eye."""
    found = {entry.label: entry for entry in uci_log_likelihoods()}
    assert found["BEDL+Reg"].values["protein"] == (-2.77, 0.01)
    assert found["Sparse GP"].values["wine"] == (-0.67, 0.01)
    assert found["MC Dropout"].values["boston"] == (-2.46, 0.25)
    assert found["TabPFN"].values.get("boston") is None
    assert found["TabPFN"].values["naval"] == (7.33, None)
    assert figures()["gp_comparison_test_error"]["BEDL+Reg"] == [0.63, 32.47]


def test_text_from_rows_is_harmless_on_the_page() -> None:
    bad = "<script>alert(1)</script>"
    rows = [uci_row("boston", "bedl", 0, -2.0), uci_row("boston", "bedl", 1, 0.0, failed=bad)]
    page = render({"uci": rows})
    assert bad not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<b>none</b>" not in page
    assert "−2.45 ± 0.08" in page  # what the paper has


def test_sweeps_and_parts_are_plots_on_the_page() -> None:
    sizes, noises = [50, 100, 200], [0.0, 0.1, 0.2]
    falling, rising = [0.1, 0.03, 0.01], [0.01, 0.1, 0.9]
    sweep = {"rows": sizes, "noise": noises, "data_by_rows": [0.2, 0.2, 0.2], "data_by_noise": rising,
             "epistemic_by_rows": falling, "epistemic_by_noise": falling}  # fmt: skip
    along = {"x": [-1.0, 0.0, 1.0], "data": [0.1, 0.1, 0.2], "distributional": [0.0, 0.3, 0.0], "model": [0.0] * 3}
    about = {"metrics": {"data_with_noise": 1.0}, "settings": {}, "seconds": 1.0, "failed": None, "split": 0, "seed": 0}
    one = {**about, "table": "disentangle", "dataset": "sine", "method": "bedl", "preset": "paper", "curves": sweep}
    two = {**about, "table": "decomposition", "dataset": "targets", "method": "auto", "preset": "best", "curves": along}
    page = render({"disentangle": [one], "decomposition": [two]})
    assert page.count("<svg") == 3
    assert "epistemic at 200: 0.01" in page
    assert "x 0: data 0.1, distributional 0.3, model 0" in page
    sweep["data_by_rows"] = [0.2, None, 0.2]
    assert render({"disentangle": [one]}).count("<svg") == 1  # the other sweep


def test_every_table_has_what_the_page_and_the_command_line_need() -> None:
    for name in tables.names():
        table = tables.get(name)
        cells = list(table.cells(Choice(("paper", "best"))))
        assert table.name == name
        assert len(set(cells)) == len(cells) > 0
        assert len({column.metric for column in table.columns}) == len(table.columns)
        for entry in table.published():
            assert set(entry.values) <= set(table.datasets)
            assert entry.metric in {column.metric for column in table.columns}
            assert all(math.isfinite(mean) for mean, _ in entry.values.values())


def test_a_page_of_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    assert call("bench", "page", "--results", folder, "--out", tmp_path / "page.html", ok=False).exit_code == 1
    (folder / "uci.jsonl").write_text(json.dumps(uci_row("boston", "bedl", 0, -2.0)) + "\n")
    call("bench", "page", "--results", folder, "--out", tmp_path / "page.html", ok=True)
    assert "UCI regression" in (tmp_path / "page.html").read_text()
    with pytest.raises(OutputExistsError):
        write_page(folder, tmp_path / "page.html")


# -- the command line ----------------------------------------------------------------------------------
def written(tmp_path: Path, *rows: Row) -> Path:
    (tmp_path / "uci.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_what_is_shown_is_what_was_asked_for(tmp_path: Path) -> None:
    place = written(
        tmp_path, uci_row("boston", "bedl", 0, -2.0), uci_row("energy", "bedl", 0, -1.0),
        uci_row("boston", "pbp", 0, 0.0, failed="no luck"),
    )  # fmt: skip
    shown = call("bench", "uci", "--show", "--results", place, "--datasets", "boston", "--json", ok=True)
    found = json.loads(shown.stdout)
    assert found["sheets"][0]["columns"] == ["boston"]
    assert [(row["method"], row["failed"]) for row in found["failed"]] == [("pbp", "no luck")]
    only = call("bench", "uci", "--show", "--results", place, "--methods", "bedl", "--json", ok=True)
    assert not json.loads(only.stdout)["failed"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--show", "--methods", "nosuch"), "has no method 'nosuch'"),
        (("--splits", "99"), "has no such cells"),
        (("--methods", "auto", "--preset", "paper"), "has no such cells"),
        (("--jobs", "3", "--scheduler", "tcp://127.0.0.1:1"), "workers of its own"),
    ],
)
def test_what_is_asked_for_in_vain_is_an_error(tmp_path: Path, wrong: tuple[str, ...], said: str) -> None:
    asked = call("bench", "uci", "--results", tmp_path, *wrong, ok=False)
    assert said in f"{asked.exception or ''} {asked.output}"


def test_cells_that_failed_end_in_an_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails").touch()
    monkeypatch.setattr("bedl.bench.get", lambda name: Toy(tmp_path))
    asked = ("bench", "toy", "--results", tmp_path, "--datasets", "a", "--preset", "paper", "--json")
    first = call(*asked)
    assert (first.exit_code, len(json.loads(first.stdout)["failed"])) == (1, 2)
    assert call(*asked, "--show").exit_code == 0  # which has run nothing
    (tmp_path / "fails").unlink()
    assert call(*asked, "--retry").exit_code == 0


def test_tables_are_listed_for_programs_too() -> None:
    assert json.loads(call("bench", "list", "--json", ok=True).stdout)["uci"]


@pytest.mark.parametrize("damage", [{"metrics": None}, {"metrics": {"rmse": "2"}}, {"seconds": None}])
def test_a_damaged_row_is_named(tmp_path: Path, damage: dict[str, object]) -> None:
    place = written(tmp_path, uci_row("boston", "bedl", 0, -2.0), uci_row("energy", "bedl", 0, -1.0, **damage))
    with pytest.raises(RowFileError, match=r"uci\.jsonl holds a damaged row .*energy"):
        row_file(place / "uci.jsonl")
