"""How many functions of bedl, in how many files, a warm call passes: `python -m tools.walk`, `-v` names them.

Lambdas and comprehensions do not count. docs/design.md keeps the figures.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch

import bedl

SOURCE = str(Path(bedl.__file__).parent)


def walk(call: Callable[[], Any]) -> set[CodeType]:
    """The functions that a call passes; it is made once before, so that nothing is imported or compiled any more."""
    call()
    seen: set[CodeType] = set()

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and not code.co_name.startswith("<"):
            seen.add(code)

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


def calls() -> dict[str, Callable[[], Any]]:
    """What is counted."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    y = X[:, 0] + 0.1 * rng.normal(size=200)
    x, images = torch.as_tensor(X, dtype=torch.float32), torch.zeros(64, 1, 8, 8)
    model = bedl.BEDLRegressor(random_state=0).fit(X, y)
    single = bedl.BEDLRegressor(method="bedl", random_state=0).fit(X, y)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3))
    method = bedl.BEDL(bedl.bayesianize(net), bedl.Dirichlet(3))
    line = bedl.BEDL(bedl.GaussianLinear(5, 2), bedl.Normal(1))
    folder = Path(tempfile.mkdtemp())
    return {
        "BEDLRegressor().fit(X, y)": lambda: bedl.BEDLRegressor(random_state=0).fit(X, y),
        "BEDLRegressor(method='bedl').fit(X, y)": lambda: bedl.BEDLRegressor(method="bedl", random_state=0).fit(X, y),
        "predict_dist of 3 rows": lambda: model.predict_dist(X[:3]),
        "predict_dist of 3 rows, one network": lambda: single.predict_dist(X[:3]),
        "bedl.fit of an MLP": lambda: bedl.fit(line, (x, x[:, 0]), epochs=1, compile=False),
        "bedl.fit of a CNN": lambda: bedl.fit(method, (images, torch.zeros(64).long()), epochs=1, compile=False),
        "predict of a CNN": lambda: method.predict(images),
        "tabular.fit of iris": lambda: bedl.tabular.fit("iris", out=folder / "model", overwrite=True),
    }


def main() -> None:
    """Print a line per call."""
    warnings.simplefilter("ignore")
    print("| call | functions | files |\n| --- | --- | --- |")
    for name, call in calls().items():
        seen = walk(call)
        print(f"| `{name}` | {len(seen)} | {len({code.co_filename for code in seen})} |", flush=True)
        if "-v" in sys.argv:
            for code in sorted(seen, key=lambda code: (code.co_filename, code.co_firstlineno)):
                print(f"    {code.co_filename[len(SOURCE) + 1 :]}:{code.co_firstlineno} {code.co_name}")


if __name__ == "__main__":
    main()
