"""What a prediction with uncertainty costs elsewhere: LeNet-5, in forward passes of the deterministic network.

Each peer is optional; one that cannot be imported is left out with a message.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bedl.bench.util import lenet5, medians, threads
from benchmarks.passes import bedl_runs, plain_runs, targets

__all__ = ["PEERS", "measure"]

SAMPLES = 20
Predict = Callable[[], object]


def sampled(model: Callable[[Tensor], Tensor], x: Tensor) -> Predict:
    def predict() -> None:
        with torch.no_grad():
            torch.stack([model(x).softmax(-1) for _ in range(SAMPLES)]).mean(0)

    return predict


def mc_dropout(x: Tensor) -> Predict:
    layers: list[nn.Module] = []
    for layer in lenet5():  # type: ignore[attr-defined]
        layers += [layer, nn.Dropout(0.1)] if isinstance(layer, nn.ReLU) else [layer]
    return sampled(nn.Sequential(*layers).train(), x)


def bayesian_torch(x: Tensor) -> Predict:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn

    model = lenet5()
    dnn_to_bnn(model, {
        "prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0,
        "type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5,
    })  # fmt: skip
    return sampled(model, x)


def torch_uncertainty(x: Tensor) -> Predict:
    from torch_uncertainty.layers.bayesian import BayesConv2d, BayesLinear

    return sampled(nn.Sequential(
        BayesConv2d(1, 20, 5, stride=2), nn.ReLU(), BayesConv2d(20, 50, 5, stride=2), nn.ReLU(),
        nn.Flatten(), BayesLinear(800, 500), nn.ReLU(), BayesLinear(500, 10),
    ), x)  # fmt: skip


def laplace_torch(x: Tensor) -> Predict:
    from laplace import Laplace

    model = lenet5()
    laplace: Any = Laplace(model, "classification", subset_of_weights="last_layer", hessian_structure="kron")
    laplace.fit(DataLoader(TensorDataset(x, torch.arange(len(x)) % 10), batch_size=50))
    return lambda: laplace(x, link_approx="probit")


def torch_adf(x: Tensor) -> Predict:
    from torchadf import nn as adf

    model = adf.Sequential(
        adf.Conv2d(1, 20, 5, stride=2), adf.ReLU(), adf.Conv2d(20, 50, 5, stride=2), adf.ReLU(),
        adf.Flatten(), adf.Linear(800, 500), adf.ReLU(), adf.Linear(500, 10),
    )  # fmt: skip
    variance = torch.full_like(x, 1e-3)

    def predict() -> None:
        with torch.no_grad():
            model(x, variance)

    return predict


def suq(x: Tensor) -> Predict:

    raise ImportError("it has no convolutions")


def pytagi(x: Tensor) -> Predict:
    from pytagi.nn import Conv2d, Linear, MixtureReLU, Sequential

    model = Sequential(
        Conv2d(1, 20, 5, stride=2, in_width=28, in_height=28), MixtureReLU(), Conv2d(20, 50, 5, stride=2),
        MixtureReLU(), Linear(800, 500), MixtureReLU(), Linear(500, 10),
    )  # fmt: skip
    flat = x.numpy().ravel()
    return lambda: model(flat)


PEERS: dict[str, tuple[str, Callable[[Tensor], Predict]]] = {
    "MC Dropout": (f"{SAMPLES} samples", mc_dropout),
    "bayesian-torch": (f"reparameterised, {SAMPLES} samples", bayesian_torch),
    "torch-uncertainty": (f"variational, {SAMPLES} samples", torch_uncertainty),
    "laplace-torch": ("last layer only, probit link", laplace_torch),
    "torch-adf": ("moments of the input alone, no head", torch_adf),
    "suq": ("moments, post hoc", suq),
    "pytagi": ("moments, own engine", pytagi),
}


def measure(batch: int = 100, repeats: int = 15) -> dict[str, float]:
    """Cost of a prediction over that of the plain network, for bedl and every peer that is there."""
    from benchmarks.nets import NETS

    net = NETS["LeNet-5"]
    x, y = net.inputs(batch, 0), targets(net, batch)
    runs = {**plain_runs(net, x, y, "plain", False)}
    for compile in (False, True):
        name = f"bedl{', compiled' if compile else ''}"
        ours = bedl_runs(net, x, y, name, compile)
        runs |= {f"{name}: probabilities": ours[f"{name} predict"], f"{name}: all": ours[f"{name} predict, all"]}
    for name, (what, make) in PEERS.items():
        try:
            predict = make(copy.deepcopy(x))
            predict()
        except Exception as error:  # whatever keeps a peer from running is said, and the others go on
            print(f"benchmarks: {name} is left out: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        runs[f"{name} ({what})"] = predict
    del runs["plain step"]
    with threads(1):
        seconds = medians(runs, repeats)
    return {name: value / seconds["plain predict"] for name, value in seconds.items()}
