"""The race in the form that exported graphs have: against the other forms, and at the ends of what is possible."""

from __future__ import annotations

import pytest
import torch

from bedl.heads.integrals import expected_data_entropy, export, log_mean_softmax, softmax_spread
from tests.heads.oracles import logits


@pytest.mark.parametrize(
    "s, tolerance", [(0.01, 3e-5), (0.3, 3e-5), (1.0, 1e-4), (3.0, 5e-4), (8.0, 1e-3)], ids=lambda x: str(x)
)
@pytest.mark.parametrize("classes", [2, 5, 20])
def test_the_same_as_elsewhere(classes: int, s: float, tolerance: float) -> None:
    m, v = logits(classes, 40, scale=2.0, s=s, spread=4, seed=7)
    m, v = (m - 1).float().view(8, 5, classes), v.float().view(8, 5, classes)  # dense outputs have places
    log_p = log_mean_softmax(m, v)
    torch.testing.assert_close(export.log_mean_softmax(m, v, 16, 6), log_p, rtol=1e-4, atol=1e-5)
    variance, given_f, data = export.parts(m, v, log_p)
    truth_variance, truth_given_f = softmax_spread(m, v, log_p)
    torch.testing.assert_close(variance, truth_variance, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(given_f, truth_given_f, rtol=0, atol=1e-4)
    torch.testing.assert_close(data, expected_data_entropy(m, v), rtol=0, atol=tolerance)


@pytest.mark.parametrize("v", [0.0, 1e-20, 1.0, 1e4, 1e12])
@pytest.mark.parametrize("m", [-1e4, -50.0, 0.0, 50.0, 1e4])
def test_finite_and_within_bounds_anywhere(m: float, v: float) -> None:
    means = torch.tensor([[m, 0.0, -m], [m, m, m], [m, 0.0, 0.0]])
    for variances in (torch.full_like(means, v), torch.tensor([v, 0.0, 1.0]).expand(3, 3)):
        log_p = export.log_mean_softmax(means, variances, 16, 6)
        variance, given_f, data = export.parts(means, variances, log_p)
        torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(3), rtol=0, atol=1e-5)
        for part, most in ((variance, 0.25), (given_f, 1.0987), (data, given_f)):
            assert bool((part.isfinite() & (part >= 0) & (part <= most)).all())
