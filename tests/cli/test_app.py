"""What all verbs share, and the small ones: help, exit codes, export, check, data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import bedl
from tests.cli.verbs import run, spawn
from tests.data.server import serve

VERBS = ["fit", "predict", "evaluate", "report", "export", "methods", "check", "data list", "data fetch", "data verify"]


def test_version():
    assert run("--version", ok=True).stdout == f"bedl {bedl.__version__}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_examples(verb):
    text = run(*verb.split(), "--help", ok=True).stdout
    assert "Examples:" in text
    assert f"bedl {verb}" in text.split("Examples:")[1]


@pytest.mark.parametrize(
    "words", [["fly"], ["fit"], ["fit", "iris", "--epochs", "0"], ["fit", "iris", "--hidden", "a"], ["predict", "m"],
              ["fit", "iris", "--holdout", "2"], ["check", "no-colon"], ["export", "m", "--onnx", "m.txt"],
              ["check", "a:b", "--input", "3,x"]],
)  # fmt: skip
def test_wrong_usage_is_exit_code_2(words):
    result = run(*words)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_a_table_without_a_target_column_lists_what_there_is(shelf):
    result = run("fit", shelf / "houses.csv")
    assert result.exit_code == 2
    assert "'area'" in result.stderr


def test_debug_shows_the_traceback(tmp_path):
    quiet, loud = (run("fit", tmp_path / "no.csv", "-t", "y", *more) for more in ([], ["--debug"]))
    assert quiet.exit_code == loud.exit_code == 1
    assert isinstance(quiet.exception, SystemExit)
    assert isinstance(loud.exception, FileNotFoundError)


def test_shell_completion():
    # what --install-completion writes; it would first look which shell it was started from
    process = subprocess.run(
        [sys.executable, "-c", "from bedl.cli import main; main()"],
        capture_output=True, text=True, env={**os.environ, "_BEDL_COMPLETE": "source_bash"},
    )  # fmt: skip
    assert "complete" in process.stdout
    assert "_BEDL_COMPLETE" in process.stdout


def test_starting_imports_little():
    program = "import sys; from bedl.cli.app import app; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "pyarrow", "sklearn", "pandas", "onnxruntime"} & set(loaded)


def test_without_typer_there_is_a_hint():
    code = "import sys; sys.modules['typer'] = None; from bedl.cli import main; main()"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stderr == ("Error: the command line needs typer and rich: pip install 'bedl[cli]'\n")


IMPORTS_ARE_STOPPED = """
import signal, sys, os

class Stop:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))

from bedl.cli import main
sys.meta_path.insert(0, Stop())
main()
"""


@pytest.mark.parametrize("name, code", [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_stop_right_at_the_beginning(name, code):
    process = subprocess.run(
        [sys.executable, "-c", IMPORTS_ARE_STOPPED, name], capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stderr) == (code, "Stopped.\n")


STOPPED_AT_THE_END = """
import os, signal, sys
sys.argv[1:], name = ["--version"], sys.argv[1]
from bedl.cli import main

class Last:  # goes when Python has put its signals away already
    def __del__(self):
        os.kill(os.getpid(), getattr(signal, name))

last = Last()
main()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stop_when_all_is_done(name):
    process = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_THE_END, name], capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stderr) == (0, "")


def test_a_fit_that_is_terminated_before_it_has_begun_leaves_nothing(shelf, tmp_path, monkeypatch):
    from bedl.cli import Stopped
    from bedl.estimators.tabular import fitting as fits

    def stop(path, content):
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(fits, "write_json", stop)
    said = run("fit", shelf / "flowers.csv", "-t", "kind", "--out", tmp_path / "m")
    assert said.exit_code == 143
    assert "Stopped." in said.stderr
    assert "--resume" not in said.stderr
    assert os.listdir(tmp_path) == []


def test_a_fit_that_is_terminated_can_be_resumed(shelf, tmp_path, monkeypatch):
    from bedl.cli import Stopped
    from bedl.cli.progress import TrainingBar

    def stop(self, run, row):
        raise Stopped(signal.SIGTERM)

    words = ["fit", shelf / "flowers.csv", "-t", "kind", "--epochs", 2, "--out", tmp_path / "m"]
    with monkeypatch.context() as patch:
        patch.setattr(TrainingBar, "on_epoch", stop)
        said = run(*words)
    assert said.exit_code == 143
    assert "--resume" in said.stderr
    assert os.listdir(tmp_path) == ["m.partial"]
    run(*words, "--resume", ok=True)


