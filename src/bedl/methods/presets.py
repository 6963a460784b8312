"""BEDL for images: sure of what the training set shows, and of nothing else.

As in `evidence`, lambda is asked to be known on the data and unknown off it. Off the data are perturbed copies of the
training images, of eleven kinds (`bedl.objectives.ood_samples.IMAGE`): no other data take part. On the data, every
other image is a little elsewhere each time it is seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bedl.evaluation import tasks
from bedl.heads import Head, Sampled, head_of
from bedl.methods.base import Method
from bedl.methods.bedl import BEDL
from bedl.methods.networks import draw_weights, gaussian_network, hidden_layers
from bedl.methods.registry import Problem, Training, register, register_alias
from bedl.nn import GaussianLayer
from bedl.nn.tabular import PeriodicEmbedding, SkipLinear
from bedl.objectives import PAC, HyperPrior, Known, Objective, Sum, Unknown, Unsure, WeightPrior
from bedl.objectives.ood_samples import IMAGE, Perturbation, around_and_beyond, as_images, jittered, mirrored


def are_images(problem: Problem) -> bool:
    """Whether the points are images: of shape (channels, height, width), or rows that are images of a known shape."""
    return problem.image_shape is not None or len(problem.input_shape) == 3


def for_images(perturbation: Perturbation, problem: Problem) -> Perturbation:
    """A perturbation of images for the points of a problem, which may have their pixels as columns."""
    if len(problem.input_shape) == 3 or problem.image_shape is None:
        return perturbation
    return as_images(perturbation, problem.image_shape)


def _image_training(n: int) -> Training:
    """Six epochs of many images, more of few, without early stopping; some are held out for temperature scaling.

    As trained it is underconfident: augmented images are harder than test images, and some synthetic OOD samples look
    like data. Temperatures correct both (docs/experiments.md).
    """
    epochs = max(6, round(12 * (10_000 / n) ** 0.5))
    small = n < 3000
    lr, size = (0.005, 64) if small else (0.002, 128)
    return Training(epochs, batch_size=min(n, size), lr=lr, early_stopping=False)


@register("images", "for images of classes: evidence asked for on the data and off it", tasks=("classification",),
          training=_image_training, tempered=True)  # fmt: skip
def images(
    problem: Problem, known: float = 0.2, unknown: float = 0.5, augment: bool = True, mirror: bool = False
) -> BEDL:
    """One network.

    Args:
        known: strength of `Known`.
        unknown: strength of `Unsure`.
        augment: whether images are shifted, turned and bent a little each time they are seen (`jittered`). Turn it off
            where such a change would make another thing of them.
        mirror: whether every other image is seen in a mirror (`mirrored`): for pictures of things, which face either
            way, not for letters and digits.
    """
    if not are_images(problem):
        raise ValueError(
            "method 'images' is for images: a net of your own and X of shape (n, channels, height, width), or pixels "
            "as columns and image_shape=(height, width)"
        )
    head = head_of(problem.task, problem.n_targets)
    objective = Known(known) + Unsure(unknown, for_images(IMAGE, problem))
    net = gaussian_network(problem, head.n_outputs)
    kinds = [kind for kind, wanted in ((jittered, augment), (mirrored, mirror)) if wanted]
    return BEDL(net, head, objective, augment=for_images(_in_turn(kinds), problem) if kinds else None)


def _in_turn(kinds: Sequence[Perturbation]) -> Perturbation:
    def all_of(x: Tensor, generator: Generator | None = None) -> Tensor:
        for kind in kinds:
            x = kind(x, generator)
        return x

    return all_of


# BEDL by name: the paper's three, and the default.


MANY_CLASSES = 30


@register_alias("auto", "the recommended default")
def auto(problem: Problem) -> tuple[str, dict[str, Any]]:
    """Classes of images have a recipe of their own. Tables of numbers: one network, distilled from a committee. One
    that has to learn by steps, and one of so many classes that trees of them would fill the memory, is asked for
    evidence on the rows alone, and stopped early, or it would overfit. Inputs with noise of their own would be taken
    apart by the embedding of columns as if its numbers were independent. Otherwise the PAC term; on all evidence it
    would make a classifier unsure everywhere, on the misleading evidence it does not.
    """
    if problem.task == "classification" and are_images(problem):
        return "images", {}
    table = problem.net is None and len(problem.input_shape) == 1 and not problem.noisy
    many = problem.task == "classification" and problem.n_targets > MANY_CLASSES
    if many and table:
        return "evidence", {}
    if table and problem.task in ("regression", "classification") and not problem.steps:
        return "distilled", {}
    if table and problem.task == "regression":
        return "evidence", {"weight_prior": 3.0}
    if tasks.get(problem.task).column != "number":
        return "bedl", {"regularizer": PAC(evidence="misleading")}
    return "bedl+reg", {}


@register("bedl", "Gaussian weights, trained by marginal likelihood alone; takes a regularizer")
def bedl(
    problem: Problem,
    regularizer: Objective | Sum | None = None,
    head: Mapping[str, Any] | None = None,
    samples: int | None = None,
    gain: float | None = None,
) -> BEDL:
    """Plain BEDL of Haussmann et al., AABI 2020.

    Args:
        regularizer: added to the marginal likelihood, such as `PAC(strength=0.5)`.
        head: options of the head, such as ``{"beta": 10.0}`` in regression.
        samples: draws of the outputs for each point, in training and prediction; None: in closed form.
        gain: variance of the weights' means at the start, in units of 1/fan-in: 2 in the paper (He), 1 in the authors'
            code; None: as the layers begin.
    """
    if regularizer is not None and not isinstance(regularizer, (Objective, Sum)):
        raise TypeError(f"regularizer is an objective such as bedl.PAC(…), or None, not {regularizer!r}")
    top: Head = head_of(problem.task, problem.n_targets, **dict(head or {}))
    net = gaussian_network(problem, top.n_outputs)
    if gain is not None:
        draw_weights(net, gain)
    return BEDL(net, top if samples is None else Sampled(top, samples), regularizer)


@register("bedl+reg", "the paper's BEDL+Reg: marginal likelihood and the PAC term", tempered=True)
def bedl_reg(
    problem: Problem,
    head: Mapping[str, Any] | None = None,
    samples: int | None = None,
    gain: float | None = None,
    pac: Mapping[str, Any] | None = None,
) -> Method:
    """BEDL+Reg of Haussmann et al., AABI 2020, with the paper's own PAC term.

    On classes the term on all evidence makes p of a certain class 0.28 where there are ten (docs/paper.md):
    `BEDLClassifier` corrects that by a temperature, unless it is told ``temperature_scaling=False``.

    Args:
        head: options of the head.
        samples: draws of the outputs for each point; None: in closed form.
        gain: variance of the weights' means at the start, see "bedl".
        pac: options of `PAC`, such as ``{"delta": 0.1, "kl_scale": "authors-code"}``.
    """
    return bedl(problem, PAC(**dict(pac or {})), head, samples, gain)


@register("bedl-hyper", "the paper's BEDL-Hyper: marginal likelihood and a prior on means and variances of weights")
def bedl_hyper(problem: Problem, head: Mapping[str, Any] | None = None) -> Method:
    """BEDL-Hyper of Haussmann et al., AABI 2020."""
    return bedl(problem, HyperPrior(), head)


# BEDL that knows where it has seen nothing: evidence asked for on the data and off it.
#
# Gaussian weights and an evidential head as in Haussmann et al., AABI 2020, with learned noise. The likelihood is blind
# to the amount of evidence, so two terms ask for it: `Known` on the data, `Unknown` on copies that are no data; a
# divergence of the weights from a standard normal keeps their variances alive. Columns of tables are bounded and
# embedded.


MANY_COLUMNS = 100  # beyond, an embedding would be most of the network
FEW_COLUMNS, WEAK_PRIOR, STRONG_PRIOR = 2, 0.5, 30.0  # validation parts of diabetes, boston, concrete; a sine's gap
HALF = 0.5  # of the rows of a table have a copy: a quarter less to compute, and no worse (docs/speed.md)
LAST_BIAS = {"regression": (0.0, -3.0, -1.0)}  # of f1, f2 and f3: little is unknown at first, and some noise


def training(n: int) -> Training:
    """Some hundred steps, more with more points, and a warm-up to a high learning rate: no early stopping."""
    batch_size = min(n, 64 if n < 3000 else 128)
    steps = 300 + 15 * math.sqrt(n)
    return Training(epochs=max(1, round(steps * batch_size / n)), batch_size=batch_size, lr=0.015, early_stopping=False)


@register("evidence", "BEDL that is asked for evidence on the data and off it, one net", training=training)
def evidence(
    problem: Problem,
    known: float = 0.2,
    unknown: float = 0.2,
    weight_prior: float | None = None,
    embedding: int = 4,
    frequency: float = 0.3,
) -> BEDL:
    """One network.

    Args:
        known: strength of `Known`.
        unknown: strength of `Unknown`.
        weight_prior: strength of `WeightPrior`; None: 30 for tables of more than two columns, of which a network of a
            weaker one learns small tables by heart, else 0.5, by which it knows gaps.
        embedding: numbers that each column of a table is embedded in; 0: none.
        frequency: of the waves that they are made of.
    """
    options = {"noise": "learned"} if problem.task == "regression" else {}
    head = head_of(problem.task, problem.n_targets, **options)
    table = problem.net is None and len(problem.input_shape) == 1 and problem.image_shape is None
    embedding = embedding if problem.input_shape[0] <= MANY_COLUMNS else 0
    columns = PeriodicEmbedding(problem.input_shape[0], size=embedding, frequency=frequency) if table else None
    net = gaussian_network(problem, head.n_outputs) if columns is None else _behind(columns, problem, head.n_outputs)
    share = HALF if table else 1.0
    if weight_prior is None:
        weight_prior = STRONG_PRIOR if table and problem.input_shape[0] > FEW_COLUMNS else WEAK_PRIOR
    return BEDL(net, head, Known(known) + Unknown(unknown, _copies(problem), share) + WeightPrior(weight_prior))


def _copies(problem: Problem) -> Perturbation | None:
    if are_images(problem):
        return for_images(IMAGE, problem)
    return around_and_beyond if len(problem.input_shape) == 1 else None  # None: what is to be done is said later


def _behind(columns: PeriodicEmbedding, problem: Problem, n_outputs: int) -> nn.Sequential:
    """The network behind the columns of a table, which starts with little unknown and some noise."""
    body = hidden_layers(problem, columns.n_outputs, n_outputs, default=(64, 64))
    last = [layer for layer in body.modules() if isinstance(layer, GaussianLayer)][-1]
    with torch.no_grad():
        last.weight_mean.mul_(0.5)  # type: ignore[operator]
        start = torch.full((problem.n_targets, n_outputs // problem.n_targets), math.log(5.0))
        if problem.task in LAST_BIAS:
            start[:] = torch.tensor(LAST_BIAS[problem.task])
        last.bias.copy_(start.T.reshape(-1))  # type: ignore[operator]
    front = [] if problem.front is None else [problem.front()]
    return nn.Sequential(*front, SkipLinear(columns, body, n_outputs))
