"""Predictions of many points: in batches, and of loaders."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bedl
from bedl.heads.predictive import Predictive


def classes():
    return bedl.BEDL(bedl.bayesianize(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))), bedl.Dirichlet(4))


def counts():
    return bedl.BEDL(bedl.GaussianLinear(3, 2), bedl.Gamma(1))


def ensemble():
    return bedl.Ensemble.of(3, lambda: bedl.BEDL(bedl.GaussianLinear(3, 4), bedl.Normal(2)))


def assert_same(one, other):
    assert type(one) is type(other)
    for name, value in other.outputs().items():
        torch.testing.assert_close(one.outputs()[name], value)


@pytest.mark.parametrize("make", [classes, counts, ensemble])
def test_in_batches_as_at_once(make):
    torch.manual_seed(0)
    method, x = make(), torch.randn(50, 3)
    whole = method.predict(x)
    assert_same(method.predict(x, batch_size=16), whole)
    assert_same(method.predict(DataLoader(TensorDataset(x, torch.zeros(50)), batch_size=16)), whole)
    assert_same(method.predict(iter(x.split(20))), whole)
    assert method.training


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, one, two):
        return self.a(one) + self.b(two)


def test_several_inputs():
    torch.manual_seed(0)
    method = bedl.BEDL(bedl.bayesianize(Two()), bedl.Dirichlet(4))
    x = torch.randn(30, 3), torch.randn(30, 2)
    whole = method.predict(x)
    assert_same(method.predict(x, batch_size=7), whole)
    assert_same(method.predict([(tuple(p[i : i + 10] for p in x), None) for i in range(0, 30, 10)].__iter__()), whole)
    by_name = {"one": x[0], "two": x[1]}
    assert_same(method.predict(by_name, batch_size=7), whole)


def test_what_cannot_be_cut_or_joined():
    method = classes()
    with pytest.raises(ValueError, match="at least 1"):
        method.predict(torch.zeros(3, 3), batch_size=0)
    with pytest.raises(TypeError, match="has its own"):
        method.predict(DataLoader(TensorDataset(torch.zeros(3, 3))), batch_size=2)
    with pytest.raises(ValueError, match="no points"):
        method.predict(iter(()))
    with pytest.raises(ValueError, match="one kind"):
        Predictive.concatenate([method.predict(torch.zeros(3, 3)), counts().predict(torch.zeros(3, 3))])
