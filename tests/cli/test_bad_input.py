"""Bad input through the command line: exit code 1, a line or two that say what to do, and nothing is changed."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from bedl.estimators.tabular.folder import checksum_of
from tests.cli.tables import FLOWERS, HOUSES, csv
from tests.cli.verbs import run

TEN = range(10)
# name: (content, further words, what the message has to say)
TABLES: dict[str, tuple[str | bytes, list[str], str]] = {
    "empty file": ("", [], "is empty"),
    "header only": ("x,y\n", [], "no rows"),
    "one row": ("x,y\n1,2\n", [], "at least two"),
    "constant target": (csv("x,y", [[i, 7] for i in TEN]), [], "nothing to predict"),
    "constant class": (csv("x,y", [[i, "a"] for i in TEN]), [], "nothing to predict"),
    "only an all-missing column": (csv("x,y", [["", i] for i in TEN]), [], "no values and was left out"),
    "infinite value": (csv("x,y", [[i, i] for i in TEN] + [["inf", 3]]), [], "infinite"),
    "infinite target": (csv("x,y", [[i, i] for i in TEN] + [[1, "inf"]]), [], "infinite"),
    "no such target": (csv("x,prices", [[i, i] for i in TEN]), ["--target", "price"], "Did you mean 'prices'?"),
    "text target": (csv("x,y", [[i, "ab"[i % 2]] for i in TEN]), ["--task", "regression"], "--task classification"),
    "missing target": (csv("x,y", [[i, i] for i in TEN] + [[1, ""]]), [], "--drop-missing-target"),
    "1,001 classes": (csv("x,y", [[i, f"c{i // 2}"] for i in range(2002)]), [], "more than 1000 classes"),
    "duplicate names": (csv("x,x,y", [[i, i, i] for i in TEN]), [], "several columns called 'x'"),
    "mixed types": (csv("x,y", [[i, i] for i in range(50)] + [["many", 3]]), [], "--categorical x"),
    "not UTF-8": ("größe,y\n1,2\n3,4\n".encode("latin-1"), [], "UTF-8"),
    "not UTF-8 inside": ("x,y\ngroß,2\nb,4\n".encode("latin-1"), [], "UTF-8"),
    "a giant line": ("x,y\n1,2\n" + "9" * (20 << 20) + ",1\n", [], "longer than"),
    "a short row": ("x,y\n1,2\n3\n", [], "row 2"),
    "a binary file": (b"PK\x03\x04" + bytes(100), [], "no text table"),
    "an ignored column that is not there": (csv("x,y", [[i, i] for i in TEN]), ["--ignore", "z"], "'z'"),
}


def tree(folder) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(folder, *words: object) -> str:
    """Runs what has to fail cleanly; the message."""
    before = tree(folder)
    result = run(*words)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    message = result.stderr.strip()
    assert message.startswith("Error: "), message
    assert message.count("\n") <= 1, message
    assert tree(folder) == before
    return message


@pytest.mark.parametrize("case", TABLES)
def test_fit_refuses(tmp_path, case):
    content, words, expected = TABLES[case]
    (tmp_path / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    words = words if "--target" in words else ["--target", "y", *words]
    assert expected in refused(tmp_path, "fit", tmp_path / "t.csv", *words, "--out", tmp_path / "m")
    assert os.listdir(tmp_path) == ["t.csv"]


def test_an_all_missing_column_among_others_is_left_out_and_said(tmp_path):
    (tmp_path / "t.csv").write_text(csv("x,z,y", [[i, "", i % 7 + i / 3] for i in range(30)]))
    said = run("fit", tmp_path / "t.csv", "-t", "y", "--epochs", 1, "--out", tmp_path / "m", ok=True)
    assert "'z' has no values and was left out" in said.stderr


LINES = HOUSES.splitlines()
# name: (table, further words, message, words that make it work or None)
ROWS: dict[str, tuple[list[str], str, list[str] | None]] = {
    "an unseen category": (
        [LINES[0], "50,violet,2021-01-01,3,a,1"],
        "--handle-unknown warn",
        ["--handle-unknown", "ignore"],
    ),
    "a missing column": (["area,colour,sold", "50,red,2021-01-01"], "lacks 'age'", None),
    "an extra column": ([LINES[0] + ",new", LINES[1] + ",1"], "--extra ignore", ["--extra", "ignore"]),
    "text for a number": ([LINES[0], "many,red,2021-01-01,3,a,1"], "a number is expected", None),
    "an infinite number": ([LINES[0], "inf,red,2021-01-01,3,a,1"], "infinite", None),
    "no date": ([LINES[0], "50,red,yesterday,3,a,1"], "sold", None),
    "a header only": ([LINES[0]], "no rows", None),
    "columns twice": ([LINES[0] + ",area", LINES[1] + ",1"], "several columns called 'area'", None),
}


@pytest.mark.parametrize(
    "case, kind",
    [
        pytest.param(case, kind, marks=[pytest.mark.slow] if (case, kind) == ("an unseen category", "onnx") else [])
        for case in ROWS
        for kind in ("folder", "onnx")
    ],
)
def test_predict_refuses(tmp_path, request, kind, case):
    model = request.getfixturevalue("houses" if kind == "folder" else "houses_onnx")
    lines, expected, remedy = ROWS[case]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    words = ["predict", model, tmp_path / "t.csv", "--out", tmp_path / "p.csv"]
    assert expected in refused(tmp_path, *words, "--handle-unknown", "error")
    assert os.listdir(tmp_path) == ["t.csv"]
    if remedy is not None:
        run(*words, *remedy, ok=True)
        assert len((tmp_path / "p.csv").read_text().splitlines()) == 2


def test_an_error_in_a_later_batch_leaves_no_file(tmp_path, houses, monkeypatch):
    monkeypatch.setattr("bedl.estimators.tabular.predict.NUMBERS", 100)
    (tmp_path / "t.csv").write_text("\n".join([*LINES, "50,violet,2021-01-01,3,a,1"]) + "\n")
    words = ["predict", houses, tmp_path / "t.csv", "--out", tmp_path / "p.csv"]
    assert "row 121" in refused(tmp_path, *words, "--handle-unknown", "error")


def edited(folder, **changes):
    """Another card, with the checksum that it should have."""
    card = json.loads((folder / "model.json").read_text()) | changes
    card.pop("sha256")
    (folder / "model.json").write_text(json.dumps({**card, "sha256": checksum_of(card)}))


def newer(folder):
    edited(folder, schema=99)


def newer_encoder(folder):
    card = json.loads((folder / "model.json").read_text())
    edited(folder, encoder={**card["encoder"], "version": 99})


def edited_by_hand(folder):
    text = (folder / "model.json").read_text()
    (folder / "model.json").write_text(text.replace('"mean": ', '"mean": 1', 1))


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def other_weights(folder):
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)


def cut_card(folder):
    text = (folder / "model.json").read_text()
    (folder / "model.json").write_text(text[: len(text) // 2])


def foreign_card(folder):
    (folder / "model.json").write_text('["something else"]')


def card_without_encoder(folder):
    edited(folder, encoder=3)


def has_missing_as_a_number(folder):
    card = json.loads((folder / "model.json").read_text())
    columns = [column | {"has_missing": 30_000_000} for column in card["encoder"]["columns"]]
    edited(folder, encoder={**card["encoder"], "columns": columns})


def an_image_of_nothing(folder):
    card = json.loads((folder / "model.json").read_text())
    edited(folder, encoder={**card["encoder"], "image_shape": [500_000_000, 500]})


def classes_as_numbers(folder):
    card = json.loads((folder / "model.json").read_text())
    edited(folder, encoder={**card["encoder"], "target": {**card["encoder"]["target"], "several": 3}})


def notes_as_a_number(folder):
    edited(folder, notes=3)


def no_card(folder):
    (folder / "model.json").unlink()


DAMAGE = {
    newer: "newer bedl", newer_encoder: "newer bedl", no_weights: "missing or not the file",
    other_weights: "missing or not the file", cut_card: "damaged", foreign_card: "does not describe a model",
    card_without_encoder: "damaged", no_card: "no model", edited_by_hand: "checksum",
    has_missing_as_a_number: "damaged", an_image_of_nothing: "damaged", classes_as_numbers: "damaged",
    notes_as_a_number: "damaged",
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("verb", ["predict", "evaluate", "report"])
def test_damaged_model_folders(tmp_path, houses, shelf, damage, verb):
    shutil.copytree(houses, tmp_path / "m")
    damage(tmp_path / "m")
    more = ["--out", tmp_path / "page.html"] if verb == "report" else []
    assert DAMAGE[damage] in refused(tmp_path, verb, tmp_path / "m", shelf / "houses.csv", *more)


MODELS = {
    "a text file": ("notes.txt", b"hello", "is no model"),
    "a table": ("t.csv", b"x,y\n1,2\n", "is no model"),
    "text called .onnx": ("m.onnx", b"hello", "no ONNX model"),
    "an empty .onnx": ("m.onnx", b"", "m.onnx"),
}


@pytest.mark.parametrize("case", MODELS)
def test_what_is_no_model(tmp_path, shelf, case):
    name, content, expected = MODELS[case]
    (tmp_path / name).write_bytes(content)
    assert expected in refused(tmp_path, "predict", tmp_path / name, shelf / "houses.csv")


def test_there_is_no_model(tmp_path, shelf):
    assert "there is no model" in refused(tmp_path, "predict", tmp_path / "m", shelf / "houses.csv")


def test_outputs_that_exist_or_cannot_be_written(tmp_path, shelf, houses):
    table, taken = shelf / "houses.csv", tmp_path / "taken.csv"
    taken.write_text("precious")
    page = tmp_path / "taken.html"
    page.write_text("precious")
    (tmp_path / "taken.onnx").write_text("precious")
    nowhere = tmp_path / "no" / "where"
    fit = ["fit", table, "-t", "price"]
    assert "--overwrite" in refused(tmp_path, "predict", houses, table, "--out", taken)
    assert "no folder" in refused(tmp_path, "predict", houses, table, "--out", nowhere / "p.csv")
    assert "Let the name end in" in refused(tmp_path, "predict", houses, table, "--out", tmp_path / "p.xyz")
    assert "--overwrite" in refused(tmp_path, "report", houses, table, "--out", page)
    assert "does not exist" in refused(tmp_path, "report", houses, table, "--out", nowhere / "p.html")
    assert "--overwrite" in refused(tmp_path, "export", houses, "--onnx", tmp_path / "taken.onnx")
    assert "is a file" in refused(tmp_path, *fit, "--out", taken)
    assert "mkdir -p" in refused(tmp_path, *fit, "--out", nowhere / "m")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path, shelf):
    tmp_path.chmod(0o500)
    try:
        said = run("fit", shelf / "houses.csv", "-t", "price", "--out", tmp_path / "m")
        assert said.exit_code == 1
        assert "cannot be written" in said.stderr
    finally:
        tmp_path.chmod(0o700)


def test_classes_that_training_did_not_see_cannot_be_scored(tmp_path, flowers):
    (tmp_path / "t.csv").write_text(FLOWERS + "1,1,orchid\n")
    assert "none of the classes" in refused(tmp_path, "evaluate", flowers, tmp_path / "t.csv")


def test_no_target_to_compare_with(tmp_path, flowers):
    (tmp_path / "t.csv").write_text("length,width\n1,1\n")
    assert "lacks the target 'kind'" in refused(tmp_path, "evaluate", flowers, tmp_path / "t.csv")


def test_control_characters_from_a_file_do_not_reach_the_terminal(tmp_path):
    (tmp_path / "t.csv").write_text("x\x1b[2J,y\n" + "".join(f"{i},{i}\n" for i in TEN))
    message = refused(tmp_path, "fit", tmp_path / "t.csv", "-t", "z", "--out", tmp_path / "m")
    assert "\x1b" not in message
