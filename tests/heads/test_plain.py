"""Heads of ordinary networks against PyTorch's own losses, and against long sampling where outputs are uncertain."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal

from bedl._utils.errors import BEDLError
from bedl.heads import ExpectedMeanVariance, ExpectedSoftmax, MeanVariance, Softmax
from bedl.moments import Moments
from bedl.objectives import Batch


def test_softmax_is_cross_entropy() -> None:
    f, y = 3 * torch.randn(50, 4), torch.randint(4, (50,))
    head = Softmax(4)
    torch.testing.assert_close(-head.log_marginal(f, y), F.cross_entropy(f, y, reduction="none"))
    p = head(f)
    torch.testing.assert_close(p.data, torch.distributions.Categorical(logits=f).entropy())
    assert float(p.model.max()) < 1e-5
    assert float(p.vacuity.max()) == 0
    with pytest.raises(BEDLError, match="no prior"):
        head.kl(f)


LABELS = {
    "ignored": {"ignore_index": 255},
    "weighted": {"class_weight": torch.tensor([1.0, 2.0, 0.5])},
    "smoothed": {"label_smoothing": 0.2},
    "soft": {},
}


@pytest.mark.parametrize("name", LABELS)
def test_maps_are_scored_as_cross_entropy_scores_them(name: str) -> None:
    """Also where the outputs are Moments that do not vary, by another route."""
    f, y = 2 * torch.randn(4, 3, 5, 6), torch.randint(3, (4, 5, 6))
    options = {"weight" if key == "class_weight" else key: value for key, value in LABELS[name].items()}
    if name == "ignored":
        y[:, 2] = 255
    if name == "soft":
        y = torch.softmax(torch.randn(4, 3, 5, 6), 1)
    head = Softmax(3, dim=1, **LABELS[name])
    labels, weight = head.counted(y, None)
    batch = Batch(f, labels, n_train=4, weight=weight)
    truth = F.cross_entropy(f, y, **options)
    torch.testing.assert_close(-batch.mean(head.log_marginal(f, labels)), truth)
    certain = Moments(f, torch.zeros_like(f))
    torch.testing.assert_close(-batch.mean(head.log_marginal(certain, labels)), truth, rtol=1e-3, atol=1e-3)
    assert head(f).probabilities.shape == (4, 5, 6, 3)


@pytest.mark.parametrize("kind", [MeanVariance, ExpectedMeanVariance])
def test_maps_of_numbers_are_pixels(kind: type[MeanVariance]) -> None:
    f, y = Moments(torch.randn(4, 4, 5, 6), torch.rand(4, 4, 5, 6)), torch.randn(4, 2, 5, 6)
    dense, flat = kind(2, dim=1), kind(2)
    last = Moments(f.loc.movedim(1, -1), f.variance.movedim(1, -1))
    torch.testing.assert_close(dense.log_marginal(f, y), flat.log_marginal(last, y.movedim(1, -1)))
    assert dense(f).mean.shape == (4, 5, 6, 2)


def test_expected_softmax_of_maps() -> None:
    f, y = Moments(torch.randn(4, 3, 5), torch.rand(4, 3, 5)), torch.randint(3, (4, 5))
    last = Moments(f.loc.movedim(1, -1), f.variance.movedim(1, -1))
    dense, flat = ExpectedSoftmax(3, dim=1), ExpectedSoftmax(3)
    torch.testing.assert_close(dense.expected_log_prob(f, y), flat.expected_log_prob(last, y))


def test_softmax_of_uncertain_logits_by_sampling() -> None:
    m, v = torch.tensor([[1.0, 0.0, -1.0], [0.0, 0.0, 3.0]]), torch.tensor([[4.0, 1.0, 0.2], [9.0, 0.0, 1.0]])
    p = Softmax(3)(Moments(m, v))
    draws = torch.softmax(m + v.sqrt() * torch.randn(200_000, 2, 3, generator=torch.Generator().manual_seed(0)), -1)
    given = -(draws * draws.log()).sum(-1)
    for ours, values in ((p.probabilities, draws), (p.data, given)):
        error = 5 * values.std(0) / len(values) ** 0.5 + 1e-3
        assert bool(((ours - values.mean(0)).abs() < error).all())
    torch.testing.assert_close(p.spread, draws.var(0), atol=2e-3, rtol=0.02)


@pytest.mark.parametrize("noise", ["varying", "shared", "fixed"])
def test_mean_and_variance_is_the_normal_likelihood(noise: str) -> None:
    head = MeanVariance(2, noise=noise, precision=4.0)
    f, y = torch.randn(30, head.n_outputs), torch.randn(30, 2)
    variance = f[:, 2:].exp() if noise == "varying" else torch.full((30, 2), 0.25)
    ours, truth = head.log_marginal(f, y), Normal(f[:, :2], variance.sqrt()).log_prob(y).sum(-1)
    # what a network says of the noise is bent towards its bound, 10: log 10 − softplus(log 10 − f)
    bent = 1 / (1 / variance + 0.1) if noise == "varying" else variance
    torch.testing.assert_close(ours, Normal(f[:, :2], bent.sqrt()).log_prob(y).sum(-1), rtol=1e-4, atol=1e-4)
    assert noise == "varying" or torch.allclose(ours, truth)
    torch.testing.assert_close(head(f).log_prob(y), ours)


def test_uncertain_means_add_to_the_noise() -> None:
    head = MeanVariance(1, noise="fixed", precision=2.0)
    f, y = Moments(torch.zeros(4, 1), torch.full((4, 1), 1.5)), torch.tensor([0.0, 1.0, -1.0, 2.0])
    torch.testing.assert_close(head.log_marginal(f, y), Normal(0.0, 2.0**0.5).log_prob(y))
    p = head(f)
    assert (p.data[0].item(), p.distributional[0].item(), p.model[0].item()) == (0.5, 0.0, 1.5)


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="noise must be"):
        MeanVariance(1, noise="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive precision"):
        MeanVariance(1, precision=0.0)
    with pytest.raises(TypeError, match="floating point"):
        MeanVariance(1).log_marginal(torch.zeros(2, 2), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="needs 3 network outputs"):
        Softmax(3)(torch.zeros(2, 4))
