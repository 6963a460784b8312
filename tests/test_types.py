"""A user's script is checked strictly: types say what calls give."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
SCRIPT = """
import torch
from torch import nn

import bedl


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(torch.relu(self.hidden(x)))
        return y


net: Net = bedl.bayesianize(Net())
method = bedl.BEDL(net, bedl.Dirichlet(3), bedl.PAC(strength=0.1))
x, y = torch.randn(64, 4), torch.randint(3, (64,))
steps: int = bedl.fit(method, (x, y), epochs=2, lr=0.01, validation=(x, y)).steps
loss: torch.Tensor = method.loss(x, y, n_train=64)
prediction = method.predict(x, batch_size=16)
label: torch.Tensor = prediction.label
entropy: torch.Tensor = prediction.probabilities.log().sum(-1) + prediction.epistemic
lower, upper = bedl.BEDL(bedl.GaussianLinear(4, 2), bedl.Normal(1)).predict(x).interval(0.9)
shifted: bedl.Moments = 2 * (bedl.Moments(x, 1.0) + bedl.Moments(x, 0.5)) - 1
with bedl.sampled(method) as drawn:
    draw: torch.Tensor = drawn.predict(x).mean
members = bedl.Ensemble.of(3, lambda: bedl.BEDL(bedl.GaussianLinear(4, 2), bedl.Normal(1)))
mean: torch.Tensor = members.predict(x).mean
"""


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
@pytest.mark.parametrize(
    ("line", "error"),
    [("", None), ("prediction.interval(0.9)", "interval"), ("shifted.loc.variance", "variance")],
    ids=["right", "classes have no intervals", "a mean has no variance"],
)
def test_a_script_of_a_user_is_typed(checker: str, line: str, error: str | None, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{SCRIPT}{line}\n")
    if checker == "mypy":
        pytest.importorskip("mypy")
        command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", str(script)]
    elif (pyright := shutil.which("pyright")) is not None:
        settings = {"typeCheckingMode": "strict", "extraPaths": [str(SRC)]}
        (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
        command = [pyright, "--project", str(tmp_path), "--pythonpath", sys.executable]
    else:
        pytest.skip("npm install --global pyright")
    env = {**os.environ, "MYPYPATH": str(SRC)}
    done = subprocess.run(command, cwd=SRC.parent, env=env, capture_output=True, text=True, timeout=300)
    found = [text for text in done.stdout.splitlines() if "script.py:" in text]
    assert (not found and done.returncode == 0) if error is None else (found and all(error in f for f in found)), done
