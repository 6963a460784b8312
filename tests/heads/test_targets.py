"""Targets as loaders have them: soft, smoothed, weighted, ignored, and along any dimension. Truth: torch's own loss."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bedl
from bedl.heads import Beta, Dirichlet, Gamma, Normal, Sampled
from bedl.methods import Batch
from bedl.moments import Moments

G = torch.Generator().manual_seed(0)
LOGITS = torch.randn(5, 3, 4, 2, generator=G)  # (n, C, H, W)
LABELS = torch.randint(0, 3, (5, 4, 2), generator=G)
SHARES = torch.rand(5, 3, 4, 2, generator=G).softmax(1)
WEIGHT = torch.tensor([1.0, 2.0, 0.5])
IGNORED = torch.where(torch.rand(LABELS.shape, generator=G) < 0.3, 255, LABELS)

# what the head is told, what the loss of torch is told, labels
CASES = {
    "channels first": ({}, {}, LABELS),
    "smoothed": ({"label_smoothing": 0.1}, {"label_smoothing": 0.1}, LABELS),
    "soft": ({}, {}, SHARES),
    "soft and smoothed": ({"label_smoothing": 0.2}, {"label_smoothing": 0.2}, SHARES),
    "ignored": ({"ignore_index": 255}, {"ignore_index": 255}, IGNORED),
    "weighted": ({"class_weight": WEIGHT}, {"weight": WEIGHT}, LABELS),
    "weighted and ignored": (
        {"class_weight": WEIGHT.tolist(), "ignore_index": 255},
        {"weight": WEIGHT, "ignore_index": 255},
        IGNORED,
    ),
}


class Given(nn.Module):
    """A network that says what it is given."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return Moments(x + self.shift, torch.zeros_like(x))


@pytest.mark.filterwarnings("ignore:BEDL. no layer")
@pytest.mark.parametrize("name", CASES)
def test_the_loss_of_known_outputs_is_cross_entropy(name):
    of_head, of_torch, labels = CASES[name]
    method = bedl.BEDL(Given(), Dirichlet(3, dim=1, **of_head), regularizer=None)
    loss = method.loss(Batch(LOGITS, labels, n_train=5))
    torch.testing.assert_close(loss.detach(), F.cross_entropy(LOGITS, labels, **of_torch), rtol=2e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:BEDL. no layer")
def test_places_have_weights_and_a_mean_of_nothing_is_0():
    method = bedl.BEDL(Given(), Dirichlet(3, dim=1, ignore_index=255), regularizer=None)
    weight = torch.rand(LABELS.shape, generator=torch.Generator().manual_seed(1))
    loss = method.loss(Batch(LOGITS, LABELS, 5, weight))
    each = F.cross_entropy(LOGITS, LABELS, reduction="none")
    torch.testing.assert_close(loss.detach(), (each * weight).sum() / weight.sum(), rtol=2e-4, atol=1e-5)
    nothing = method.loss(Batch(LOGITS, torch.full_like(LABELS, 255), 5))
    nothing.backward()
    assert nothing == 0
    assert method.net.shift.grad == 0


def outputs(channels):
    g = torch.Generator().manual_seed(2)
    size = (2, channels, 3, 2)
    return Moments(torch.randn(size, generator=g), torch.rand(size, generator=g))


HEADS = {
    "Dirichlet": (lambda dim: Dirichlet(3, dim=dim), torch.randint(0, 3, (2, 3, 2))),
    "Normal": (lambda dim: Normal(2, dim=dim), torch.randn(2, 2, 3, 2)),
    "Beta": (lambda dim: Beta(2, dim=dim), torch.randint(0, 2, (2, 2, 3, 2))),
    "Gamma": (lambda dim: Gamma(2, dim=dim), torch.randint(0, 5, (2, 2, 3, 2))),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_read_any_dimension(name):
    """With outputs and targets moved to the end, the head for the last dimension says the same."""
    make, y = HEADS[name]
    first, last = make(1), make(-1)
    f = outputs(first.n_outputs)
    moved, y_last = f.movedim(1, -1), y if y.ndim == 3 else y.movedim(1, -1)
    for own, other in (
        (first.log_marginal(f, y), last.log_marginal(moved, y_last)),
        (first.kl(f, y), last.kl(moved, y_last)),
        (first(f).mean, last(moved).mean),
        (first(f).variance, last(moved).variance),
        (first.log_ignorance(f), last.log_ignorance(moved)),
        (torch.stack(first.log_marginal_and_kl(f, y)), torch.stack(last.log_marginal_and_kl(moved, y_last))),
    ):
        torch.testing.assert_close(own, other)
    drawn = []
    for head, values in ((first, f), (last, moved)):
        torch.manual_seed(0)
        drawn.append((Sampled(head)(values).mean, Sampled(head).kl(values)))
    torch.testing.assert_close(*drawn)


def test_soft_labels_of_a_class_are_that_class():
    head, f, y = Dirichlet(3), outputs(3).movedim(1, -1), torch.randint(0, 3, (2, 3, 2))
    soft = F.one_hot(y, 3).float()
    for evidence in ("all", "misleading"):
        torch.testing.assert_close(head.kl(f, soft, evidence), head.kl(f, y, evidence))
    torch.testing.assert_close(head.log_marginal(f, soft), head.log_marginal(f, y), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(head(f).log_prob(soft), head(f).log_prob(y))


REFUSED = {
    "one-hot integers": (Dirichlet(3), F.one_hot(torch.tensor([0, 1]), 3), "argmax"),
    "no shares": (Dirichlet(3), torch.full((2, 3), 0.9), "add up to 1"),
    "unknown label": (Dirichlet(3), torch.tensor([0, -100]), "ignore_index=-100"),
    "channels": (Dirichlet(3), torch.zeros(2), "long"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_labels_that_are_none_are_refused(name):
    head, y, words = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=words):
        head.log_marginal(torch.zeros(2, 3), y)


def test_what_else_is_refused():
    with pytest.raises(ValueError, match="dim=1"):
        Dirichlet(3)(outputs(3))
    with pytest.raises(ValueError, match="weigh points"):
        Dirichlet(3, ignore_index=0).counted(torch.zeros(2, 3), None)
    for options in ({"label_smoothing": 1.0}, {"class_weight": [1.0]}, {"class_weight": [1.0, -1.0, 0.0]}):
        with pytest.raises(ValueError, match="Dirichlet: "):
            Dirichlet(3, **options)
    assert repr(Dirichlet(3, dim=1, ignore_index=255)) == "Dirichlet(n_classes=3, dim=1, ignore_index=255)"


def test_predictions_of_places_in_chunks_are_those_of_one_pass(monkeypatch):
    from bedl.heads import dirichlet

    f = outputs(3).movedim(1, -1)
    whole = Dirichlet(3)(f)
    monkeypatch.setattr(dirichlet, "MAX_NUMEL_ON_CPU", 1)
    big = Moments(f.loc.repeat(1, 3, 4, 1), f.variance.repeat(1, 3, 4, 1))
    parts = Dirichlet(3)(big)
    torch.testing.assert_close(parts.probabilities[:, :3, :2], whole.probabilities)
    torch.testing.assert_close(parts.data[:, 3:6, 2:4], whole.data)
