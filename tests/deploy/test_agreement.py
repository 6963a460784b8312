"""An export is compared with its model on as many points, and so many at a time, as their size allows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import bedl
from bedl.deploy.onnx import points_around
from bedl.deploy.prepare import WORK, ExportOptions, Prepared, prepare
from tests.deploy.models import inputs


def prepared(size: int, channels: int, dense: bool = False) -> Prepared:
    torch.manual_seed(0)
    pool = [] if dense else [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 2)]
    net = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), *pool)
    head = bedl.Normal(channels // 2, dim=1) if dense else bedl.Normal(1)
    return prepare(bedl.BEDL(bedl.bayesianize(net), head), ExportOptions(example=inputs(3, (1, size, size))))


@pytest.mark.parametrize(
    "size, channels, dense, points, rows",
    [
        pytest.param(4, 4, False, 256, 256, id="small"),
        pytest.param(64, 64, False, 64, 16, id="large"),
        pytest.param(256, 64, False, 8, 1, id="huge"),
        pytest.param(4, 4, True, 8, 256, id="maps"),
    ],
)
def test_large_points_are_few_and_few_at_a_time(size, channels, dense, points, rows):
    model = prepared(size, channels, dense)
    assert model.numbers == channels * size**2  # that the convolution makes
    assert model.rows == rows
    assert rows == 1 or rows * model.numbers <= WORK
    assert len(points_around(model)[0]) == points


def test_in_parts_as_at_once():
    model, seen = prepared(64, 64), []
    model.module.register_forward_hook(lambda module, args, result: seen.append(len(args[0])))
    x = inputs(40, (1, 64, 64))
    found = model.run(x)
    assert seen == [2, 16, 16, 8]  # the first for the size
    with torch.no_grad():
        at_once = model.module(x)
    for name, values in at_once.items():
        np.testing.assert_allclose(found[name], values.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)
