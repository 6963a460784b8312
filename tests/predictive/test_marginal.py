"""A prediction averaged over the values of an unknown input, against draws and entropies computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bedl.evaluation import tasks
from bedl.heads import Beta, Dirichlet, Gamma, Head, Normal
from bedl.moments import Moments


@pytest.mark.parametrize("head", [Normal(2), Dirichlet(3), Beta(2)])
def test_parts_add_up_and_the_rest_is_distributional(head: Head) -> None:
    torch.manual_seed(0)
    f = Moments(torch.randn(500 * 4, head.n_outputs), 0.01 + 0.1 * torch.rand(500 * 4, head.n_outputs))
    each = head(f)._map(lambda leaf: leaf.unflatten(0, (500, 4)))
    found = each.marginal()
    assert len(found) == 4
    torch.testing.assert_close(found.mean, each.mean.mean(0), rtol=2e-2, atol=2e-2)
    for name in ("data", "model"):
        torch.testing.assert_close(getattr(found, name), getattr(each, name).mean(0), rtol=5e-2, atol=5e-3)
    more = found.distributional - each.distributional.mean(0)
    assert (more > 0).all()
    torch.testing.assert_close(found.total, found.data + found.distributional + found.model)
    by_name = {name: value.numpy() for name, value in each.outputs().items()}
    exported = tasks.get(found.task).marginal(by_name)
    for name, value in found.outputs().items():
        np.testing.assert_allclose(exported[name], value.numpy(), rtol=5e-2, atol=5e-3, err_msg=name)


def test_rates_of_counts_keep_their_mean_and_variance() -> None:
    torch.manual_seed(0)
    each = Gamma(1)(Moments(torch.randn(500 * 4, 2), 0.1))._map(lambda leaf: leaf.unflatten(0, (500, 4)))
    found = each.marginal()
    torch.testing.assert_close(found.mean, each.mean.mean(0), rtol=1e-2, atol=0)
    torch.testing.assert_close(found.variance, each.variance.mean(0) + each.mean.var(0), rtol=2e-2, atol=0)


def test_a_normal_has_the_moments_of_the_mixture() -> None:
    torch.manual_seed(0)
    each = Normal(1)(Moments(torch.randn(32 * 3, 2), 0.1))._map(lambda leaf: leaf.unflatten(0, (32, 3)))
    draws = each.sample(20_000).flatten(0, 1)
    found = each.marginal()
    torch.testing.assert_close(found.mean, draws.mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close(found.variance, draws.var(0), rtol=0.03, atol=0)
