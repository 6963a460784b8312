"""Two processes with one thread each against one: points per second of `fit` on the CIFAR network."""

from __future__ import annotations

import statistics
import subprocess
import sys

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
    x, y = net.inputs(1000), torch.arange(1000) % net.classes
    bedl.fit(net.factory(0), (x, y), epochs=1, batch_size=100, accelerator="cpu", devices=int(sys.argv[1]),
             callbacks=[Clock()], compile=False)
"""


def _seconds(devices: int, script: str) -> float:
    result = subprocess.run([sys.executable, script, str(devices)], capture_output=True, text=True, check=True)
    return float(next(line.split()[1] for line in result.stdout.splitlines() if line.startswith("seconds")))


def measure(repeats: int = 3) -> float:
    """How many times the throughput two processes have; batch 100 over all of them."""
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "processes.py")
        with open(script, "w") as file:
            file.write(PROGRAM)
        os.environ["PYTHONPATH"] = os.getcwd() + os.pathsep + os.environ.get("PYTHONPATH", "")
        pairs = [(_seconds(1, script), _seconds(2, script)) for _ in range(repeats)]
    return statistics.median(one / two for one, two in pairs)
