"""Cells of images: the data, how a method is set up on them, and what its predictions are scored by."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bedl.bench.benchmark import Cell, Preset, Root
from bedl.bench.presets import CLIPPED, Setup, authors_options
from bedl.bench.regression import seed_of
from bedl.data.datasets.builtin import load_images
from bedl.evaluation import metrics
from bedl.training.compile import has_fast_bfloat16

CHECKPOINTS = "BEDL_CHECKPOINTS"  # a folder; there long trainings can be taken up again
PAPER = ("edl", "mc-dropout", "bedl+reg", "bedl", "dvi", "varout")  # its methods on images, the quick ones first
EPOCHS = {"mnist": 10, "cifar-1-5": 40}
EPOCHS_OF_AUTHORS = {"mnist": 1, "cifar-1-5": 40}
OF_AUTHORS = (
    CLIPPED,
    "means of a convolution start with variance 1/fan-in, of a fan-in of 25 for each channel where the code has 24",
    "log p, where the code has log(p + 1e-8)",
    "scored with the test parts of OOD sets, scaled like the in-domain images; the code has the training parts",
)
WIDE = ("cifar-1-5",)
AS_TRAINED = {"early_stopping": False, "temperature_scaling": False}
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
    from bedl.data.datasets.builtin import load_images

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
            every method with default settings.
        method: its name in `bedl.methods.registry`.
        dataset: its name in the table.
        epochs: but for "best"; None: those of the table of OOD images.
        wide: whether a training takes an hour of a core, or several, so that it learns in bfloat16 where that is fast;
            None: as in the table of OOD images.

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
        more = {"batch_size": 100, "learning_rate": 1e-3, "schedule": "constant", **AS_TRAINED}
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
        **AS_TRAINED,
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


# Images that are none of a data set's classes, and which of the training's perturbations each of them resembles.
#
# Letters are drawn with the DejaVu fonts (Debian's fonts-dejavu) by Pillow and put into the frame as MNIST's digits
# are: 20 pixels large, centred by mass. Letters that are also digits to a reader are left out.


FONTS = Path("/usr/share/fonts/truetype/dejavu")
FACES = "Sans Sans-Oblique Sans-ExtraLight SansCondensed Serif Serif-Italic SansMono SansMono-Bold".split()
LATIN, GREEK = "ACEFGHJKLMNPQRTUVWXYadefhkmnprtuwxy", "ΓΔΘΛΞΠΣΦΨΩαβγδεζηθκλμξπρστφχψω"
RESEMBLES = {  # the names of `bedl.objectives.ood_samples.IMAGE`
    "fashion": "smooth_blobs, a little",
    "cifar-6-10": "none",
    "cifar-grey": "noisy and smooth_blobs, a little",
    "digits": "none",
    "turned": "turned (the same), moved",
    "upside-down": "moved, for some angles",
    "mirrored": "none; but 0, 1 and 8 stay digits",
    "inverted": "invert_contrast (the same)",
    "noise": "noisy, at its strongest",
    "latin": "grafted, a little",
    "greek": "grafted, a little",
    "strokes": "grafted and warped, a little",
}


def foreign_sets(
    dataset: str, test: np.ndarray, root: Root = None, most: int | None = None
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """OOD images by name, the paper's first, and why some are left out: what they are made of is not there.

    Args:
        dataset: ``mnist`` or ``cifar-1-5``.
        test: its test images, which some are made of. shape: (n, channels, height, width)
        root: where data sets are.
        most: of each set, no more than that.
    """
    makers = _of_digits(test, root, min(most or 2000, 2000)) if dataset == "mnist" else _of_scenes(test, root)
    found, left_out = {}, {}
    for name, make in makers.items():
        try:
            found[name] = np.ascontiguousarray(make()[:most])
        except (ImportError, OSError) as error:
            left_out[name] = str(error)
    return found, left_out


def _of_digits(test: np.ndarray, root: Root, drawn: int) -> dict[str, Callable[[], np.ndarray]]:
    return {
        "fashion": lambda: scaled(load_images("fashion_mnist", train=False, root=root)[0]),
        "cifar-grey": lambda: _grey(root),
        "turned": lambda: np.rot90(test, axes=(2, 3)),
        "upside-down": lambda: test[:, :, ::-1, ::-1],
        "mirrored": lambda: test[..., ::-1],
        "inverted": lambda: 1 - test,
        "noise": lambda: _noise(test),
        "latin": lambda: letters(LATIN, drawn, seed=1),
        "greek": lambda: letters(GREEK, drawn, seed=2),
        "strokes": lambda: strokes(drawn, seed=3),
    }


def _of_scenes(test: np.ndarray, root: Root) -> dict[str, Callable[[], np.ndarray]]:
    def others() -> np.ndarray:
        images, labels, _ = load_images("cifar10", train=False, root=root)
        return scaled(images[labels >= 5])

    def digits() -> np.ndarray:
        small = scaled(load_images("mnist", train=False, root=root)[0])
        return np.repeat(np.pad(small, ((0, 0), (0, 0), (2, 2), (2, 2))), 3, axis=1)

    return {
        "cifar-6-10": others,
        "digits": digits,
        "turned": lambda: np.rot90(test, axes=(2, 3)),
        "inverted": lambda: 1 - test,
        "noise": lambda: _noise(test),
    }


def _noise(test: np.ndarray) -> np.ndarray:
    return np.random.default_rng(4).random((min(len(test), 2000), *test.shape[1:]), dtype=np.float32)


def _grey(root: Root) -> np.ndarray:
    """CIFAR-10's test part in grey, without its outermost two pixels."""
    colours = scaled(load_images("cifar10", train=False, root=root)[0])
    return np.einsum("nchw,c->nhw", colours, [0.299, 0.587, 0.114])[:, None, 2:30, 2:30].astype(np.float32)


