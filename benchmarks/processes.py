"""Two processes with one thread each against one: points per second of `fit` on the CIFAR network."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

__all__ = ["measure"]

# In a process of its own, because threads and process groups are settings of a whole process.
PROGRAM = """
import os, sys, time
os.environ["OMP_NUM_THREADS"] = "1"
import torch
torch.set_num_threads(1)
import bedl
from bedl.training import Callback
from benchmarks.nets import NETS


class Clock(Callback):
    def on_start(self, run):
        torch.set_num_threads(1)

    def on_step(self, run, row):
        if row["step"] == 2:
            self.began = time.perf_counter()
        self.ended = time.perf_counter()

    def on_end(self, run):
        print("seconds", (self.ended - self.began) / (run.step - 2), flush=True)


if __name__ == "__main__":
    net = NETS["CIFAR net"]
    devices, batch = int(sys.argv[1]), int(sys.argv[2])
    x, y = net.inputs(10 * batch), torch.arange(10 * batch) % net.classes
    bedl.fit(net.factory(0), (x, y), epochs=1, batch_size=batch, accelerator="cpu", correct=False, devices=devices,
             callbacks=[Clock()], compile=False)
"""


def _start(devices: int, batch: int, script: str) -> subprocess.Popen[str]:
    command = [sys.executable, script, str(devices), str(batch)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _seconds(process: subprocess.Popen[str], batch: int) -> float:
    """Of one point."""
    out, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(errors)
    return float(next(line.split()[1] for line in out.splitlines() if line.startswith("seconds"))) / batch


def measure(repeats: int = 3, batch: int = 100) -> dict[str, float]:
    """How many times the throughput of one process two have; and two that train apart, all that the machine gives."""
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "processes.py")
        with open(script, "w") as file:
            file.write(PROGRAM)
        os.environ["PYTHONPATH"] = os.getcwd() + os.pathsep + os.environ.get("PYTHONPATH", "")
        ratios: dict[str, list[float]] = {}
        for _ in range(repeats):
            one = _seconds(_start(1, batch, script), batch)
            each = _seconds(_start(2, 2 * batch, script), 2 * batch)
            shared = _seconds(_start(2, batch, script), batch)
            pair = [_start(1, batch, script) for _ in range(2)]
            apart = statistics.mean(_seconds(process, batch) for process in pair) / 2
            for name, seconds in (("each", each), ("in all", shared), ("each, apart", apart)):
                ratios.setdefault(f"{batch} points {name}", []).append(one / seconds)
    return {name: statistics.median(values) for name, values in ratios.items()}
