"""`bedl fit`: what it writes, what it says, and how it is interrupted and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from bedl._utils.io import OutputFileError
from bedl.estimators.tabular.fitting import _write_rows, split
from tests.cli.verbs import run


def files(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_model_folder_holds_the_estimator_and_its_card(houses):
    assert files(houses) == ["MODEL_CARD.md", "model.json", "model.safetensors"]
    card = json.loads((houses / "model.json").read_text())
    assert (card["schema"], card["task"], card["target"]) == (2, "regression", "price")
    assert card["rows"] == {"training": 108, "held_out": 12}
    assert card["scores"]["rmse"] > 0
    assert card["versions"]["bedl"]
    assert not houses.with_name("houses.partial").exists()


def test_what_was_done_with_the_columns_is_said(shelf, tmp_path):
    said = run("fit", shelf / "houses.csv", "-t", "price", "--epochs", 1, "--out", tmp_path / "m", "--json", ok=True)
    assert "1 of categories" in said.stderr
    assert "1 of dates" in said.stderr
    assert "'age' is missing in" in said.stderr
    assert "'code' has another text in every row" in said.stderr
    document = json.loads(said.stdout)  # one document, and nothing else
    assert document["task"] == "regression"
    assert document["rows"]["held_out"] == 12
    assert document["epochs"] == 1
    assert any("'sold' holds dates" in note for note in document["notes"])


def test_built_in_sets_have_a_target_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run("fit", "iris", "--epochs", 1, "--holdout", 0, ok=True)
    assert files(tmp_path / "iris-model") == ["MODEL_CARD.md", "model.json", "model.safetensors"]
    assert "3 classes" in said.stderr
    assert not said.stdout


@pytest.mark.parametrize("ensemble", [1, 2])
def test_an_interrupted_fit_goes_on_where_it_was(shelf, tmp_path, monkeypatch, ensemble):
    from bedl.cli.progress import TrainingBar

    words = ["fit", shelf / "houses.csv", "--target", "price", "--epochs", 4, "--seed", 3, "--ensemble", ensemble]
    monkeypatch.setattr("bedl.estimators.tabular.fitting.MIN_CHECKPOINT_SECONDS", 0.0)  # a checkpoint after every epoch
    run(*words, "--out", tmp_path / "whole", ok=True)
    with monkeypatch.context() as patch:

        def stop(self, run, row):
            if row["epoch"] == 2:
                raise KeyboardInterrupt

        patch.setattr(TrainingBar, "on_epoch", stop)
        said = run(*words, "--out", tmp_path / "m")
    assert said.exit_code == 130
    assert "--resume" in said.stderr
    assert "--seed 3" in said.stderr
    assert list((tmp_path / "m.partial").rglob("step-*.safetensors"))
    assert not (tmp_path / "m").exists()
    assert "was interrupted" in run("predict", tmp_path / "m", shelf / "houses.csv", ok=False).stderr
    assert "--resume" in run(*words, "--out", tmp_path / "m", ok=False).stderr
    changed = [5 if word == 3 else word for word in words]
    assert "seed 3, now 5" in run(*changed, "--out", tmp_path / "m", "--resume", ok=False).stderr
    run(*words, "--out", tmp_path / "m", "--resume", ok=True)
    assert files(tmp_path) == ["m", "whole"]
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "m"))
    assert whole.keys() == resumed.keys()
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)


def test_an_ensemble_is_trained_as_one_run(shelf, tmp_path, monkeypatch):
    from bedl.cli.progress import TrainingBar

    runs = []
    monkeypatch.setattr("bedl.estimators.tabular.fitting.MIN_CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(TrainingBar, "on_end", lambda self, run: runs.append(run))
    words = ["fit", shelf / "houses.csv", "-t", "price", "--epochs", 2, "--ensemble", 3, "--out", tmp_path / "m"]
    said = run(*words, ok=True)
    assert "2 epochs" in said.stderr
    (together,) = runs
    assert len(together.methods) == 3
    assert together.checkpoint is not None  # an interrupt could have gone on from there


@pytest.mark.parametrize(
    "named, expected",
    [
        (["a,b"], ("a", "b")),
        (["a", "b"], ("a", "b")),
        (["x,y"], ("x,y",)),
        (["x,y", "a"], ("x,y", "a")),
        (["a"], ("a",)),
    ],
)
def test_targets_are_repeated_or_have_commas_between_them(tmp_path, named, expected):
    from bedl.cli.verbs.fit import targets_of
    from bedl.data import open_table

    (tmp_path / "t.csv").write_text('a,b,"x,y"\n1,2,3\n')
    assert targets_of(open_table(tmp_path / "t.csv"), named) == expected


def test_nothing_to_resume(shelf, tmp_path):
    said = run("fit", shelf / "houses.csv", "-t", "price", "--out", tmp_path / "m", "--resume", ok=False)
    assert "no interrupted fit" in said.stderr
    assert files(tmp_path) == []


def test_a_model_is_replaced_only_when_asked_and_nothing_else_ever(shelf, tmp_path):
    words = ["fit", shelf / "flowers.csv", "-t", "kind", "--epochs", 1, "--out", tmp_path / "m"]
    run(*words, ok=True)
    before = (tmp_path / "m" / "model.safetensors").read_bytes()
    assert "--overwrite" in run(*words, "--seed", 1, ok=False).stderr
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == before
    run(*words, "--seed", 1, "--overwrite", ok=True)
    assert (tmp_path / "m" / "model.safetensors").read_bytes() != before
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("x")
    said = run(*words[:-1], tmp_path / "photos", "--overwrite", ok=False)
    assert "holds no model" in said.stderr
    assert files(tmp_path / "photos") == ["cat.jpg"]
    assert files(tmp_path) == ["m", "photos"]


def test_rows_held_out_are_not_trained_on(tmp_path):
    x, y = np.arange(200, dtype=np.float32).reshape(100, 2), np.arange(100) % 3
    np.save(tmp_path / "features.npy", x)
    np.save(tmp_path / "targets.npy", y)
    split(x, y, 0.2, 0, True, tmp_path, {})
    kept, held = np.load(tmp_path / "features.npy"), np.load(tmp_path / "held_features.npy")
    assert len(held) == 20
    assert sorted(np.concatenate([kept, held])[:, 0]) == sorted(x[:, 0])
    assert (np.load(tmp_path / "held_targets.npy") == held[:, 0] // 2 % 3).all()
    assert (np.load(tmp_path / "targets.npy") == kept[:, 0] // 2 % 3).all()


def test_the_same_seed_gives_the_same_model(shelf, tmp_path):
    for name in "ab":
        run("fit", shelf / "flowers.csv", "-t", "kind", "--epochs", 1, "--out", tmp_path / name, ok=True)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_an_error_and_not_the_end_of_the_process():
    x = np.zeros((3000, 10), dtype=np.float32)
    with pytest.raises(OutputFileError, match="Free some room"):
        _write_rows(Path("/dev/full"), x, np.arange(3000), 100)
