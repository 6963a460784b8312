"""One Gaussian network for tables, which learns from the rows and from an out-of-fold committee.

The committee (`bedl.estimators.distill`) labels the rows themselves and rows near them; the network learns these
labels and the rows' own as any others. R. Fakoor et al., "Fast, Accurate, and Simple Models for Tabular Data via
Augmented Distillation", NeurIPS 2020; A. Malinin, B. Mlodozeniec, M. Gales, "Ensemble Distribution Distillation",
ICLR 2020.
"""

from __future__ import annotations

import dataclasses
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
STEPS = 2000  # of training, at least
COPIES = 0.5  # of the points of a batch have a perturbed copy
FIRST_BIAS = {"regression": (0.0, -3.0, -1.0)}  # of f1, f2 and f3: little evidence is missing, and there is noise
WIDTH, WIDER, MANY_ROWS = 128, 256, 10_000  # of hidden layers, and of those for many rows


class Distilled(BEDL):
    """A BEDL network that falls back on the prior outside the range of the data, by a share 1 − exp(−outside).

    Of classes alpha_0 falls to one observation, as in `Unsure`, spread evenly; of targets the variance of lambda rises
    to the prior's. Means and noise of targets keep within what they are near the data (`least_mean`, `most_mean`,
    `most_noise`): elsewhere nothing says what they are. The predictive distribution of targets is a mixture of scales:

        p(y | x) = Σ_k w_k N(y; m(x), s_k · v(x))

    Args:
        net, head, regularizer: as for `BEDL`.
        scaled: whether there is such a mixture; without it the prediction is the head's.
    """

    log_weights: Tensor
    scales: Tensor
    least_mean: Tensor
    most_mean: Tensor
    most_noise: Tensor

    def __init__(self, net: nn.Module, head: Any, regularizer: Any, scaled: bool):
        super().__init__(net, head, regularizer)
        self.scaled = scaled
        if scaled:
            self.register_buffer("scales", torch.ones(len(SCALES)))
            self.register_buffer("log_weights", torch.full((len(SCALES),), -math.log(len(SCALES))))
            for name, limit in (("least_mean", -math.inf), ("most_mean", math.inf), ("most_noise", math.inf)):
                self.register_buffer(name, torch.full((head.n_targets,), limit))

    def forward(self, x: Any) -> Predictive:
        outputs: Any = self.outputs(x)
        known = torch.exp(-self.outside(x)).unsqueeze(-1)
        if not self.scaled:
            return self.head(outputs * known - (1 - known) * math.log(self.head.n_outputs))
        head: Any = self.head
        p: Any = head(outputs)
        limited = dataclasses.replace(
            p,
            mean=torch.minimum(torch.maximum(p.mean, self.least_mean), self.most_mean),
            data=torch.minimum(p.data, self.most_noise),
            distributional=p.distributional * known + (1 - known) / head.prior_precision,
        )
        return limited.scaled(self.scales, self.log_weights)

    def outside(self, x: Any) -> Tensor:
        """How far rows lie outside the range of the data, see `QuantileCodes.outside`. shape: (n,)"""
        net: Any = self.net
        *front, codes, _ = net
        for module in front:
            x = module(x)
        return codes.outside(x)

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
    steps = STEPS + 15 * math.sqrt(n)
    return Training(epochs=max(1, round(steps * batch_size / n)), batch_size=batch_size, lr=0.005, early_stopping=False)


def widths(n: int) -> tuple[int, int]:
    """Of the hidden layers."""
    return (WIDTH if n < MANY_ROWS else WIDER,) * 2


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
    unknown: float = 0.02,
    weight_prior: float = 0.003,
    layers: Sequence[int] = (WIDTH, WIDTH),
    bins: Sequence[int] | None = None,
) -> Distilled:
    """The network.

    Args:
        problem: what it is for.
        known: strength of `Known`.
        unknown: strength of `Unknown`.
        weight_prior: strength of `WeightPrior`.
        layers: widths of the hidden layers, where the problem does not say.
        bins: of each column; None: those of the problem.
    """
    options = {"noise": "learned"} if problem.task == "regression" else {}
    head = head_of(problem.task, problem.n_targets, **options)
    edges = problem.edges
    if edges is None:  # to be loaded
        edges = [torch.arange(count + 1.0) for count in bins or [1] * problem.input_shape[0]]
    codes = QuantileCodes(edges)
    body = hidden_layers(problem, codes.n_outputs, head.n_outputs, default=tuple(layers))
    last: Any = [layer for layer in body.modules() if isinstance(layer, GaussianLayer)][-1]
    with torch.no_grad():
        last.weight_mean.mul_(0.5)
        start = torch.full((problem.n_targets, head.n_outputs // problem.n_targets), math.log(5.0))
        if problem.task in FIRST_BIAS:
            start[:] = torch.tensor(FIRST_BIAS[problem.task])
        last.bias.copy_(start.T.reshape(-1))
    front = [] if problem.front is None else [problem.front()]
    objective = Known(known) + Unknown(unknown, beyond, COPIES) + WeightPrior(weight_prior)
    return Distilled(nn.Sequential(*front, codes, body), head, objective, problem.task == "regression")
