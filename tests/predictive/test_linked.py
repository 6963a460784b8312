"""Predictions of positive and bounded targets against SciPy's integrals, and draws."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bedl.heads.predictive import LinkedPredictive, LogitNormalPredictive, LogNormalPredictive, NormalMixturePredictive

MEANS, VARIANCES, WEIGHTS = [0.2, 1.0], [0.3, 0.6], [0.7, 0.3]


def mixture(kind: type[LinkedPredictive], knee: float = 1.5) -> LinkedPredictive:
    means, variances = (torch.tensor(part, dtype=torch.float64)[None, None] for part in (MEANS, VARIANCES))
    parts = (0.5 * variances, 0.2 * variances, 0.3 * variances)
    base = NormalMixturePredictive(means, *parts, torch.tensor([[WEIGHTS]], dtype=torch.float64).log())
    return kind.of(base, torch.tensor([knee]))


@pytest.mark.parametrize("kind", [LogNormalPredictive, LogitNormalPredictive])
def test_density_moments_and_quantiles(kind: type[LinkedPredictive]) -> None:
    p = mixture(kind)
    top = 60.0 if kind is LogNormalPredictive else 1.0

    def density(y: float) -> float:
        return float(p.log_prob(torch.tensor([[y]], dtype=torch.float64)).exp())

    points = [1e-9, 0.5, 0.999] if top == 1 else [1e-9, 1.0, np.exp(1.5), 20]

    def integral(f: object) -> float:
        ends = [*points, top]
        return sum(integrate.quad(f, a, b, limit=200)[0] for a, b in itertools.pairwise(ends))  # type: ignore

    assert integral(density) == pytest.approx(1, abs=1e-6)
    mean = integral(lambda y: y * density(y))
    assert p.mean.item() == pytest.approx(mean, rel=1e-3)
    assert p.variance.item() == pytest.approx(integral(lambda y: (y - mean) ** 2 * density(y)), rel=5e-3)
    assert p.entropy.item() == pytest.approx(
        integral(lambda y: -density(y) * np.log(max(density(y), 1e-300))), rel=1e-3
    )
    assert (p.data + p.distributional + p.model).item() == pytest.approx(p.variance.item())
    for q in (0.05, 0.5, 0.95):
        assert p.cdf(p.quantile(q)).item() == pytest.approx(q, abs=1e-9)
    outside = torch.tensor([[-0.1]], dtype=torch.float64)
    assert p.log_prob(outside).item() == -np.inf
    assert p.cdf(outside).item() == 0
    draws = p.sample(200_000, torch.Generator().manual_seed(0)).flatten()
    assert draws.mean().item() == pytest.approx(mean, rel=0.01)
    torch.testing.assert_close(p.outputs()["mean"], p.mean)


def test_below_the_knee_it_is_scipys_log_normal() -> None:
    p = mixture(LogNormalPredictive, knee=50.0)
    parts = [stats.lognorm(v**0.5, scale=np.exp(m)) for m, v in zip(MEANS, VARIANCES, strict=True)]
    for y in (0.1, 1.0, 7.0):
        expected = np.log(sum(w * part.pdf(y) for w, part in zip(WEIGHTS, parts, strict=True)))
        assert p.log_prob(torch.tensor([[y]], dtype=torch.float64)).item() == pytest.approx(expected)
    mean = sum(w * part.mean() for w, part in zip(WEIGHTS, parts, strict=True))
    assert p.mean.item() == pytest.approx(mean, rel=1e-6)


def test_inverse_undoes_the_link() -> None:
    u = torch.linspace(-4, 4, 9, dtype=torch.float64)[:, None, None]
    for kind in (LogNormalPredictive, LogitNormalPredictive):
        p = mixture(kind)
        torch.testing.assert_close(p.inverse(p.link(u)), u)
        slope = torch.autograd.functional.jacobian(lambda v, p=p: p.link(v).sum(), u)
        torch.testing.assert_close(p.log_slope(u), slope.log())
