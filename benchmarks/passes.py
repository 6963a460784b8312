"""What prediction and a training step cost, in those of the deterministic network, uncompiled.

Prediction is the network and the head's probabilities, or mean and variance (`predict`), and, as *all*, with the whole
decomposition of uncertainty; weights are prepared once (`bedl.cached_weights`), as the estimators do. A training step
is forward, loss, backward and Adam; bedl's has the head, the marginal likelihood and the PAC term. Adam is what comes
by default: torch's for the deterministic network, fused for bedl (`bedl.training.adam`); that network is measured with
the fused one too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import bedl
from bedl.bench.util import medians, threads
from bedl.methods import Batch
from bedl.nn import GaussianLayer
from bedl.training import adam
from bedl.training.compile import Compiled
from benchmarks.nets import NETS, Net

__all__ = ["CASES", "measure"]

CASES = (("MLP 8-50-2", 32), ("LeNet-5", 100), ("LeNet-5", 1000), ("CIFAR net", 100), ("ResNet-18", 20))
SLOW_TO_COMPILE = ("ResNet-18",)  # minutes for each run: the ones that matter alone
Runs = dict[str, Callable[[], object]]


def targets(net: Net, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if net.classes:
        return torch.randint(net.classes, (count,), generator=generator)
    return torch.randn(count, generator=generator)


def plain_runs(net: Net, x: Tensor, y: Tensor, prefix: str, compile: bool, fused: bool | None = None) -> Runs:
    model = net.plain()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=fused)
    forward: Any = torch.compile(model, dynamic=False) if compile else model

    def predict() -> None:
        model.eval()
        with torch.no_grad():
            forward(x).softmax(-1)

    def step() -> None:
        model.train()
        optimizer.zero_grad()
        outputs = forward(x)
        loss = F.cross_entropy(outputs, y) if net.classes else F.gaussian_nll_loss(
            outputs[:, 0], y, F.softplus(outputs[:, 1]))  # fmt: skip
        loss.backward()
        optimizer.step()

    return {f"{prefix} predict": predict, f"{prefix} step": step}


def prepare(method: bedl.BEDL) -> None:
    """What `bedl.cached_weights` does, for good."""
    with torch.no_grad():
        for layer in method.modules():
            if isinstance(layer, GaussianLayer):
                layer.prepare()


def bedl_runs(net: Net, x: Tensor, y: Tensor, prefix: str, compile: bool, variances: str = "full") -> Runs:
    method, ready = net.factory(0, variances), net.factory(0, variances).eval()
    prepare(ready)
    optimizer = adam(1e-4)(method.parameters())
    head: Any = ready.head

    def probabilities(x: Tensor) -> object:
        outputs = ready.outputs(x)
        return head.log_probabilities(outputs) if net.classes else head(outputs)

    few: Any = torch.compile(probabilities, dynamic=False) if compile else probabilities
    everything: Any = torch.compile(ready, dynamic=False) if compile else ready
    loss: Any = Compiled(method.loss) if compile else method.loss

    def predict() -> None:
        with torch.no_grad():
            few(x)

    def predict_all() -> None:
        with torch.no_grad():
            everything(x)

    def step() -> None:
        method.train()
        optimizer.zero_grad()
        loss(Batch(x, y, 60_000)).backward()
        optimizer.step()

    return {f"{prefix} predict": predict, f"{prefix} predict, all": predict_all, f"{prefix} step": step}


def measure(case: tuple[str, int], repeats: int = 15, count: int = 1, compiled: bool = True) -> dict[str, float]:
    """Each run's cost over the uncompiled deterministic network's, for a (network, batch size).

    Args:
        repeats: of each run.
        count: of threads.
        compiled: whether to measure compiled runs too, which take minutes to compile.
    """
    name, batch = case
    net = NETS[name]
    torch._dynamo.reset()  # of one function only a few versions are compiled, the next run as they are
    x, y = net.inputs(batch, 0), targets(net, batch)
    runs = {**plain_runs(net, x, y, "plain", False), **bedl_runs(net, x, y, "bedl", False)}
    runs["plain, fused Adam: step"] = plain_runs(net, x, y, "plain", False, fused=True)["plain step"]
    if compiled:
        runs |= plain_runs(net, x, y, "plain compiled", True)
        runs |= bedl_runs(net, x, y, "bedl compiled", True)
    slow = name in SLOW_TO_COMPILE or not compiled
    shared = "one variance per output" if slow else "one variance per output, compiled"
    runs |= bedl_runs(net, x, y, shared, not slow, "output")
    if slow:
        runs.pop("bedl compiled predict, all", None)
    with threads(count):
        seconds = medians(runs, repeats)
    return {
        run: value / seconds["plain step" if run.endswith("step") else "plain predict"]
        for run, value in seconds.items()
    }
