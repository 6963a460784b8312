"""BEDL for images: sure of what the training set shows, and of nothing else.

As in `evidence`, lambda is asked to be known on the data and unknown off it. Off the data are perturbed copies of the
training images, of eleven kinds (`bedl.objectives.perturbations.IMAGE`): no other data take part. On the data, every
other image is a little elsewhere each time it is seen.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Generator, Tensor

from bedl.heads import head_of
from bedl.methods.bedl import BEDL
from bedl.methods.networks import gaussian_network
from bedl.methods.registry import Problem, Training, register
from bedl.objectives import Known, Unsure
from bedl.objectives.image_copies import jittered, mirrored
from bedl.objectives.perturbations import IMAGE, Perturbation, as_images

__all__ = ["are_images", "for_images"]


def are_images(problem: Problem) -> bool:
    """Whether the points are images: of shape (channels, height, width), or rows that are images of a known shape."""
    return problem.image_shape is not None or len(problem.input_shape) == 3


def for_images(perturbation: Perturbation, problem: Problem) -> Perturbation:
    """A perturbation of images for the points of a problem, which may have their pixels as columns."""
    if len(problem.input_shape) == 3 or problem.image_shape is None:
        return perturbation
    return as_images(perturbation, problem.image_shape)


def training(n: int) -> Training:
    """Six epochs of many images, more of few, without early stopping; some are held out to decide how bold it may be.

    As trained it is too cautious: images that are jittered are harder than those that it will see, and some copies are
    data. Temperatures mend both (docs/results.md).
    """
    epochs = max(6, round(12 * (10_000 / n) ** 0.5))
    small = n < 3000
    lr, size = (0.005, 64) if small else (0.002, 128)
    return Training(epochs, batch_size=min(n, size), lr=lr, early_stopping=False, tempered=True)


@register("images", "for images of classes: evidence asked for on the data and off it", tasks=("classification",),
          training=training)  # fmt: skip
def images(
    problem: Problem, known: float = 0.2, unknown: float = 0.5, augment: bool = True, mirror: bool = False
) -> BEDL:
    """One network.

    Args:
        problem: what it is for.
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
