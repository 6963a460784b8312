"""Convolutional Gaussian processes: a sparse process of images that is a mean over their patches.

M. van der Wilk, C. Rasmussen, J. Hensman, "Convolutional Gaussian Processes", NeurIPS 2017: the plain convolutional
kernel with inducing patches, see `bedl.methods.gpytorch_models.latent.PatchLatent`; all else is as for "sparse-gp".
Which tables are images, `bedl.methods.cnn_gp` says.
"""

from __future__ import annotations

from collections.abc import Sequence

from bedl.methods.cnn_gp import image_of
from bedl.methods.registry import Problem, register
from bedl.methods.sparse_gp import SparseGP, head_for

__all__: list[str] = []


@register(
    "conv-gp",
    "convolutional Gaussian process with inducing patches (van der Wilk et al. 2017)",
    tasks=("regression", "classification"),
    needs=("gpytorch",),
    extra="gp",
)
def conv_gp(
    problem: Problem,
    inducing: int = 100,
    size: int | None = None,
    image: Sequence[int] | None = None,
    steps: int = 1000,
    lr: float = 0.03,
    batch_size: int = 64,
) -> SparseGP:
    """The paper has 750 inducing patches of 5 × 5 for MNIST; the default of 100 is for a processor.

    Args:
        problem: what it is for.
        inducing: patches that the process is known by.
        size: of a patch; None: 5, or 3 for images below 12 pixels.
        image: channels, height and width of a row; None: the estimator's `image_shape`, or a square of one channel.
        steps: of learning.
        lr: learning rate.
        batch_size: images per step.
    """
    if problem.net is not None:
        raise ValueError("method 'conv-gp' has a kernel and no network; leave net out, or name another method")
    shape = image_of("conv-gp", problem, image)
    from bedl.methods.gpytorch_models.latent import PatchLatent

    side = size if size is not None else 5 if max(shape[1:]) >= 12 else 3
    patch = min(side, shape[1]), min(side, shape[2])
    front = None if problem.front is None else problem.front()
    latent = lambda: PatchLatent(shape, patch, problem.n_targets, inducing)  # noqa: E731
    return SparseGP(latent, head_for(problem), front, steps, lr, batch_size)
