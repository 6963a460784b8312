"""Accuracy and entropy against the strength of an attack on the images: the comparison that EDL is known for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bedl._utils.io import Row
from bedl.bench.benchmark import Cell, Choice, Column, Root, RunResult, Table
from bedl.bench.images import PAPER, Images, fitted, load, network_setup, settings_of
from bedl.evaluation import metrics

STRENGTHS = {"mnist": tuple(i / 10 for i in range(11)), "cifar-1-5": tuple(i / 40 for i in range(9))}
SHOWN = {"mnist": (0.1, 0.3), "cifar-1-5": (0.05, 0.1)}
ATTACKED = 1000  # of the test images, the first
CONFIDENT = 0.9


class Adversarial(Table):
    """The networks of `ood`, and the fast gradient sign method (I. Goodfellow et al., ICLR 2015)."""

    name = "adversarial"
    title = "Under attack"
    about = (
        "Each pixel of a test image is moved by the strength of the attack, from 0 to 1, in the direction in which its "
        "own class becomes less probable. Weak is 0.1 on MNIST and 0.05 on CIFAR, strong 0.3 and 0.1. A network that "
        "is wrong should have a high entropy; sure and wrong is a wrong class with a probability above 0.9."
    )
    datasets = tuple(STRENGTHS)
    methods = {"paper": PAPER, "authors": ("bedl", "bedl+reg"), "best": ("auto", "edl", "deterministic", "bedl+reg")}  # noqa: RUF012
    more = ("ensemble", "mc-dropout", "prior-network", "r-edl", "laplace", "sngp", "fast-dropout", "dvi", "varout",
            "bedl", "bedl-hyper")  # fmt: skip
    columns = (
        Column("accuracy_clean", "accuracy", "higher", share=True),
        *(
            Column(f"{metric}_{how}", f"{label}, {how}", better, share=True, places=1)  # type: ignore[arg-type]
            for how in ("weak", "strong")
            for metric, label, better in (
                ("accuracy", "accuracy", "higher"),
                ("entropy", "entropy / log C", "higher"),
                ("sure_and_wrong", "sure and wrong", "lower"),
            )
        ),
    )
    across = "metrics"

    def check(self, choice: Choice, root: Root = None) -> None:
        from bedl.data.datasets.builtin import load_images

        wanted = self.datasets if choice.datasets is None else choice.datasets
        for name in wanted:
            load_images("mnist" if name == "mnist" else "cifar10", train=False, root=root)  # raises, with what to do

    def work(self, cell: Cell, root: Root = None) -> RunResult:
        return run(cell, load(cell.dataset, root))

    def sections(self, rows: Sequence[Row]) -> Sequence[str]:
        from bedl.bench.page import strength_card

        return [
            strength_card(f"{row['dataset']}: {row['method']} ({row['preset']})", row["curves"])
            for row in rows
            if row["split"] == 0 and row["seed"] == 0
        ]


def run(cell: Cell, images: Images) -> RunResult:
    """Learn, then attack test images, once."""
    from bedl.bench.util import cifar_net, lenet5

    plan = network_setup(cell.preset, cell.method, cell.dataset)
    model = fitted(cell, images, plan, lenet5 if cell.dataset == "mnist" else cifar_net)
    x, y = images.x_test[:ATTACKED], images.y_test[:ATTACKED]
    direction, strengths = np.sign(attacked(model, x, y)), STRENGTHS[cell.dataset]
    scores = [_scores(model, np.clip(x + strength * direction, 0, 1), y, images.classes) for strength in strengths]
    found = {"accuracy_clean": scores[0]["accuracy"]}
    for how, strength in zip(("weak", "strong"), SHOWN[cell.dataset], strict=True):
        found |= {f"{name}_{how}": value for name, value in scores[strengths.index(strength)].items()}
    curves = {name: [round(one[name], 5) for one in scores] for name in scores[0]}
    settings = {**settings_of(plan, model, images), "attacked_images": len(y)}
    return RunResult(found, settings, {"strength": list(strengths), **curves})


def attacked(model: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The gradient of −log p(y) by the images, of what a classifier predicts.

    Args:
        model: a fitted `BEDLClassifier` whose labels are 0, 1, …
        x: shape (n, channels, height, width)
        y: shape (n,)

    Returns:
        shape: (n, channels, height, width)
    """
    import torch

    method, parts = model.method_.eval(), []
    for some in np.array_split(np.arange(len(x)), max(1, len(x) // 100)):
        images = torch.as_tensor(x[some], dtype=getattr(torch, model.dtype_)).requires_grad_()
        prediction = method(images)
        if model.temperatures_ is not None:
            prediction = prediction.tempered(*model.temperatures_)
        (gradient,) = torch.autograd.grad(-prediction.log_prob(torch.as_tensor(y[some])).sum(), images)
        parts.append(gradient.numpy())
    return np.concatenate(parts)


def _scores(model: Any, x: np.ndarray, y: np.ndarray, classes: int) -> dict[str, float]:
    prediction = model.predict_dist(x)
    p = prediction.probabilities.numpy()
    wrong = p.argmax(1) != y
    return {
        "accuracy": metrics.accuracy(y, p),
        "entropy": float(prediction.entropy.mean()) / math.log(classes),
        "sure_and_wrong": float(np.mean(wrong & (p.max(1) > CONFIDENT))),
    }


TABLE = Adversarial()
