"""What one step of 20 replicas costs, in steps of one net: UCI concrete, 1 × 50 ReLU, batch 32, PAC term."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bedl import BEDL, GaussianLinear, Normal
from bedl.methods import Batch
from bedl.training import adam
from bedl.training.engines.stacked import ReplicaBatches, StackedNetworks, VectorAdam, clipping, norms


def concrete(split: int) -> tuple[Tensor, Tensor]:
    """A standard split of UCI's concrete data, standardised. shapes: (927, 8), (927,)"""
    folder = Path(os.environ["BEDL_DATA"]) / "UCI_Datasets" / "concrete" / "data"
    table = np.loadtxt(folder / "data.txt")[np.loadtxt(folder / f"index_train_{split}.txt").astype(int)]
    table = torch.tensor((table - table.mean(0)) / table.std(0), dtype=torch.float32)
    features = np.loadtxt(folder / "index_features.txt").astype(int)
    return table[:, features], table[:, int(np.loadtxt(folder / "index_target.txt"))]


def paper_net(seed: int) -> BEDL:
    torch.manual_seed(seed)
    return BEDL(nn.Sequential(GaussianLinear(8, 50), nn.ReLU(), GaussianLinear(50, 2)), Normal(1))


def twenty_nets(sets: list[tuple[Tensor, Tensor]], compile: bool) -> Callable[[int], None]:
    stacked = StackedNetworks([paper_net(seed) for seed in range(20)], compile=compile)
    batches = ReplicaBatches(sets, list(range(20)), 10_000, 32, torch.device("cpu"))
    optimizer, rates = VectorAdam(stacked.parameters), [1e-3] * 20
    n_train = torch.tensor(batches.sizes, dtype=torch.float32)

    def step(number: int) -> None:
        rows = batches[number]
        loss, gradient = stacked.gradients(Batch(rows.x, rows.y, n_train, rows.weight))
        assert bool(loss.isfinite().all())
        optimizer.step(gradient, rates, clipping(norms(gradient).tolist(), 1.0))

    return step


def one_net(x: Tensor, y: Tensor) -> Callable[[int], None]:
    """By the plainest loop there is."""
    model = paper_net(0)
    optimizer = adam(1e-3)(model.parameters())
    batches = ReplicaBatches((x, y), [0], 10_000, 32, torch.device("cpu"))

    def step(number: int) -> None:
        index = torch.from_numpy(batches.numbers(number)[0])
        optimizer.zero_grad()
        loss = model.loss(Batch(x[index], y[index], len(x)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert bool(loss.detach().isfinite())
        optimizer.step()

    return step


def measure(blocks: int = 40) -> dict[str, float]:
    """Ratios to the plain loop over one net: interleaved blocks of five steps, medians, one thread."""
    torch.set_num_threads(1)
    sets = [concrete(split) for split in range(20)]
    runs = {"one": one_net(*sets[0]), "eager": twenty_nets(sets, False), "compiled": twenty_nets(sets, True)}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for block in range(-15, blocks):  # warm up through a whole epoch, for the short last batch is compiled by itself
        for name, run in runs.items():
            began = time.perf_counter()
            for step in range(5):
                run(5 * (block + 15) + step)
            if block >= 0:
                times[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {name: medians[name] / medians["one"] for name in ("eager", "compiled")}
