"""Cells of images: the data, how a method is set up on them, and what its predictions are scored by."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bedl import metrics
from bedl.bench.cells import Cell, Preset
from bedl.bench.presets import CLIPPED, Setup, authors_options
from bedl.bench.regression import seed_of
from bedl.bench.table import Root
from bedl.training.compiling import has_fast_bfloat16

__all__ = [
    "CHECKPOINTS", "PAPER", "Images", "class_scores", "detection_scores", "entropy_curve", "fitted", "load",
    "network_setup", "settings_of",
]  # fmt: skip

CHECKPOINTS = "BEDL_CHECKPOINTS"  # a folder; there long trainings can be taken up again
PAPER = ("edl", "mc-dropout", "bedl+reg", "bedl", "dvi", "varout")  # its methods on images, the quick ones first
EPOCHS = {"mnist": 10, "cifar-1-5": 40}
EPOCHS_OF_AUTHORS = {"mnist": 1, "cifar-1-5": 40}
OF_AUTHORS = (
    CLIPPED,
    "means of a convolution start with variance 1/fan-in, of a fan-in of 25 for each channel where the code has 24",
    "log p, where the code has log(p + 1e-8)",
    "scored with the test parts of foreign sets, scaled as the known images, where the code has the training parts",
)
WIDE = ("cifar-1-5",)
UNSTATED = "the batch size is not stated: {}"
RISES = "the rate rises in the first twentieth of the steps: wide networks with Gaussian weights need that"
MIXED = "products round their operands to bfloat16 while learning, as this processor has instructions for it"
THINGS = "the default's method, told that pictures of things may be mirrored; 10 epochs of a wide network"
DRAWN, FEWER_DRAWS = ("mc-dropout", "varout"), 20
FEWER = f"{FEWER_DRAWS} draws, not 100: points held out are scored with them after each epoch of a wide network"
START = (
    "means of weights start as PyTorch's layers have them, with variance 1/(3 fan-in), not 2/fan-in; log sigma² at −9"
)
DROPPED = "dropout is not stated: 0.5 behind each hidden layer, as in the authors' code"
NOTEBOOK = (
    "as in the LeNet notebook of EDL's authors: relu, ½ · 0.005 · Σ‖W‖² of dense layers in the loss, dropout of half "
    "of the dense hidden layer, KL rising over 10 epochs",
    "strides in place of the notebook's pooling, as in the paper's networks; PyTorch's start",
)
OURS = "not in the paper: trained as its BEDL is"


class Images(NamedTuple):
    """Images to learn from and to score. shapes: x (n, channels, height, width), from 0 to 1; y (n,)"""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int


def load(dataset: str, root: Root = None) -> Images:
    """A data set of the tables: ``mnist``, ``cifar10``, or ``cifar-1-5``, the first five classes of it."""
    from bedl.data.images import load_images

    name, some = ("cifar10", 5) if dataset == "cifar-1-5" else (dataset, 10)
    x, y, _ = load_images(name, root=root)
    x_test, y_test, _ = load_images(name, train=False, root=root)
    own, scored = y < some, y_test < some
    return Images(scaled(x[own]), y[own], scaled(x_test[scored]), y_test[scored], some)


def scaled(images: np.ndarray) -> np.ndarray:
    """Bytes as numbers from 0 to 1."""
    return images.astype(np.float32) / 255


# -- learning ----------------------------------------------------------------------------------------
def network_setup(
    preset: Preset, method: str, dataset: str, epochs: int | None = None, wide: bool | None = None
) -> Setup:
    """How a method is set up on images, whatever the network.

    Args:
        preset: "paper": Adam at 1e-3, five draws wherever something is drawn; "authors": their public code; "best":
            every method as it comes.
        method: its name in `bedl.methods.registry`.
        dataset: its name in the table.
        epochs: but for "best"; None: those of the table of foreign images.
        wide: whether a training takes an hour of a core, or several, so that it learns in bfloat16 where that is fast;
            None: as in the table of foreign images.

    Example:
        >>> network_setup("best", "auto", "mnist").estimator
        {'method': 'auto'}
        >>> network_setup("paper", "varout", "mnist").estimator["method_options"]
        {'samples': 5}
    """
    wide = dataset in WIDE if wide is None else wide
    mixed, colour = wide and has_fast_bfloat16(), dataset.startswith("cifar")
    precision = {"precision": "bf16-mixed"} if mixed else {}
    if preset == "best":
        asked: dict[str, Any] = {"method": method}
        said: tuple[str, ...] = (MIXED,) if mixed else ()
        if method == "auto" and colour:
            asked = {"method": "images", "method_options": {"mirror": True}, **({"epochs": 10} if wide else {})}
            said = (THINGS, *said)
        if method in DRAWN and wide:
            asked["method_options"], said = {"samples": FEWER_DRAWS}, (FEWER, *said)
        return Setup({**asked, **precision}, said)
    if preset == "authors":
        more = {"batch_size": 100, "learning_rate": 1e-3, "schedule": "constant", "early_stopping": False}
        options = authors_options(method, samples=True)
        epochs = EPOCHS_OF_AUTHORS[dataset] if epochs is None else epochs
        estimator = {"method": method, "epochs": epochs, **more, **precision, "method_options": options}
        return Setup(estimator, (*OF_AUTHORS, *((MIXED,) if mixed else ())))
    notebook, network = method == "edl", {"dropout": 0.5, "dropped": "dense"} if method == "edl" else {}
    size = 1000 if notebook and epochs is None else 128
    epochs = (50 if notebook else EPOCHS[dataset]) if epochs is None else epochs
    rises = colour and not notebook
    common = {
        "epochs": epochs, "batch_size": size, "learning_rate": 1e-3, "schedule": "warmup" if rises else "constant",
        "early_stopping": False,
    }  # fmt: skip
    own: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "bedl": ({}, (START,)),
        "bedl+reg": ({}, (START, "delta is not stated: 0.05")),
        "edl": ({"evidence": "relu", "decay": 0.005}, NOTEBOOK),
        "mc-dropout": ({"samples": 5}, (DROPPED,)),
        "varout": ({"samples": 5}, (START,)),
        "dvi": ({"softmax": "samples", "samples": 5}, (START,)),
    }
    options, deviations = own.get(method, ({}, (OURS,)))
    more = {"method_options": options} if options else {}
    length = f"how long it is trained is not stated: {epochs} epochs"
    said = (length, UNSTATED.format(size), CLIPPED, *((RISES,) if rises else ()), *((MIXED,) if mixed else ()))
    return Setup({"method": method, **common, **precision, **more}, (*said, *deviations), network)


def fitted(cell: Cell, images: Images, plan: Setup, net: Any, family: str = "ood") -> Any:
    """A classifier, learned from the cell's images.

    Args:
        cell: which it is.
        images: the data.
        plan: how.
        net: makes the network, (classes, dropout=…, dropped=…) -> module.
        family: of the network: tables with the same one share its training, where $BEDL_CHECKPOINTS keeps it.
    """
    from bedl.estimators import BEDLClassifier
    from bedl.training import Checkpoints

    folder, place = os.environ.get(CHECKPOINTS), None
    if folder:
        own = "-".join(map(str, (family, cell.dataset, cell.method, cell.preset, cell.split, cell.seed)))
        place = Checkpoints(Path(folder) / own, every_seconds=120)
    dropout = {"dropout": 0.5 if cell.method in ("mc-dropout", "fast-dropout") else 0.0, **plan.network}
    model = BEDLClassifier(
        **plan.estimator, net=functools.partial(_outputs, net, dropout), device="cpu", random_state=seed_of(cell),
        checkpoint=place,
    )  # fmt: skip
    model.taken_up_ = place is not None and any(Path(place.directory).glob("*.safetensors"))
    return model.fit(images.x, images.y)


def settings_of(plan: Setup, model: Any, images: Images) -> dict[str, Any]:
    """What a row says of a fitted network.

    ``network``: options of the network, if there are any.
    ``taken_up``: whether its training had begun in an earlier run, so that the row's seconds are not all of it.
    """
    return {
        **plan.estimator, "network": plan.network, "chosen": model.chosen_, "temperatures": model.temperatures_,
        "images": len(images.y),
        "test_images": len(images.y_test), "epochs_run": len(model.history_),
        "taken_up": getattr(model, "taken_up_", False), "deviations": plan.deviations,
    }  # fmt: skip


def _outputs(net: Any, options: dict[str, Any], shape: tuple[int, ...], outputs: int) -> Any:
    return net(outputs, **options)


# -- scores ------------------------------------------------------------------------------------------
def class_scores(prediction: Any, y: np.ndarray) -> dict[str, float]:
    """Of predictions for images of known classes.

    Args:
        prediction: a `CategoricalPredictive`.
        y: shape (n,)

    Returns:
        ``error``, ``nll``, ``ece``, ``brier``, ``ecdf_auc_known``; the mean of each part of the uncertainty.
    """
    p = _probabilities(prediction)
    return {
        "error": 1 - metrics.accuracy(y, p),
        "nll": metrics.nll_categorical(y, prediction.log_probabilities),
        "ece": metrics.ece(y, p),
        "brier": metrics.brier(y, p),
        "ecdf_auc_known": metrics.ecdf_auc(prediction.entropy, p.shape[1]),
        **{f"{part}_known": float(getattr(prediction, part).mean()) for part in ("data", "distributional", "model")},
    }


def detection_scores(known: Any, foreign: Any) -> dict[str, float]:
    """How well images that are foreign are told from those that are not.

    Args:
        known, foreign: predictions, `CategoricalPredictive`.

    Returns:
        ``ecdf_auc`` of the foreign entropies, ``auroc_total``, ``auroc_epistemic``, ``auroc_softmax`` (by the greatest
        probability), ``aupr`` and ``fpr95`` by the entropy.
    """
    total, epistemic = ([getattr(p, part).numpy() for p in (known, foreign)] for part in ("entropy", "epistemic"))
    doubt = [1 - _probabilities(p).max(1) for p in (known, foreign)]
    return {
        "ecdf_auc": metrics.ecdf_auc(total[1], foreign.log_probabilities.shape[1]),
        "auroc_total": metrics.auroc(*total),
        "auroc_epistemic": metrics.auroc(*epistemic),
        "auroc_softmax": metrics.auroc(*doubt),
        "aupr": metrics.aupr(*total),
        "fpr95": metrics.fpr_at_tpr(*total),
    }


def entropy_curve(prediction: Any, points: int = 51) -> list[float]:
    """The entropies below which shares of 0 to 1 lie, evenly spaced: what an ECDF is drawn from. shape: (points,)"""
    found = np.quantile(prediction.entropy.double().numpy(), np.linspace(0, 1, points))
    return [round(float(value), 5) for value in found]


def _probabilities(prediction: Any) -> np.ndarray:
    p = prediction.probabilities.double().numpy()
    return np.asarray(p / p.sum(1, keepdims=True))
