"""Small models to export, with uncertainty that is not negligible."""

import torch
from torch import nn

from bedl import BEDL, Dirichlet, Ensemble, GaussianLinear, Normal

FEATURES = 4


def body(outputs, features=FEATURES, hidden=8):
    layers = GaussianLinear(features, hidden, init_logvar=-3.0), nn.ReLU(), GaussianLinear(hidden, outputs)
    return nn.Sequential(*layers)


def regression(targets=1, **settings):
    torch.manual_seed(0)
    return BEDL(body(2 * targets), Normal(targets, **settings))


def classification(classes=3, **settings):
    torch.manual_seed(0)
    return BEDL(body(classes), Dirichlet(classes, **settings))


def ensemble(make, size=3):
    return Ensemble.of(size, make)


def inputs(n=200, shape=(FEATURES,), seed=0):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))