def test_a_stop_that_a_library_swallows_is_still_one(monkeypatch):
    from bedl import cli

    monkeypatch.setattr(cli, "_asked", [signal.SIGTERM])
    said = run("fit", "no.csv", "-t", "y")  # what fails now may do so for that
    assert (said.exit_code, said.stderr) == (143, "Stopped.\n")


@pytest.mark.slow
@pytest.mark.parametrize("name, code", [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_real_interrupt(tmp_path, name, code):
    words = ["fit", "digits:train", "--epochs", "500", "--out", tmp_path / "m"]
    process = spawn(*words)
    deadline = time.monotonic() + 90
    while not list((tmp_path / "m.partial").glob("checkpoints/*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(getattr(signal, name))
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert list((tmp_path / "m.partial").glob("checkpoints/*.safetensors"))


# -- methods ----------------------------------------------------------------------------------------
def test_methods_are_listed_with_a_line_each():
    from bedl.methods import registry

    lines = run("methods", ok=True).stdout.splitlines()
    assert [line.split()[0] for line in lines] == registry.names()
    rows = json.loads(run("methods", "--json", ok=True).stdout)["methods"]
    assert rows[0]["name"] == "auto"
    assert all(row["summary"] for row in rows)


def test_a_method_by_name(shelf, tmp_path):
    from bedl.estimators import load

    words = ["fit", shelf / "flowers.csv", "-t", "kind", "--epochs", 1, "--out", tmp_path / "m"]
    said = run(*words, "--method", "bedl-hypr", ok=False)
    assert said.exit_code == 1
    assert "did you mean 'bedl-hyper'" in said.stderr
    assert list(tmp_path.iterdir()) == []
    run(*words, "--method", "bedl-hyper", ok=True)
    assert load(tmp_path / "m" / "model.safetensors").method == "bedl-hyper"
    assert json.loads((tmp_path / "m" / "model.json").read_text())["settings"]["method"] == "bedl-hyper"


# -- export -------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_export_says_what_a_lower_precision_costs(houses, tmp_path):
    words = ["export", houses, "--onnx", tmp_path / "m.onnx", "--precision", "int8"]
    document = json.loads(run(*words, "--json", ok=True).stdout)
    assert document["precision"] == "int8"
    assert document["points"] >= 100
    assert 0 < document["loss"]["mean_in_stds"] < 1
    assert "already" in run("export", tmp_path / "m.onnx", "--onnx", tmp_path / "n.onnx", ok=False).stderr


# -- check --------------------------------------------------------------------------------------------
NETWORK = """
from torch import nn

good = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())

def bad():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanhshrink())

class Fails(nn.Module):
    def __init__(self):
        raise RuntimeError("no luck")

number = 3
"""


@pytest.fixture
def network(tmp_path, monkeypatch):
    (tmp_path / "some_network.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "some_network.py"
    sys.modules.pop("some_network", None)


def test_check(network):
    said = run("check", f"{network}:good", "--input", "1,3,32,32", ok=True)
    assert "every one has a rule" in said.stdout
    assert "conv2d" in said.stdout
    result = run("check", "some_network:bad", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert not document["ok"]
    assert document["verdict"] == "wrong"
    assert [o["supported"] for o in document["operations"]] == [True, False]


@pytest.mark.parametrize(
    "name, expected",
    [("some_network:nothing", "no 'nothing'"), ("some_network:number", "not a torch.nn.Module"),
     ("some_network:Fails", "no luck"), ("no_such_module:x", "no module 'no_such_module'"), ("gone.py:x", "no file")],
)  # fmt: skip
def test_check_refuses(network, name, expected):
    said = run("check", name, ok=False)
    assert said.exit_code == 1
    assert expected in said.stderr


# -- data ---------------------------------------------------------------------------------------------
def test_data_list_and_verify(tmp_path):
    document = json.loads(run("data", "list", "--root", tmp_path, "--json", ok=True).stdout)
    assert "digits" in document["bundled"]
    assert {entry["name"]: entry["present"] for entry in document["downloads"]}["mnist"] is False
    result = run("data", "verify", "mnist", "--root", tmp_path)
    assert result.exit_code == 1
    assert "missing" in result.stdout


def test_data_fetch_refuses_what_is_not_the_published_file(tmp_path):
    names = ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
             "t10k-labels-idx1-ubyte.gz"]  # fmt: skip
    with serve(dict.fromkeys(names, b"something else")) as server:
        said = run("data", "fetch", "mnist", "--root", tmp_path, "--base-url", server.url, ok=False)
    assert said.exit_code == 1
    assert "SHA-256" in said.stderr
    assert not (tmp_path / "MNIST").exists()


def test_data_fetch_of_an_unknown_name(tmp_path):
    assert "mnist" in run("data", "fetch", "nonsense", "--root", tmp_path, ok=False).stderr
