"""BEDL that knows where it has seen nothing: evidence asked for on the data and off it.

Gaussian weights and an evidential head as in Haussmann et al., AABI 2020, with learned noise. The likelihood is blind
to the amount of evidence, so two terms ask for it: `Known` on the data, `Unknown` on copies that are no data; a
divergence of the weights from a standard normal keeps their variances alive. Columns of tables are bounded and
embedded.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from bedl.heads import head_of
from bedl.methods.bedl import BEDL
from bedl.methods.images import are_images, for_images
from bedl.methods.networks import gaussian_network, hidden_layers
from bedl.methods.registry import Problem, Training, register
from bedl.nn import GaussianLayer
from bedl.nn.columns import Columns, WithShortcut
from bedl.objectives import Known, Unknown, WeightPrior
from bedl.objectives.perturbations import IMAGE, Perturbation, around_and_beyond

__all__: list[str] = []

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
        problem: what it is for.
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
    columns = Columns(problem.input_shape[0], size=embedding, frequency=frequency) if table else None
    net = gaussian_network(problem, head.n_outputs) if columns is None else _behind(columns, problem, head.n_outputs)
    share = HALF if table else 1.0
    if weight_prior is None:
        weight_prior = STRONG_PRIOR if table and problem.input_shape[0] > FEW_COLUMNS else WEAK_PRIOR
    return BEDL(net, head, Known(known) + Unknown(unknown, _copies(problem), share) + WeightPrior(weight_prior))


def _copies(problem: Problem) -> Perturbation | None:
    if are_images(problem):
        return for_images(IMAGE, problem)
    return around_and_beyond if len(problem.input_shape) == 1 else None  # None: what is to be done is said later


def _behind(columns: Columns, problem: Problem, n_outputs: int) -> nn.Sequential:
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
    return nn.Sequential(*front, WithShortcut(columns, body, n_outputs))