def letters(text: str, n: int, seed: int) -> np.ndarray:
    """Letters at random, slanted and turned a little, thin to bold. shape: (n, 1, 28, 28)"""
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    rng = np.random.default_rng(seed)
    fonts = [ImageFont.truetype(str(FONTS / f"DejaVu{face}.ttf"), 72) for face in FACES]
    images = []
    for _ in range(n):
        picture = Image.new("L", (160, 160), 0)
        font, letter = fonts[rng.integers(len(fonts))], text[rng.integers(len(text))]
        ImageDraw.Draw(picture).text((50, 30), letter, 255, font=font, stroke_width=int(rng.integers(3)))
        slant = rng.normal(0, 0.15)
        picture = picture.rotate(rng.normal(0, 6), Image.Resampling.BICUBIC)
        matrix = (1, slant, -80 * slant, 0, 1, 0)
        picture = picture.transform(picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)
        images.append(_framed(picture.filter(ImageFilter.GaussianBlur(1.5))))
    return np.stack(images)[:, None]


def strokes(n: int, seed: int) -> np.ndarray:
    """One to three curves of a pen, at random. shape: (n, 1, 28, 28)"""
    from PIL import Image, ImageDraw, ImageFilter

    rng = np.random.default_rng(seed)
    t = np.linspace(0, 1, 30)[:, None]
    images = []
    for _ in range(n):
        picture, start, width = Image.new("L", (160, 160), 0), rng.uniform(30, 130, 2), int(rng.integers(8, 18))
        for _ in range(rng.integers(1, 4)):
            a, b, end = rng.uniform(20, 140, (3, 2))
            curve = (1 - t) ** 3 * start + 3 * (1 - t) ** 2 * t * a + 3 * (1 - t) * t**2 * b + t**3 * end
            ImageDraw.Draw(picture).line([tuple(point) for point in curve], 255, width, joint="curve")
            start = end if rng.random() < 0.6 else rng.uniform(30, 130, 2)
        images.append(_framed(picture.filter(ImageFilter.GaussianBlur(2))))
    return np.stack(images)[:, None]


def _framed(picture: object) -> np.ndarray:
    """What is drawn, 20 pixels large, centred by mass. shape: (28, 28)"""
    from PIL import Image

    assert isinstance(picture, Image.Image)
    rows, columns = np.nonzero(np.asarray(picture) > 30)
    drawn = picture.crop((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))
    size = 20 / max(drawn.size)
    small = drawn.resize([max(1, round(side * size)) for side in drawn.size], Image.Resampling.LANCZOS)
    ink = np.asarray(small, dtype=np.float32) / 255
    result = np.zeros((28, 28), np.float32)
    places = []
    for axis in (0, 1):
        middle = (ink.sum(1 - axis) * np.arange(ink.shape[axis])).sum() / ink.sum()
        places.append(int(np.clip(round(13.5 - middle), 0, 28 - ink.shape[axis])))
    result[places[0] : places[0] + ink.shape[0], places[1] : places[1] + ink.shape[1]] = ink
    return result.clip(0, 1)
