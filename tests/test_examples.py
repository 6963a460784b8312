"""The scripts in examples/ run, and show what they say they show."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

FOLDER = Path(__file__).parents[1] / "examples"
NUMBER = r"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)"

# Script, what stands before a number of its output, between what the number lies: in the small run and in the full one.
SHOWN: list[tuple[str, str, tuple[float, float], tuple[float, float]]] = [
    ("tabular_regression", "coverage of 90% intervals: ", (0.7, 1), (0.82, 0.98)),
    ("tabular_regression", "^rmse: ", (50, 80), (50, 62)),
    ("bench", "^cells run: ", (12, 12), (30, 30)),
    ("bench", "^and again: ", (0, 0), (0, 0)),
    ("many_files", "^and after a stop: ", (1, 1), (1, 1)),
    ("many_files", "in standard deviations: ", (0, 1e-4), (0, 1e-4)),
    ("tables", "coverage of 90% intervals: ", (0.75, 1), (0.85, 0.96)),
    ("tables", ", r2: ", (0.85, 1), (0.95, 1)),
    ("out_of_domain", "default: accuracy ", (0.8, 1), (0.95, 1)),
    ("out_of_domain", "auroc, unseen digits: total ", (0.75, 1), (0.9, 1)),
    ("out_of_domain", "auroc, turned: total ", (0.4, 1), (0.95, 1)),
    ("out_of_domain", "auroc, negatives: total ", (0.6, 1), (0.97, 1)),
    ("out_of_domain", "auroc, shuffled pixels: total ", (0.5, 1), (0.93, 1)),
    ("own_network", "operations without a rule: ", (0, 0), (0, 0)),
    ("own_network", "accuracy: ", (0.6, 1), (0.92, 1)),
    ("message_passing", "accuracy, nodes with edges: ", (0.4, 1), (0.55, 1)),
    ("message_passing", "mean entropy, nodes with edges: ", (0.2, 1.2), (0.1, 0.6)),
    ("message_passing", "mean entropy, nodes without: ", (0.2, 1.3), (0.6, 1.3)),
    ("geometric", "accuracy: ", (0.4, 1), (0.85, 1)),
    ("geometric", "mean entropy where it is right: ", (0, 0.7), (0, 0.3)),
    ("geometric", "mean entropy where it is wrong: ", (0, 0.7), (0.3, 0.7)),
    ("warm_start", "accuracy, converted: ", (0.94, 1), (0.94, 1)),
    ("warm_start", "accuracy, from fresh weights: ", (0.1, 0.94), (0.1, 0.94)),
    ("noisy_inputs", "nll, told the noise: ", (-1, 0.6), (-1, 0.2)),
    ("noisy_inputs", "good sensors: mean std ", (0, 0.35), (0, 0.2)),
    ("noisy_inputs", "nll, not told: ", (0.1, 1.5), (0.3, 1)),
    ("decomposition", "correlation of the aleatoric std with the noise: ", (0.8, 1), (0.9, 1)),
    ("decomposition", "epistemic std in the gap over that on the data: ", (0.5, 100), (5, 50)),
    ("active_learning", "gain of epistemic over random at the end: ", (-0.5, 0.5), (-0.1, 0.1)),
    ("onnx_deployment", "largest relative difference of standard deviations: ", (0, 1e-4), (0, 1e-4)),
    ("variance_correction", "std over the drawn one, before: ", (0.3, 0.85), (0.3, 0.85)),
    ("variance_correction", "std over the drawn one, after: ", (0.9, 1.1), (0.9, 1.1)),
    ("segmentation", "accuracy of pixels: ", (0.6, 1), (0.9, 1)),
    ("segmentation", "epistemic there, stripes over scenes: ", (0.5, 6), (1.15, 6)),
    ("text", "accuracy, one tone: ", (0.8, 1), (0.97, 1)),
    ("text", "mean entropy, one tone: ", (0, 0.6), (0, 0.3)),
    ("text", "mean entropy, two tones: ", (0.35, 1), (0.5, 1)),
    ("lightning_module", "accuracy: ", (0.8, 1), (0.9, 1)),
    ("other_libraries", "^best of 10 points: ", (0.39, 60), (0.39, 60)),
    ("reinforcement", "bedl: last return ", (-200, 0), (-200, 0)),
    ("reinforcement", "ensemble: last return ", (-200, 0), (-200, 0)),
    ("serving", "after 3,000 usual rows: ", (0, 0.7), (0, 0.7)),
    ("serving", "after 3,000 far larger rows: ", (0.7, 1), (0.7, 1)),
    ("conformal", "conformal with bedl's std: coverage ", (0.87, 0.93), (0.87, 0.93)),
]
# What is deprecated in PyTorch and used by a library that an example imports is no matter of the example's.
WARNINGS = ("-W", "error", "-W", "ignore:`torch.jit.script` is deprecated:DeprecationWarning")
SCRIPTS = sorted({name for name, *_ in SHOWN})
EXPORTS_FOLDS = ("many_files",)  # whose guide runs the same code on a smaller model


def test_every_script_is_tested() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_short(name: str) -> None:
    lines = re.sub(r'""".*?"""', "", (FOLDER / f"{name}.py").read_text("utf-8"), flags=re.DOTALL).splitlines()
    assert sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines) < 60


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in EXPORTS_FOLDS else []) for name in SCRIPTS]
)
def test_a_small_run(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # in this process, since importing PyTorch and scikit-learn takes longer than the run; warnings are errors here
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--quick"])
    try:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    except SystemExit as end:  # where what it needs is missing, it says so and ends well
        if end.code != 0:
            raise
    check(name, capsys.readouterr().out, full=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_full_run(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *WARNINGS, str(FOLDER / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    check(name, done.stdout, full=True)
    assert not list(tmp_path.iterdir())  # nothing is left behind


def check(name: str, output: str, full: bool) -> None:
    if output.startswith("skipped: "):
        pytest.skip(output)
    for script, label, small, large in SHOWN:
        if script == name:
            low, high = large if full else small
            found = re.search(label + NUMBER, output, re.MULTILINE)
            assert found, f"{label!r} is not in\n{output}"
            assert low <= float(found[1]) <= high, output
