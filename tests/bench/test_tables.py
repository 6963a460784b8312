"""The tables themselves, on data small enough to be done in moments."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bedl import BEDLRegressor
from bedl.bench import BOTH, PRESETS, Cell, Choice, row_file, run, tables
from bedl.bench.presets import setup
from bedl.bench.regression import gaussian_scores, regression_scores, seed_of
from bedl.bench.tables import cost, disentangle
from bedl.bench.tables.gap import gap
from bedl.data import DataFileNotFoundError
from bedl.estimators.fit import fit_many
from bedl.methods import registry
from tests.cli.verbs import run as call

RNG = np.random.default_rng(0)


@pytest.fixture
def uci_folder(tmp_path: Path) -> Path:
    """Sixty rows of a plane under the name of two sets, with three splits; of wine some test rows were learned from."""
    for name in ("bostonHousing", "wine-quality-red"):
        folder = tmp_path / "UCI_Datasets" / name / "data"
        folder.mkdir(parents=True)
        x = RNG.normal(size=(60, 13 if name == "bostonHousing" else 11))
        table = np.column_stack([x, 20 + x[:, 0] + 0.1 * RNG.normal(size=60)])
        if name == "wine-quality-red":
            table[55:] = table[:5]
        np.savetxt(folder / "data.txt", table)
        np.savetxt(folder / "index_features.txt", np.arange(x.shape[1]), fmt="%d")
        np.savetxt(folder / "index_target.txt", [x.shape[1]], fmt="%d")
        np.savetxt(folder / "n_splits.txt", [20], fmt="%d")
        for split in range(20):
            np.savetxt(folder / f"index_train_{split}.txt", np.arange(50), fmt="%d")
            np.savetxt(folder / f"index_test_{split}.txt", np.arange(50, 60), fmt="%d")
    return tmp_path


def test_a_cell_is_the_estimator_on_the_split(uci_folder: Path) -> None:
    cell = Cell("uci", "boston", "bedl+reg", "paper", 2)
    found = tables.get("uci").work(cell, uci_folder)
    assert found.settings["hidden_layers"] == (50,)
    assert found.settings["epochs"] == 100
    assert found.settings["learning_rate"] == 1e-3
    assert found.settings["schedule"] == "constant"
    assert found.settings["test_rows"] == 10
    table = np.loadtxt(uci_folder / "UCI_Datasets/bostonHousing/data/data.txt")
    model = BEDLRegressor(
        method="bedl+reg", hidden_layers=(50,), epochs=100, batch_size=64, learning_rate=1e-3, schedule="constant",
        early_stopping=False, device="cpu", random_state=seed_of(cell),
    ).fit(table[:50, :13], table[:50, 13])  # fmt: skip
    mean, std = model.predict(table[50:, :13], return_std=True)
    expected = gaussian_scores(table[50:, 13], mean, std)
    for name in ("log_likelihood", "rmse", "crps", "coverage"):
        assert found.metrics[name] == pytest.approx(expected[name], rel=1e-3), name


def test_rows_that_were_learned_from_are_left_out_of_wine_distinct(uci_folder: Path) -> None:
    options = {"method": "deterministic", "preset": "paper", "split": 0}
    all_of, distinct = (
        tables.get("uci").work(Cell("uci", name, **options), uci_folder)  # type: ignore[arg-type]
        for name in ("wine", "wine-distinct")
    )
    assert (all_of.settings["test_rows"], distinct.settings["test_rows"]) == (10, 5)


def test_splits_together_come_to_what_they_do_alone(uci_folder: Path) -> None:
    cells = [Cell("uci", "boston", "bedl", "paper", split) for split in range(3)]
    table = tables.get("uci")
    (group,) = table.together(cells)
    together = table.work_together(group, uci_folder)
    alone = table.work(cells[1], uci_folder)
    assert together[1].metrics["rmse"] == pytest.approx(alone.metrics["rmse"], rel=1e-2)
    assert together[1].metrics["rmse"] != pytest.approx(together[0].metrics["rmse"], rel=1e-6)


def test_fit_together_takes_estimators_of_the_same_settings_and_any_method() -> None:
    x = RNG.normal(size=(40, 2))
    with pytest.raises(ValueError, match="differ in their random_state alone"):
        fit_many([BEDLRegressor(epochs=1), BEDLRegressor(epochs=2)], [(x, x[:, 0])] * 2)
    models = [BEDLRegressor(method="bedl", epochs=3, batch_size=n, device="cpu", random_state=n) for n in (16, 16)]
    fit_many(models, [(x, x[:, 0]), (x[:20], x[:20, 1])])  # of other sizes: one after the other, or together
    assert all(len(model.history_) == 3 for model in models)
    models = [BEDLRegressor(epochs=1, device="cpu", random_state=seed) for seed in (0, 1)]
    fit_many(models, [(x, x[:, 0])] * 2)
    assert [model.built_[0] for model in models] == ["distilled", "distilled"]


def test_a_gap_is_the_middle_third_of_a_feature() -> None:
    x, y = RNG.normal(size=(90, 3)), np.arange(90.0)
    parts = gap(x, y, 1)
    assert len(parts.y_test) == 30
    assert sorted([*parts.y, *parts.y_test]) == y.tolist()
    assert parts.x_test[:, 1].min() > np.sort(x[:, 1])[29]
    assert parts.x_test[:, 1].max() < np.sort(x[:, 1])[60]


def test_every_method_of_a_table_can_be_set_up() -> None:
    for name in ("uci", "gap"):
        table = tables.get(name)
        for preset in PRESETS:
            for method in (*table.methods[preset], *(table.more if preset in BOTH else ())):
                plan = setup(preset, method, "boston", 455)
                assert registry.get(plan.estimator["method"]).name == method
                BEDLRegressor(**plan.estimator)


@pytest.mark.parametrize("method", ["pbp", pytest.param("dvi", marks=pytest.mark.slow)])
def test_presets_share_a_run_where_it_is_the_same(uci_folder: Path, method: str) -> None:
    """The same scores from both, each run by itself; where they share one, each row has the settings of its own."""
    table, path = tables.get("uci"), uci_folder / "uci.jsonl"
    paper, best = (Cell("uci", "boston", method, preset, 1) for preset in BOTH)
    assert set(table.equivalent_runs(paper)) == {paper, best}
    alone = [table.work(cell, uci_folder).metrics for cell in (paper, best)]
    assert alone[0] == alone[1]
    run(table, [paper, best], row_file(path), root=uci_folder)
    one, other = (row_file(path).get(cell.fields) for cell in (paper, best))
    assert one["metrics"] == other["metrics"] == alone[0]
    assert (one["settings"]["hidden_layers"], other["settings"].get("hidden_layers")) == ([50], None)
    assert one["settings"]["deviations"] == list(setup("paper", method, "boston", 50).deviations)
    assert (other["settings"]["deviations"], other["settings"]["same_run"]) == ([], "paper")
    assert one["seconds"] == other["seconds"]


def test_presets_do_not_share_runs_that_differ() -> None:
    table = tables.get("uci")
    assert not table.equivalent_runs(Cell("uci", "protein", "pbp", "paper"))  # 100 units in the paper
    assert not table.equivalent_runs(Cell("uci", "boston", "bedl", "paper"))
    assert not table.equivalent_runs(Cell("uci", "boston", "auto", "best"))


def test_the_authors_settings_are_those_of_their_code(uci_folder: Path) -> None:
    table = tables.get("uci")
    cells = list(table.cells(Choice(("authors",), datasets=["boston"], splits=[0, 1])))
    assert {cell.method for cell in cells} == {"bedl", "bedl+reg"}
    assert not list(table.cells(Choice(("authors",), datasets=["boston"], methods=["laplace"])))
    found = table.work_together(cells[2:], uci_folder)[0]
    assert found.settings["batch_size"] == 100
    assert found.settings["method_options"] == {"gain": 1.0, "pac": {"delta": 0.1, "kl_scale": "authors-code"}}
    assert np.isfinite(found.metrics["log_likelihood"])
    assert not table.equivalent_runs(cells[0])


def test_mc_dropout_has_the_rates_and_precisions_of_its_authors() -> None:
    """0.1 and 3 are what they would choose on wine; the precision is of targets whose variance is 0.65."""
    for name in ("wine", "wine-distinct"):
        plan = setup("paper", "mc-dropout", name, 1439).estimator
        assert plan["method_options"] == {"dropout": 0.1, "tau": pytest.approx(3.0 * 0.8073**2, rel=1e-3)}
        assert plan["epochs"] == 4000
    assert setup("paper", "mc-dropout", "protein", 41157).estimator["epochs"] == 2000
    assert "method_options" not in setup("paper", "mc-dropout", "sine", 100).estimator


def test_data_that_are_missing_are_said_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(DataFileNotFoundError, match="BEDL_DATA"):
        tables.get("uci").check(Choice(datasets=["boston"]), tmp_path)
    said = call("bench", "gap", "--datasets", "energy", "--data", tmp_path, "--results", tmp_path / "results", ok=False)
    assert "bedl data fetch uci" in said.output
    assert not (tmp_path / "results").exists()


def test_the_command_line_runs_goes_on_and_shows(uci_folder: Path) -> None:
    results = uci_folder / "results"
    words = ("bench", "uci", "--preset", "paper", "--datasets", "boston", "--methods", "deterministic")
    more = ("--data", uci_folder, "--results", results)
    call(*words, "--splits", "0", *more, ok=True)
    said = call(*words, "--splits", "0-2", *more, ok=True)
    assert "2/2 boston deterministic paper split 2" in said.output
    assert "(3)" in said.output  # splits
    assert "−2.45\u00a0±\u00a00.08" in said.output  # the paper's
    assert len((results / "uci.jsonl").read_text().splitlines()) == 3
    found = json.loads(call("bench", "uci", "--show", "--json", *more, ok=True).stdout)
    assert found["sheets"][0]["lines"][0]["entries"][0]["n"] == 3
    assert call("bench", "uci", "--splits", "x", ok=False).exit_code == 2
    assert "there are" in call("bench", "nope", ok=False).output
    assert "disentangle" in call("bench", "list", ok=True).output


def test_scores_of_a_mixture_are_those_of_draws() -> None:
    """CRPS of an ensemble against a hundred thousand draws of its prediction."""
    import torch

    x = RNG.normal(size=(80, 2))
    y = x[:, 0] + 0.3 * RNG.normal(size=80)
    model = BEDLRegressor(method="ensemble", epochs=3, device="cpu", random_state=0).fit(x, y)
    found = regression_scores(model, x[:4], y[:4])
    draws = model.predict_dist(x[:4]).sample(100_000, generator=torch.Generator().manual_seed(0))[..., 0].numpy()
    spread = np.abs(draws[:50_000] - draws[50_000:]).mean(0)
    assert found["crps"] == pytest.approx(np.mean(np.abs(draws - y[:4]).mean(0) - spread / 2), rel=2e-2)


def test_sweeps_find_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disentangle, "SIZES", (40, 160))
    monkeypatch.setattr(disentangle, "FIXED_SIZE", 100)
    found = tables.get("disentangle").work(Cell("disentangle", "sine", "deterministic", "best"))
    assert found.curves["rows"] == [40, 160]
    assert len(found.curves["data_by_noise"]) == 6
    # a network that learns its noise follows it
    assert found.metrics["data_with_noise"] > 0.7
    assert np.isnan(found.metrics["model_with_rows"])  # it has no such part


def test_costs_are_ratios_to_the_plain_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cost.POINTS, "table", 64)
    table = tables.get("cost")
    for method in ("mc-dropout", "bedl+reg"):
        found = table.work(Cell("cost", "table", method, "paper"))
        assert all(value > 0 for name, value in found.metrics.items() if name != "regulariser")
        assert found.metrics["memory"] >= 1
    assert found.metrics["formula_prediction"] == pytest.approx(3 + found.metrics["likelihood"])


@pytest.mark.parametrize("name", tables.names())
def test_each_cell_is_there_once(name: str) -> None:
    table = tables.get(name)
    every = [*dict.fromkeys((*(m for own in table.methods.values() for m in own), *table.more))]
    cells = list(table.cells(Choice(PRESETS, methods=every)))
    assert len(cells) == len(set(cells))
