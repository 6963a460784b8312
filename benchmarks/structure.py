"""What one variance per output costs in accuracy: LeNet-5 on digits, and 1 × 50 ReLU on UCI's concrete.

Differences of the structured network minus the full one, same seeds and data: mean and standard error.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

import bedl
from bedl.bench.util import mlp
from bedl.data import UCISplit, load_images, load_uci
from bedl.evaluation.metrics import auroc, nll_categorical
from bedl.objectives import PAC
from bedl.training import fit_replicas
from benchmarks.nets import NETS

__all__ = ["measure"]

Scores = dict[str, float]


def digits(train: bool, name: str = "mnist", count: int = 10_000) -> tuple[Tensor, Tensor]:
    images, labels, _ = load_images(name, train=train)
    x = torch.as_tensor(images[:count]).float().reshape(-1, 1, 28, 28) / 255
    return (x - 0.13) / 0.31, torch.as_tensor(labels[:count]).long()


def lenet(variances: str, seed: int, regularizer: PAC | None, epochs: int) -> Scores:
    """Trained on 10,000 digits; clothes are what it has never seen."""
    method = NETS["LeNet-5"].factory(seed, variances)
    method = bedl.BEDL(method.net, method.head, regularizer)
    bedl.fit(
        method, digits(True), epochs=epochs, batch_size=100, accelerator="cpu", compile=False, correct=False, seed=seed
    )
    (x, y), (foreign, _) = digits(False), digits(False, "fashion_mnist")
    with bedl.cached_weights(method):
        seen = torch.cat([method.predict(part).log_probabilities for part in x.split(500)])
        unseen = torch.cat([method.predict(part).log_probabilities for part in foreign.split(500)])
    entropy = [-(p.exp() * p).sum(-1).numpy() for p in (seen, unseen)]
    error = (seen.argmax(-1) != y).float().mean().item()
    return {"nll": nll_categorical(y.numpy(), seen.numpy()), "error": 100 * error, "auroc": auroc(*entropy)}


def concrete(variances: str, regularizer: PAC | None, epochs: int) -> Iterator[Scores]:
    """Of each of 20 splits, in standardised units."""
    splits = [cast(UCISplit, load_uci("concrete", split)) for split in range(20)]
    sets, tests = [], []
    for split in splits:
        x, y = (torch.as_tensor(t).float() for t in (split.x_train, split.y_train))
        loc, scale, centre, unit = x.mean(0), x.std(0), y.mean(), y.std()
        sets.append(((x - loc) / scale, (y - centre) / unit))
        x, y = (torch.as_tensor(t).float() for t in (split.x_test, split.y_test))
        tests.append(((x - loc) / scale, (y - centre) / unit))

    def make(seed: int) -> bedl.BEDL:
        torch.manual_seed(seed)
        net: nn.Module = bedl.bayesianize(mlp(), keep_means=False, variances=variances)
        return bedl.BEDL(net, bedl.Normal(1), regularizer)

    methods = [make(seed) for seed in range(20)]
    fit_replicas(methods, sets, epochs=epochs, batch_size=32, device="cpu")
    for method, (x, y) in zip(methods, tests, strict=True):
        prediction = method.predict(x)
        yield {"nll": -prediction.log_prob(y[:, None]).mean().item(),
               "rmse": (prediction.mean[:, 0] - y).square().mean().sqrt().item()}  # fmt: skip


def _compared(full: list[Scores], shared: list[Scores]) -> Scores:
    result: Scores = {}
    for name in full[0]:
        differences = [b[name] - a[name] for a, b in zip(full, shared, strict=True)]
        result[f"{name}, full"] = statistics.mean(row[name] for row in full)
        result[f"{name}, per output minus full"] = statistics.mean(differences)
        result[f"{name}, standard error"] = statistics.stdev(differences) / len(differences) ** 0.5
    return result


def measure(seeds: int = 3, epochs: int = 6) -> dict[str, Scores]:
    """Scores of the full network, and how they change; each is printed when it is known."""
    results: dict[str, Scores] = {}
    for name, term in (("without PAC term", None), ("with PAC term", PAC())):
        tables = [list(concrete(kind, term, 100)) for kind in ("full", "output")]
        results[f"concrete, {name}"] = _compared(*tables)
        print(f"concrete, {name}", results[f"concrete, {name}"], flush=True)
        images = [[lenet(kind, seed, term, epochs) for seed in range(seeds)] for kind in ("full", "output")]
        results[f"LeNet-5, {name}"] = _compared(*images)
        print(f"LeNet-5, {name}", results[f"LeNet-5, {name}"], flush=True)
    return results
