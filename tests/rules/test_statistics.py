"""Variances, lengths and soft maxima: quadratic forms by a rule that integrates them exactly, the rest by sampling."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bedl import Moments, UnsupportedOperationError
from tests.rules.test_approximations import normals, sampled_moments

QUADRATIC = {
    "var": lambda x: x.var(),
    "var, one axis": lambda x: torch.var(x, 1),
    "var, biased, kept": lambda x: x.var(-1, unbiased=False, keepdim=True),
    "var, by position": lambda x: torch.var(x, 0, False, True),
    "var, all, biased": lambda x: x.var(False),
    "var, correction": lambda x: torch.var(x, dim=(0, 1), correction=1.5),
    "var_mean": lambda x: torch.var_mean(x, 1, correction=0)[0],
    "mean of var_mean": lambda x: torch.var_mean(x, 0, keepdim=True)[1],
    "prod": lambda x: torch.prod(x, 1),
    "prod, kept": lambda x: x.prod(-1, True),
    "prod of all": lambda x: x.prod(),
    "cumprod": lambda x: x.cumprod(1),
    "cumprod, other axis": lambda x: torch.cumprod(x, 0),
}


@pytest.mark.parametrize("name", QUADRATIC)
def test_quadratic_forms_are_exact(name):
    """Three Gauss–Hermite nodes for each entry integrate polynomials of degree 5, and a square has degree 4."""
    function, x = QUADRATIC[name], normals(2, 3, scale=0.8)
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    places = np.array(list(itertools.product(range(3), repeat=6)))
    mass = torch.tensor(np.prod(weights[places] / weights.sum(), axis=1))
    at = x.loc + x.variance.sqrt() * torch.tensor(nodes[places]).view(-1, 2, 3)
    values = torch.func.vmap(function)(at)
    mass = mass.view(-1, *[1] * (values.dim() - 1))
    mean = (mass * values).sum(0)
    y = function(x)
    torch.testing.assert_close(y.loc, mean)
    torch.testing.assert_close(y.variance, (mass * (values - mean).square()).sum(0))


OTHERS = {
    "std": lambda x: x.std(-1),
    "norm": lambda x: x.norm(dim=-1),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "std_mean": lambda x: torch.std_mean(x, -1)[0],
    "cosine": lambda x: F.cosine_similarity(x, torch.linspace(-1, 1, 64, dtype=x.dtype), dim=-1),
    "cosine of two": lambda x: F.cosine_similarity(x[:2], x[2:], dim=-1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_close_to_sampling(name):
    """64 entries whose spread comes half from their means and half from their variances."""
    x = normals(4, 64, scale=1.0)
    mean, variance = sampled_moments(OTHERS[name], x, 20_000)
    y = OTHERS[name](x)
    assert ((y.loc - mean) / variance.sqrt()).abs().max() < 0.1
    assert (y.variance.sqrt() / variance.sqrt() - 1).abs().max() < (0.12 if name == "logsumexp" else 0.08)


def test_a_layer_norm_by_hand_is_close_to_the_one_with_a_rule():
    x = normals(4, 64, scale=1.0)
    y = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, unbiased=False) + 1e-5)
    expected = F.layer_norm(x, (64,))
    assert (y.loc - expected.loc).abs().max() < 0.05
    assert (y.variance.sqrt() / expected.variance.sqrt() - 1).abs().mean() < 0.1


def test_plain_answers():
    x = Moments(torch.tensor([1.0, float("nan"), float("inf")]), 1.0)
    assert torch.isnan(x).tolist() == [False, True, False]
    assert x.isinf().tolist() == [False, False, True]
    assert torch.isfinite(x).tolist() == [True, False, False]


@pytest.mark.parametrize("call", [lambda x: x.norm(p=1), lambda x: torch.norm(x, p=float("inf"), dim=1)])
def test_other_lengths_are_refused(call):
    with pytest.raises(UnsupportedOperationError, match="Euclidean"):
        call(normals(2, 3))


def test_logaddexp_is_close_to_sampling():
    x, y = normals(4, 5, scale=0.8), normals(5, scale=0.8, seed=1)
    z = torch.logaddexp(x, y)
    pair = Moments(torch.stack([x.loc, y.loc.expand(4, 5)]), torch.stack([x.variance, y.variance.expand(4, 5)]))
    mean, variance = sampled_moments(lambda t: torch.logaddexp(t[0], t[1]), pair, 40_000)
    assert ((z.loc - mean) / variance.sqrt()).abs().max() < 5 / 200
    assert (z.variance / variance - 1).abs().max() < 0.04
    known = torch.logaddexp(Moments(x.loc, 0.0), y.loc)
    torch.testing.assert_close(known.loc, torch.logaddexp(x.loc, y.loc))
    assert not known.variance.any()


def test_what_is_no_number_is_replaced_by_one_that_is_known():
    inf, nan = float("inf"), float("nan")
    loc, variance = torch.tensor([1.0, nan, inf, -inf, 2.0]), torch.tensor([0.5, 1.0, 1.0, 1.0, nan])
    y = torch.nan_to_num(Moments(loc, variance), nan=7.0, posinf=8.0, neginf=9.0)
    assert torch.equal(y.loc, torch.tensor([1.0, 7.0, 8.0, 9.0, 7.0]))
    assert torch.equal(y.variance, torch.tensor([0.5, 0.0, 0.0, 0.0, 0.0]))
