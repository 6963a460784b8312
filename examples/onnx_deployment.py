"""Deploy: the whole model as one ONNX file, and predictions from it in a process without PyTorch."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

import bedl
from bedl import BEDLRegressor

QUICK = "--quick" in sys.argv

# What runs on the other machine: NumPy, onnxruntime and the file. `bedl.deploy.OnnxModel` is a more
# convenient reader (names, checks, batches) that needs no PyTorch either.
SERVE = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
values = session.run(names, {"x": numpy.load(sys.argv[2])})
numpy.savez(sys.argv[3], **dict(zip(names, values)))
print("torch" in sys.modules, "bedl" in sys.modules)
"""

X, y = load_diabetes(return_X_y=True, as_frame=True)
model = BEDLRegressor(epochs=5 if QUICK else 40, random_state=0).fit(X, y)

with tempfile.TemporaryDirectory() as folder:
    file, rows, results = (str(Path(folder) / name) for name in ("model.onnx", "rows.npy", "results.npz"))
    print(bedl.export(model, file))  # scaling, network, head and units; compared with PyTorch while at it
    np.save(rows, X[:100].to_numpy(np.float32))
    done = subprocess.run(
        [sys.executable, "-c", SERVE, file, rows, results], capture_output=True, text=True, check=True
    )
    print(f"torch, bedl imported on the other side: {done.stdout.strip()}")
    with np.load(results) as outputs:
        print("outputs:", ", ".join(outputs))
        served = {name: outputs[name][:, 0] for name in outputs}

mean, std = model.predict(X[:100], return_std=True)
print(f"largest difference of means, in standard deviations: {(abs(served['mean'] - mean) / std).max():.1e}")
print(f"largest relative difference of standard deviations: {(abs(served['std'] / std - 1)).max():.1e}")
