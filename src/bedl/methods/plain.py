"""The plain network: softmax for classes, a mean and a variance for real targets. Reference for accuracy and cost.

    classes:  −log softmax(f)_y          targets:  −log N(y; f1, exp f2)

D. Nix, A. Weigend, "Estimating the mean and variance of the target probability distribution", ICNN 1994. All
uncertainty is ``data``: a network of point weights cannot say what it does not know.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from bedl._utils.errors import BEDLError
from bedl.heads import Head, MeanVariance, Softmax
from bedl.heads.predictive import Prediction
from bedl.methods.base import Method
from bedl.methods.networks import plain_network
from bedl.methods.registry import Problem, register
from bedl.nn.draws import seeded
from bedl.objectives import Batch

if TYPE_CHECKING:
    from bedl.heads.predictive import Predictive


BOTH = ("regression", "classification")


class Deterministic(Method[Prediction]):
    """A network with ordinary weights, trained by maximum likelihood.

    Args:
        net: a tensor in, outputs of shape (n, head.n_outputs) out. Inputs that are Moments go through it as such.
        head: `Softmax` or `MeanVariance`.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from bedl.heads import MeanVariance
        >>> method = Deterministic(nn.Linear(3, 2), MeanVariance(1))
        >>> method.predict(torch.zeros(5, 3)).model.sum().item()
        0.0
    """

    def __init__(self, net: nn.Module, head: Head[Prediction]):
        super().__init__()
        self.net, self.head = net, head

    def forward(self, x: Any) -> Prediction:
        prediction: Prediction = self.head(self.net(x))
        return prediction

    def batch_loss(self, batch: Batch) -> Tensor:
        """−mean log p(y | x). shape: ()"""
        return -batch.mean(self.head.log_marginal(self.net(batch.x), batch.y))


def plain_head(problem: Problem, **options: Any) -> Head:
    """The head of an ordinary network: `Softmax`, or `MeanVariance` with these options."""
    if problem.task == "classification":
        return Softmax(problem.n_targets)
    return MeanVariance(problem.n_targets, **options)


@register("deterministic", "the plain network: softmax, or a mean and a variance", tasks=BOTH)
def deterministic(problem: Problem) -> Deterministic:
    """Layers of ordinary weights, trained by maximum likelihood."""
    head = plain_head(problem)
    return Deterministic(plain_network(problem, head.n_outputs), head)


# Predictions by sampling: several draws of a network, each the same function for all points, as an equal mixture.


# Draws in one pass; a fixed number, so that what is drawn does not depend on how many points there are
DRAWS_PER_PASS = 10
_LOCK = threading.Lock()  # draws are held by the layers while they are used


def check_samples(samples: int) -> int:
    """A number of draws, or an error."""
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples must be a whole number of at least 1, not {samples!r}")
    return samples


def mixture_of_draws(predict: Callable[[], Predictive], samples: int, seed: int, device: torch.device) -> Predictive:
    """The equal mixture of what a random function predicts, drawn `samples` times.

    The same seed gives the same draws, whatever the points are and wherever they stand in their batch; generators of
    the process go on as if nothing had been drawn.

    Args:
        predict: gives a prediction of the points; what it draws must not have the points' axis.
        samples: how many draws.
        seed: of the draws.
        device: where the points are.
    """
    if torch.compiler.is_exporting():
        raise BEDLError(
            "a prediction that draws at random cannot be exported; 'fast-dropout' has the noise of 'mc-dropout' in "
            "closed form, 'bedl' that of Gaussian weights"
        )

    def one(_: Any) -> Predictive:
        return predict()

    # vmap's convolutions do not know autocast: they would meet weights of another precision
    with _LOCK, seeded(device, seed), torch.autocast(device.type, enabled=False):
        draws = vmap(one, randomness="different", chunk_size=DRAWS_PER_PASS)(torch.empty(samples, device=device))
    return draws.mixed()
