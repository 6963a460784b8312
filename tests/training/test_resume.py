"""Killed with SIGKILL at random steps and calls and taken up again, a run ends bit for bit like a whole one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bedl.training import CheckpointError, Constant, EarlyStopping, Warmup, adam, fit, read_history
from bedl.training import checkpoint as ck
from tests.training.problems import method, regression, vector
from tests.training.test_checkpoint import same

ROOT = Path(__file__).parents[2]

# The processes are forked, before torch has started any thread, from one that has done the importing.
SCRIPT = """
import os, random, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from bedl.training import Callback, Checkpoints, EarlyStopping, GradientOptions, fit
from tests.training.problems import method, regression

class KillAt(Callback):
    def __init__(self, step):
        self.step = step
    def on_step(self, run, row):
        if row["step"] == self.step:
            os.kill(os.getpid(), signal.SIGKILL)

def train(directory, step=None):
    model = method("perturbed", dropout=0.3)
    fit(model, regression(60), epochs=4, batch_size=8, validation=regression(20, seed=1),
        gradient=GradientOptions(accumulate=2), checkpoint=Checkpoints(directory, every_steps=3),
        callbacks=[KillAt(step), EarlyStopping(patience=100)], fabric={"accelerator": "cpu"})

def count_calls(limit):
    # every call, of Python and of C, is a moment at which to be killed: in a step, in a checkpoint, in the history
    calls = [0]
    def count(frame, event, argument):
        calls[0] += 1
        if calls[0] == limit:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.setprofile(count)
    return calls

def child(directory, step=None, call=None):
    pid = os.fork()
    if pid == 0:
        try:
            calls = count_calls(call) if step is None else [0]
            train(directory, step)
            sys.setprofile(None)
            (directory / "calls").write_text(str(calls[0]))
        except BaseException as error:
            print("error:", repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

root, rng = Path(sys.argv[1]), random.Random(0)
assert child(root / "whole") == 0
calls = int((root / "whole" / "calls").read_text())
# at random steps: 32 in all
for step in sorted(rng.sample(range(1, 32), 4)):
    assert child(root / "steps", step) == -signal.SIGKILL, step
assert child(root / "steps") == 0
# at random calls, so few that six together are less than the whole run
for _ in range(6):
    assert child(root / "moments", call=int(rng.uniform(0.02, 0.16) * calls)) == -signal.SIGKILL
assert child(root / "moments") == 0
"""


def test_killed_runs_end_like_whole_ones(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, env=env, cwd=ROOT, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    whole = ck.read(ck.path_of(tmp_path / "whole", 32))
    assert whole["position"]["epoch"] == 4
    for name in ("steps", "moments"):
        resumed = ck.read(ck.path_of(tmp_path / name, 32))
        assert same(resumed, whole), name
        assert read_history(tmp_path / name / "history.jsonl") == read_history(tmp_path / "whole" / "history.jsonl")


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    model = method()
    fit(model, regression(), epochs=2, checkpoint=tmp_path, fabric={"accelerator": "cpu"})
    again = method(seed=9)
    result = fit(again, regression(), epochs=2, checkpoint=tmp_path, fabric={"accelerator": "cpu"})
    assert torch.equal(vector(again), vector(model))
    assert (result.rows, result.steps) == ([], 4)


def test_a_longer_run_goes_on(tmp_path: Path) -> None:
    def run(epochs: int, directory: Path | None) -> torch.Tensor:
        model = method()
        fit(model, regression(), epochs=epochs, checkpoint=directory, schedule=Warmup(3), fabric={"accelerator": "cpu"})
        return vector(model)

    run(2, tmp_path)
    assert torch.equal(run(5, tmp_path), run(5, None))


def test_early_stopping_resumes_with_its_best(tmp_path: Path) -> None:
    data, held_out = regression(30), regression(30, seed=1)
    rule = EarlyStopping(patience=3)

    def run(epochs: int, directory: Path | None) -> torch.Tensor:
        model = method("none", hidden=30)
        fit(
            model,
            data,
            epochs=epochs,
            validation=held_out,
            checkpoint=directory,
            optimizer=adam(0.05),
            schedule=Constant(),
            callbacks=[rule],
            fabric={"accelerator": "cpu"},
        )
        return vector(model)

    run(4, tmp_path)
    assert torch.equal(run(60, tmp_path), run(60, None))
    with pytest.raises(CheckpointError, match="early_stopping"):
        fit(
            method("none", hidden=30),
            data,
            epochs=60,
            checkpoint=tmp_path,
            optimizer=adam(0.05),
            fabric={"accelerator": "cpu"},
        )


def test_a_run_that_was_stopped_early_is_not_gone_on_with(tmp_path: Path) -> None:
    data, held_out = regression(40), regression(20, seed=1)

    once, again = method(), method()
    first, second = (
        fit(
            model,
            data,
            epochs=200,
            validation=held_out,
            optimizer=adam(0.3),
            checkpoint=tmp_path,
            callbacks=[EarlyStopping(patience=1)],
            fabric={"accelerator": "cpu"},
        )
        for model in (once, again)
    )
    assert first.stopped_early
    assert second.stopped_early
    assert (second.rows, second.steps) == ([], first.steps)
    assert torch.equal(vector(once), vector(again))
