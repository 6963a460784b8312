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
    bedl.fit(net.factory(0), (x, y), epochs=1, batch_size=batch, accelerator="cpu", devices=devices,
             callbacks=[Clock()], compile=False)
"""


def _seconds(devices: int, batch: int, script: str) -> float:
    """Of one point."""
    command = [sys.executable, script, str(devices), str(batch)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(next(line.split()[1] for line in result.stdout.splitlines() if line.startswith("seconds"))) / batch


def measure(repeats: int = 3, batch: int = 100) -> dict[str, float]:
    """How many times the throughput two processes have."""
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "processes.py")
        with open(script, "w") as file:
            file.write(PROGRAM)
        os.environ["PYTHONPATH"] = os.getcwd() + os.pathsep + os.environ.get("PYTHONPATH", "")
        cases = ((1, batch), (2, 2 * batch), (2, batch))
        rounds = [[_seconds(*case, script) for case in cases] for _ in range(repeats)]
    return {
        f"{batch} points each": statistics.median(one / each for one, each, _ in rounds),
        f"{batch} points in all": statistics.median(one / shared for one, _, shared in rounds),
    }
