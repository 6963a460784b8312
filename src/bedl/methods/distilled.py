"""One Gaussian network for tables, which learns from the rows and from an out-of-fold committee.

The committee (`bedl.estimators.distill`) labels the rows themselves and rows near them; the network learns these
labels and the rows' own as any others. R. Fakoor et al., "Fast, Accurate, and Simple Models for Tabular Data via
Augmented Distillation", NeurIPS 2020; A. Malinin, B. Mlodozeniec, M. Gales, "Ensemble Distribution Distillation",
ICLR 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bedl.heads import head_of
from bedl.heads.predictive import Predictive
from bedl.methods.bedl import BEDL
from bedl.methods.networks import hidden_layers
from bedl.methods.registry import Problem, Training, register
from bedl.nn import GaussianLayer
from bedl.nn.tabular import QuantileCodes
from bedl.objectives import Known, Unknown, WeightPrior
from bedl.objectives.ood_samples import beyond

__all__ = ["SCALES", "Distilled"]


SCALES = torch.tensor([1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0])  # factors on a variance
COPIES = 0.5  # of the points of a batch have a perturbed copy
FIRST_BIAS = {"regression": (0.0, -3.0, -1.0)}  # of f1, f2 and f3: little evidence is missing, and there is noise
WIDTHS = 64, 256


class Distilled(BEDL):
    """A BEDL network whose predictive distribution of targets is a mixture of scales, the same for all points.

        p(y | x) = Σ_k w_k N(y; m(x), s_k · v(x)),   Σ_k w_k s_k = 1

    Args:
        net, head, regularizer: as for `BEDL`.
        scaled: whether there is such a mixture; without it the prediction is the head's.
    """

    log_weights: Tensor
    scales: Tensor

    def __init__(self, net: nn.Module, head: Any, regularizer: Any, scaled: bool):
        super().__init__(net, head, regularizer)
        self.scaled = scaled
        if scaled:
            self.register_buffer("scales", torch.ones(len(SCALES)))
            self.register_buffer("log_weights", torch.full((len(SCALES),), -math.log(len(SCALES))))

    def forward(self, x: Any) -> Predictive:
        prediction: Any = super().forward(x)
        return prediction.scaled(self.scales, self.log_weights) if self.scaled else prediction

    def place(self, x: Tensor) -> Tensor:
        """Where rows are, in units of what is predicted: the last hidden layer's values times their weights' size.

        x: shape (n, d) -> (n, hidden)
        """
        net: Any = self.net
        hidden, body = net[:-1](x), net[-1]
        hidden = body[:-1](hidden)
        weight = body[-1].weight_mean.square() + body[-1].weight_logvar.exp()
        return hidden.loc * weight[: self.head.n_targets].mean(0).sqrt()


def training(n: int) -> Training:
    """Some thousand steps, more with more points, and a warm-up to a high learning rate: no early stopping."""
    batch_size = 128 if n < 3000 else 256
    steps = 2500 + 15 * math.sqrt(n)
    return Training(epochs=max(1, round(steps * batch_size / n)), batch_size=batch_size, lr=0.005, early_stopping=False)


def widths(n: int) -> tuple[int, int]:
    """Of the hidden layers: the power of two next to 2 √n, within bounds."""
    width = 2 ** round(math.log2(2 * math.sqrt(max(n, 1))))
    return (min(max(width, WIDTHS[0]), WIDTHS[1]),) * 2


@register(
    "distilled",
    "one net of quantile codes, distilled from an out-of-fold committee",
    tasks=("regression", "classification"),
    training=training,
    sized=lambda n: {"layers": widths(n)},
    scaling="quartiles",
    distils=True,
)
def distilled(
    problem: Problem,
    known: float = 0.2,
    unknown: float | None = None,
    weight_prior: float = 0.01,
    layers: Sequence[int] = (64, 64),
    bins: Sequence[int] | None = None,
) -> Distilled:
    """The network.

    Args:
        problem: what it is for.
        known: strength of `Known`.
        unknown: strength of `Unknown`; None: 0.2 for targets. For classes 0.05, as some of its copies are rows like
            those of the data, above all where columns have two values. (Held-out quarters of four tables, 0.2 and 0.05:
            led7digit 0.957, 0.888; ionosphere 0.210, 0.183; vowel 0.143, 0.130; phoneme 0.287, 0.291.)
        weight_prior: strength of `WeightPrior`.
        layers: widths of the hidden layers, where the problem does not say.
        bins: of each column; None: those of the problem.
    """
    options = {"noise": "learned"} if problem.task == "regression" else {}
    head = head_of(problem.task, problem.n_targets, **options)
    edges = problem.edges
    if edges is None:  # to be loaded
        edges = [torch.arange(count + 1.0) for count in bins or [0] * problem.input_shape[0]]
    if unknown is None:
        unknown = 0.2 if problem.task == "regression" else 0.05
    codes = QuantileCodes(edges)
    body = hidden_layers(problem, codes.n_outputs, head.n_outputs, default=tuple(layers))
    last = [layer for layer in body.modules() if isinstance(layer, GaussianLayer)][-1]
    with torch.no_grad():
        last.weight_mean.mul_(0.5)  # type: ignore[operator]
        start = torch.full((problem.n_targets, head.n_outputs // problem.n_targets), math.log(5.0))
        if problem.task in FIRST_BIAS:
            start[:] = torch.tensor(FIRST_BIAS[problem.task])
        last.bias.copy_(start.T.reshape(-1))  # type: ignore[operator]
    front = [] if problem.front is None else [problem.front()]
    objective = Known(known) + Unknown(unknown, beyond, COPIES) + WeightPrior(weight_prior)
    return Distilled(nn.Sequential(*front, codes, body), head, objective, problem.task == "regression")
