"""Where the time of a compiled training step goes, in shares of it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bedl.bench.util import threads
from benchmarks.nets import NETS
from benchmarks.passes import bedl_runs, targets

__all__ = ["measure"]

# By words in the names of operations and of compiled kernels, which list what was fused into them; the first that fits.
KINDS = {
    "products": ("convolution", "addmm", "::mm", "::bmm"),
    "optimiser": ("fused_adam", "Optimizer", "foreach"),
    "head": ("erf", "lgamma", "softmax", "bedl::log_survival_and_density"),
    "activations, and preparing weights": ("cpp_fused", "bedl::relu_moments"),
}


def kind_of(name: str) -> str:
    is_kernel = "cpp_fused" in name
    for kind, words in KINDS.items():
        if kind == "products" and is_kernel:
            continue  # fused kernels are named after the products that they follow
        if any(word in name for word in words):
            return kind
    return "the rest"


def measure(name: str, batch: int, steps: int = 10) -> dict[str, float]:
    """Shares of a step's time, adding up to 1."""
    import torch._inductor.config as config

    torch._dynamo.reset()
    net = NETS[name]
    x, y = net.inputs(batch, 0), targets(net, batch)
    settings: Any = config.patch({"cpp.enable_kernel_profile": True, "cpp.descriptive_names": "original_aten"})
    with threads(1), settings:
        step = bedl_runs(net, x, y, "bedl", True)["bedl step"]
        for _ in range(3):
            step()
        with profile(activities=[ProfilerActivity.CPU]) as trace:
            for _ in range(steps):
                step()
    shares: defaultdict[str, float] = defaultdict(float)
    for event in trace.key_averages():
        shares[kind_of(event.key)] += event.self_cpu_time_total
    total = sum(shares.values())
    return {kind: shares[kind] / total for kind in sorted(shares, key=shares.__getitem__, reverse=True)}
