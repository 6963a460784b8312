"""Images of classes, and images of none of them: the paper's table of test errors and of entropies out of domain."""

from __future__ import annotations

from collections.abc import Sequence

from bedl._utils.io import Row
from bedl.bench.benchmark import Cell, Choice, Column, Published, Root, RunResult, Table
from bedl.bench.images import (
    PAPER,
    Images,
    class_scores,
    detection_scores,
    entropy_curve,
    fitted,
    load,
    network_setup,
    settings_of,
)
from bedl.bench.presets import SAME, figures

OUT_OF_DOMAIN = {"mnist": "fashion", "cifar-1-5": "cifar-6-10"}  # the paper's
FURTHER = ("cifar-grey", "turned", "inverted", "noise", "latin", "greek", "strokes", "digits")


class OOD(Table):
    """LeNet-5 with strides for MNIST, a wider one for the first five classes of CIFAR-10."""

    name = "ood"
    title = "OOD detection on images"
    about = (
        "OOD images are Fashion-MNIST for MNIST and the last five classes for CIFAR-10's first five. ECDF-AUC is the "
        "area under the distribution function of the entropies: low on OOD images is good only where it is high in "
        "domain. AUROC is by the entropy unless stated otherwise; further OOD sets are scored by the epistemic "
        "component. On CIFAR the default uses mirrored images and 10 epochs: rows name all settings."
    )
    datasets = tuple(OUT_OF_DOMAIN)
    methods = {"paper": PAPER, "authors": ("bedl", "bedl+reg"), "best": ("auto", "edl", "deterministic", "bedl+reg")}  # noqa: RUF012
    more = (
        "ensemble", "mc-dropout", "prior-network", "r-edl", "laplace", "sngp", "fast-dropout", "dvi", "varout",
        "bedl", "bedl-hyper",
    )  # fmt: skip
    columns = (
        Column("error", "test error", "lower", share=True),
        Column("ecdf_auc", "ECDF-AUC, OOD", "lower", places=3),
        Column("ecdf_auc_known", "ECDF-AUC, in-domain", "higher", places=3),
        Column("nll", "NLL", "lower", places=4),
        Column("ece", "ECE", "lower", share=True),
        Column("brier", "Brier", "lower", places=4),
        Column("auroc_total", "AUROC", "higher", places=4),
        Column("auroc_epistemic", "by epistemic", "higher", places=4),
        Column("auroc_softmax", "by softmax", "higher", places=4),
        Column("aupr", "AUPR", "higher", places=4),
        Column("fpr95", "FPR at 95 %", "lower", share=True),
        *(Column(f"auroc_epistemic_{name}", name, "higher", places=4) for name in FURTHER),
    )
    across = "metrics"

    def check(self, choice: Choice, root: Root = None) -> None:
        from bedl.data.datasets.builtin import load_images

        wanted = self.datasets if choice.datasets is None else choice.datasets
        for name in {"mnist": ("mnist", "fashion_mnist"), "cifar-1-5": ("cifar10",)}.items():
            if name[0] in wanted:
                for own in name[1]:
                    load_images(own, train=False, root=root)  # raises, with the way to get it

    def work(self, cell: Cell, root: Root = None) -> RunResult:
        return run(cell, load(cell.dataset, root), root)

    def published(self) -> Sequence[Published]:
        found = []
        for label, numbers in figures()["classification_ood"].items():
            if label != "columns":
                errors = {"mnist": (numbers[0] / 100, None), "cifar-1-5": (numbers[2] / 100, None)}
                areas = {"mnist": (numbers[1], None), "cifar-1-5": (numbers[3], None)}
                for metric, values in (("error", errors), ("ecdf_auc", areas)):
                    found.append(Published(label, metric, values, SAME.get(label), "the paper"))  # type: ignore[arg-type]
        return found

    def sections(self, rows: Sequence[Row]) -> Sequence[str]:
        from bedl.bench.page import ecdf_card

        return [
            ecdf_card(f"{row['dataset']}: {row['method']} ({row['preset']})", row["curves"])
            for row in rows
            if row["split"] == 0 and row["seed"] == 0
        ]


def run(cell: Cell, images: Images, root: Root = None, most: int | None = None) -> RunResult:
    """Train, then score the test part and the OOD sets, once.

    Args:
        cell: which it is.
        images: its data.
        root: where foreign data are.
        most: the number of images of each OOD set, at most.
    """
    from bedl.bench.images import foreign_sets
    from bedl.bench.util import cifar_net, lenet5

    plan = network_setup(cell.preset, cell.method, cell.dataset)
    model = fitted(cell, images, plan, lenet5 if cell.dataset == "mnist" else cifar_net)
    known = model.predict_dist(images.x_test)
    metrics, curves = class_scores(known, images.y_test), {"known": entropy_curve(known)}
    sets, left_out = foreign_sets(cell.dataset, images.x_test, root, most)
    for name, foreign_images in sets.items():
        foreign = model.predict_dist(foreign_images)
        scores, own = detection_scores(known, foreign), name == OUT_OF_DOMAIN[cell.dataset]
        metrics |= {key if own else f"{key}_{name}": value for key, value in scores.items()}
        if own:
            curves["foreign"] = entropy_curve(foreign)
            parts = ("data", "distributional", "model")
            metrics |= {f"{part}_foreign": float(getattr(foreign, part).mean()) for part in parts}
    return RunResult(metrics, {**settings_of(plan, model, images), "left_out": left_out}, curves)


TABLE = OOD()
