"""Networks as graphs: what exported ones cost in onnxruntime, and what it takes to compile one."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import onnxruntime
import torch
from sklearn.datasets import make_friedman1

from bedl import BEDLRegressor
from bedl.bench.util import cpu_of, cpu_of_each
from bedl.deploy import OnnxModel, export
from benchmarks.nets import NETS

__all__ = ["compiled", "onnx"]


def onnx(repeats: int) -> dict[str, float]:
    """One row of a table, and LeNet-5 with all that is said of its uncertainty over the plain network; one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        table, plain, ours = (Path(folder, f"{name}.onnx") for name in ("table", "plain", "lenet"))
        X, y = (part.astype("float32") for part in make_friedman1(300, 10, random_state=0))
        model = BEDLRegressor(method="bedl", epochs=2, random_state=0).fit(X, y)
        export(model, table)
        net, x = NETS["LeNet-5"], NETS["LeNet-5"].inputs(100)
        export(net.factory().eval(), ours, example=x)
        torch.onnx.export(net.plain().eval(), (x,), plain, dynamo=True, verbose=False)
        sessions = {path: onnxruntime.InferenceSession(path, options) for path in (table, plain, ours)}
        row = cpu_of_each(lambda value: sessions[table].run(None, {"x": value}), X[:1], 2000)
        checked = cpu_of_each(OnnxModel(table, threads=1).predict, X[:1], 2000)
        seconds: dict[Path, list[float]] = {plain: [], ours: []}
        for _ in range(repeats):
            for path, times in seconds.items():
                session, name = sessions[path], sessions[path].get_inputs()[0].name
                times.append(cpu_of(lambda session=session, name=name: session.run(None, {name: x.numpy()})))  # type: ignore
    return {
        "one row, one layer of 50: CPU milliseconds": row,
        "the same by OnnxModel, which checks it": checked,
        "LeNet-5, batch 100, all / plain": statistics.median(seconds[ours]) / statistics.median(seconds[plain]),
    }


def compiled() -> dict[str, float]:
    """CPU seconds until a compiled U-Net has taken its first step, in a process of its own without a cache."""
    with tempfile.TemporaryDirectory() as cache:
        run = subprocess.run(
            [sys.executable, "-m", "benchmarks.unet"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
        )
    own, children = map(float, run.stdout.split()[-2:])
    return {"Python": own, "the C++ compiler, several at a time": children}
