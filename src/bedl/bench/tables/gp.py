"""A thin convolutional net with weights of its own at each point, against Gaussian processes of wide nets."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from bedl.bench.benchmark import Cell, Choice, Column, Published, Root, RunResult, Table
from bedl.bench.images import Images, class_scores, fitted, load, network_setup, settings_of
from bedl.bench.presets import SAME, Setup, figures
from bedl.bench.regression import seed_of

SOME, SCORED = 1000, 1000  # images that processes learn from, and test images that all are scored on there
SUBSETS = {"mnist-1000": "mnist", "cifar10-1000": "cifar10"}
EXACT = ("nngp", "convnet-gp", "residual-cnn-gp", "resnet-gp")  # solve for all rows at once
PROCESSES = (*EXACT, "conv-gp")
NETS = ("bedl", "bedl+reg")
EPOCHS_OF_SOME, EPOCHS_OF_ALL = 50, 20  # of networks, under "paper"
NOT_THEIRS = "the authors' public code has no such network: its settings, with the epochs of the text"
FEWER = f"{EPOCHS_OF_ALL} epochs of all images, not {EPOCHS_OF_SOME}"


class GP(Table):
    """Two convolutions with 96 filters 5×5 and stride 2; the processes as their own papers have them."""

    name = "gp"
    title = "Against Gaussian processes of wide networks"
    about = (
        f"Kernels of convolutional nets take hours on whole sets: all learn from the first {SOME} training images and "
        f"are scored on the first {SCORED} test images in mnist-1000 and cifar10-1000. Networks, and the process with "
        "inducing patches, also learn from all images. The published figures are of whole sets. On colour images the "
        "default is told that pictures may be mirrored: rows name all settings."
    )
    datasets = (*SUBSETS, "mnist", "cifar10")
    methods = {"paper": (*NETS, *PROCESSES), "authors": NETS, "best": ("auto", *NETS, *PROCESSES)}  # noqa: RUF012
    more = ("edl", "mc-dropout", "deterministic", "ensemble")
    columns = (
        Column("error", "test error", "lower", share=True),
        Column("nll", "NLL", "lower", places=3),
        Column("ece", "ECE", "lower", share=True),
    )
    across = "metrics"

    def cells(self, choice: Choice | None = None) -> Iterator[Cell]:
        return (cell for cell in super().cells(choice) if cell.dataset in SUBSETS or cell.method not in EXACT)

    def check(self, choice: Choice, root: Root = None) -> None:
        from bedl.data.datasets.builtin import load_images

        wanted = self.datasets if choice.datasets is None else choice.datasets
        for name in sorted({SUBSETS.get(dataset, dataset) for dataset in wanted}):
            load_images(name, train=False, root=root)  # raises, with the way to get it

    def work(self, cell: Cell, root: Root = None) -> RunResult:
        images = load(SUBSETS.get(cell.dataset, cell.dataset), root)
        if cell.dataset in SUBSETS:
            cut = (images.x[:SOME], images.y[:SOME], images.x_test[:SCORED], images.y_test[:SCORED])
            images = Images(*cut, classes=images.classes)
        return run(cell, images)

    def published(self) -> Sequence[Published]:
        found = []
        for label, numbers in figures()["gp_comparison_test_error"].items():
            if label != "columns":
                pairs = zip(("mnist", "cifar10"), numbers, strict=True)
                values: dict[str, tuple[float, float | None]] = {
                    name: (value / 100, None) for name, value in pairs if value is not None
                }
                found.append(Published(label, "error", values, SAME.get(label), "the paper"))
        return found


def run(cell: Cell, images: Images) -> RunResult:
    """Learn from the images, then score the test part, once."""
    if cell.method in PROCESSES:
        plan = Setup({"method": cell.method}, _DEVIATIONS.get(cell.method, ()) if cell.preset == "paper" else ())
        model, scored = _process(cell, images, plan)
    else:
        from bedl.bench.util import two_layers

        whole = cell.dataset not in SUBSETS
        epochs = EPOCHS_OF_ALL if whole else EPOCHS_OF_SOME
        plan = network_setup(cell.preset, cell.method, cell.dataset, epochs, wide=whole)
        if cell.preset == "paper":  # which states how long these are trained
            plan = dataclasses.replace(plan, deviations=(*((FEWER,) if whole else ()), *plan.deviations[1:]))
        if cell.preset == "authors":
            plan = dataclasses.replace(plan, deviations=(NOT_THEIRS, *((FEWER,) if whole else ()), *plan.deviations))
        channels, side = images.x.shape[1], images.x.shape[-1]
        model = fitted(cell, images, plan, functools.partial(two_layers, side, channels), family="gp")
        scored = images.x_test
    return RunResult(class_scores(model.predict_dist(scored), images.y_test), settings_of(plan, model, images))


_DEVIATIONS = {
    "nngp": ("variances of weights and biases of the authors' own example, in place of a search",),
    "conv-gp": ("100 inducing patches, not 750", "1,000 steps"),
}


def _process(cell: Cell, images: Images, plan: Setup) -> tuple[Any, Any]:
    """Processes take pixels as columns."""
    from bedl.estimators import BEDLClassifier

    model = BEDLClassifier(
        **plan.estimator, image_shape=images.x.shape[1:], device="cpu", random_state=seed_of(cell)
    )  # fmt: skip
    return model.fit(images.x.reshape(len(images.x), -1), images.y), images.x_test.reshape(len(images.x_test), -1)


TABLE = GP()
