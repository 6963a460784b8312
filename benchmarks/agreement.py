"""onnxruntime against eager PyTorch: the largest difference over 10,000 points, for every network of the benchmarks."""

from __future__ import annotations

import os
import tempfile

import torch
from torch import Tensor

import bedl
from bedl.deploy.runtime import OnnxModel
from benchmarks.nets import NETS
from benchmarks.structure import digits

__all__ = ["measure", "trained_lenet"]


def difference(method: bedl.BEDL, x: Tensor, points: Tensor) -> dict[str, float]:
    """Of each output, the largest absolute one. points: shape (n, *input)"""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        bedl.export(method, path, example=x)
        model = OnnxModel(path)
        largest: dict[str, float] = {}
        with bedl.cached_weights(method):
            for part in points.split(250):
                expected = method.predict(part).outputs()
                for name, values in model.predict(part.numpy()).items():
                    worst = float((expected[name] - torch.as_tensor(values)).abs().max())
                    largest[name] = max(worst, largest.get(name, 0.0))
    return largest


def trained_lenet() -> bedl.BEDL:
    """An epoch of digits, without the PAC term: confident where it may be."""
    method = NETS["LeNet-5"].factory(0)
    method = bedl.BEDL(method.net, method.head, None)
    bedl.fit(method, digits(True), epochs=1, batch_size=100, accelerator="cpu", compile=False, correct=False)
    return method


def measure(count: int = 10_000) -> dict[str, dict[str, float]]:
    """The largest differences of each network's outputs."""
    results = {}
    if "BEDL_DATA" in os.environ:
        images, _ = digits(False)
        results["LeNet-5, trained on digits"] = difference(trained_lenet(), images[:8], images[:count])
    for name, net in NETS.items():
        results[name] = difference(net.factory(0), net.inputs(8, 1), net.inputs(count))
        print(name, results[name], flush=True)
    return results
