"""Networks run as one say what each says alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import bedl
from bedl import GaussianLinear, Moments
from bedl.nn import correct_variances
from bedl.nn.fused import forward_of_many
from bedl.nn.tabular import PeriodicEmbedding, SkipLinear, Standardize
from tests.closeness import assert_same_up_to_rounding


def mlp(inputs: int = 4) -> nn.Sequential:
    return nn.Sequential(
        GaussianLinear(inputs, 9), nn.ReLU(), GaussianLinear(9, 7, bias=False), nn.Tanh(), GaussianLinear(7, 3)
    )


def table(size: int) -> nn.Sequential:
    columns = PeriodicEmbedding(4, size=size)
    return nn.Sequential(
        Standardize(torch.randn(4), torch.rand(4) + 0.5), SkipLinear(columns, mlp(columns.n_outputs), 3)
    )


@pytest.mark.parametrize("make", [mlp, lambda: table(3), lambda: table(0)])
@pytest.mark.parametrize("random", [False, True])
def test_as_each_alone(make: Callable[[], nn.Module], random: bool) -> None:
    nets = [make().double() for _ in range(3)]
    for net in nets:
        for parameter in net.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    x = torch.randn(6, 4, dtype=torch.float64)
    inputs = Moments(x, torch.rand_like(x)) if random else x
    correct_variances(nets[1], x, draws=20)  # one of them has factors of its own
    for block in (bedl.cached_weights(nets[0]), torch.no_grad()):
        with block:
            found = forward_of_many(nets, inputs)
            assert found is not None
            for one, net in zip(found, nets, strict=True):
                alone = net(inputs)
                assert_same_up_to_rounding(one.loc, alone.loc)
                assert_same_up_to_rounding(one.variance, alone.variance)


def test_what_is_not_known() -> None:
    x = torch.randn(6, 4)
    assert forward_of_many([nn.Sequential(GaussianLinear(4, 2), nn.BatchNorm1d(2))], x) is None
    assert forward_of_many([GaussianLinear(4, 2, variances="output")], x) is None
    net = mlp()
    with bedl.sampled(net):
        assert forward_of_many([net], x) is None
    assert forward_of_many([net], x[0]) is None
