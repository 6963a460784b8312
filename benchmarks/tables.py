"""What a table costs: fits, predictions of one row, imports; in CPU seconds, as small work is mostly waiting otherwise.

Peers run in turn with bedl, in the same process. What is started from a shell is a process of its own.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, make_friedman1
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from torch import nn

from bedl import BEDL, BEDLClassifier, BEDLRegressor, GaussianLinear, Normal
from bedl.bench.util import cpu_of, cpu_of_each, threads
from bedl.training import fit_replicas
from benchmarks import graphs

__all__ = ["measure"]

Runs = dict[str, Callable[[], object]]
SPLITS, MEMBERS = 20, 5  # of a protocol for UCI's tables


def measure(repeats: int = 3) -> dict[str, Any]:
    """Sections of rows; CPU seconds unless a row says otherwise."""
    with threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-learn, about convergence
        return {
            "2,000 rows × 10, one layer of 50, 10 epochs of batches of 32": _over_first(_steps(), repeats),
            "breast cancer, five members over one": _members(repeats),
            "500 rows × 10, as it comes: CPU seconds": _cpu_seconds(_default_fits(), repeats),
            "500 rows × 10, three classes, as it comes: CPU seconds": _cpu_seconds(_default_classes(), repeats),
            "from a shell: CPU seconds": _from_a_shell(repeats),
            "one row predicted: CPU milliseconds": _one_row(),
            "in onnxruntime": graphs.onnx(3 * repeats),
            "fit(compile=True) of a small U-Net, until the first step: CPU seconds": graphs.compiled(),
            "20 splits × 5 members, 1,030 rows × 8, 200 epochs: CPU seconds": {"fit_replicas": cpu_of(_protocol)},
        }


def _cpu_seconds(runs: Runs, repeats: int) -> dict[str, float]:
    """Medians; the runs take turns."""
    times = [{name: cpu_of(run) for name, run in runs.items()} for _ in range(repeats)]
    return {name: statistics.median(row[name] for row in times) for name in runs}


def _over_first(runs: Runs, repeats: int) -> dict[str, float]:
    seconds = _cpu_seconds(runs, repeats)
    first = next(iter(seconds))
    ratios = {f"{name} / {first}": value / seconds[first] for name, value in seconds.items() if name != first}
    return {f"{first}, CPU seconds": seconds[first], **ratios}


def _friedman(rows: int, columns: int = 10) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_friedman1(rows, columns, noise=1.0, random_state=0)
    return X.astype(np.float32), y.astype(np.float32)


def _plain_loop(X: np.ndarray, y: np.ndarray) -> None:
    """What one would write by hand: no validation, no checks, no bookkeeping."""
    net = nn.Sequential(nn.Linear(X.shape[1], 50), nn.ReLU(), nn.Linear(50, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    x, targets = torch.from_numpy(X), torch.from_numpy(y)[:, None]
    for _ in range(10):
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x[rows]), targets[rows]).backward()
            optimizer.step()


def _steps() -> Runs:
    X, y = _friedman(2000)
    how: dict[str, Any] = {
        "hidden_layers": (50,), "epochs": 10, "batch_size": 32, "early_stopping": False, "random_state": 0,
        "method": "bedl",
    }  # fmt: skip
    plain = {"hidden_layer_sizes": (50,), "batch_size": 32, "max_iter": 10, "n_iter_no_change": 10}
    return {
        "MLPRegressor": lambda: MLPRegressor(**plain).fit(X, y),
        "a loop in PyTorch": lambda: _plain_loop(X, y),
        "bedl": lambda: BEDLRegressor(**how).fit(X, y),
        "bedl, five members": lambda: BEDLRegressor(ensemble=5, **how).fit(X, y),
    }


def _members(repeats: int) -> dict[str, float]:
    X, y = load_breast_cancer(return_X_y=True)
    X = X.astype(np.float32)
    ways: dict[str, dict[str, Any]] = {
        "8 epochs": {"epochs": 8, "early_stopping": False},
        "until they stop early": {"early_stopping": True},
    }
    results = {}
    for name, how in ways.items():
        runs: Runs = {
            str(count): lambda count=count, how=how: BEDLClassifier(  # type: ignore[misc]
                method="bedl", ensemble=count, random_state=0, **how
            ).fit(X, y)
            for count in (1, 5)
        }
        seconds = _cpu_seconds(runs, repeats if name == "8 epochs" else 1)
        results[name] = seconds["5"] / seconds["1"]
        results[f"{name}, five, CPU seconds"] = seconds["5"]
    return results


def _default_fits() -> Runs:
    X, y = _friedman(500)
    runs: Runs = {
        "BEDLRegressor()": lambda: BEDLRegressor(random_state=0).fit(X, y),
        "MLPRegressor()": lambda: MLPRegressor(random_state=0).fit(X, y),
        "HistGradientBoostingRegressor()": lambda: HistGradientBoostingRegressor(random_state=0).fit(X, y),
    }
    if importlib.util.find_spec("ngboost") is not None:
        from ngboost import NGBRegressor

        runs["NGBRegressor()"] = lambda: NGBRegressor(verbose=False, random_state=0).fit(X, y)
    return runs


def _default_classes() -> Runs:
    X, y = _friedman(500)
    labels = np.digitize(y, np.quantile(y, (1 / 3, 2 / 3)))
    return {
        "BEDLClassifier()": lambda: BEDLClassifier(random_state=0).fit(X, labels),
        "MLPClassifier()": lambda: MLPClassifier(random_state=0).fit(X, labels),
        "HistGradientBoostingClassifier()": lambda: HistGradientBoostingClassifier(random_state=0).fit(X, labels),
    }


def _from_a_shell(repeats: int) -> dict[str, float]:
    data = "import numpy as np; g = np.random.default_rng(0); X = g.normal(size=(500, 10)); y = np.sin(X).sum(1)"
    programs = {
        "import torch": "import torch",
        "from bedl import BEDLRegressor": "from bedl import BEDLRegressor",
        "a default fit of 500 rows × 10": f"{data}; from bedl import BEDLRegressor; BEDLRegressor().fit(X, y)",
    }
    found = {
        name: statistics.median(_process(f"import time; {code}; print(time.process_time())") for _ in range(repeats))
        for name, code in programs.items()
    }
    return found | _verbs(repeats)


def _verbs(repeats: int) -> dict[str, float]:
    """What the command line takes, on a table of 500 rows."""
    first_step = (
        "import os, sys, time; from bedl.training.engines.stacked import ReplicaRun; "
        "ReplicaRun._advance = lambda run: "
        "(print('CPU', time.process_time(), file=sys.stderr, flush=True), os._exit(0)); "
    )
    at_the_end = (
        "import atexit, sys, time; atexit.register(lambda: print('CPU', time.process_time(), file=sys.stderr)); "
    )
    with tempfile.TemporaryDirectory() as folder:
        table, few, model = (f"{folder}/{name}" for name in ("table.csv", "few.csv", "model"))
        X, y = _friedman(500)
        for path, rows in ((table, 500), (few, 10)):
            names = ",".join([*(f"x{i}" for i in range(10)), "y"])
            np.savetxt(path, np.c_[X, y][:rows], delimiter=",", header=names, comments="")
        fit, predict = ["fit", table, "--target", "y", "--out", model, "--overwrite"], ["predict", model, few]
        runs = {
            "bedl fit, until the first step": (first_step, fit),
            "bedl fit, all of it": (at_the_end, fit),
            "bedl predict, 10 rows": (at_the_end, [*predict, "--out", f"{folder}/out.csv", "--overwrite"]),
        }
        return {
            name: statistics.median(_verb(code, words) for _ in range(repeats))
            for name, (code, words) in runs.items()
        }  # fmt: skip


def _verb(code: str, words: list[str]) -> float:
    program = f"import sys; sys.argv = {['bedl', *words]!r}; {code}from bedl.cli import main; main()"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    lines = [line for line in run.stderr.splitlines() if line.startswith("CPU ")]
    if not lines:
        raise RuntimeError(run.stderr)
    return float(lines[-1].split()[1])


def _process(code: str) -> float:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(run.stdout)


def _one_row() -> dict[str, float]:
    X, y = _friedman(300)
    results = {}
    for name, how in {"one layer of 50": {"method": "bedl"}, "as it comes": {}}.items():
        model = BEDLRegressor(epochs=2, random_state=0, **how).fit(X, y)
        results[f"{name}: predict"] = cpu_of_each(model.predict, X[:1])
        results[f"{name}: method_.predict"] = cpu_of_each(model.method_.predict, torch.from_numpy(X[:1]))
    return results


def _protocol() -> None:
    """As many networks as a protocol of splits and members has, as one."""
    X, y = _friedman(1030, 8)
    parts = [np.random.default_rng(split).permutation(len(X))[:927] for split in range(SPLITS)]
    nets = [nn.Sequential(GaussianLinear(8, 50), nn.ReLU(), GaussianLinear(50, 2)) for _ in range(SPLITS * MEMBERS)]
    sets = [(X[part], (y[part] - y.mean()) / y.std()) for part in parts for _ in range(MEMBERS)]
    fit_replicas([BEDL(net, Normal()) for net in nets], sets, epochs=200, lr=0.01)
