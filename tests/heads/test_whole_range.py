"""Heads far out: finite values and gradients wherever the network's outputs may stray to."""

import pytest
import torch

from bedl import Moments
from bedl.heads import Dirichlet, Normal


def outputs(rows, columns, largest):
    """Means of either sign, and variances, some 0, of all magnitudes up to 10^largest. shapes: (rows, columns)"""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(4, rows, columns, generator=generator, dtype=torch.float64)
    lowest = torch.where(torch.arange(rows) < rows // 2, -3.0, -44.0)[:, None]
    loc, variance = 10 ** (lowest + (largest - lowest) * uniform[:2])
    loc = torch.where(uniform[2] < 0.5, -loc, loc)
    return loc.float().requires_grad_(), torch.where(uniform[3] < 0.1, 0.0, variance).float().requires_grad_()


def assert_finite(value, loc, variance):
    assert torch.isfinite(value).all()
    for grad in torch.autograd.grad(value.sum(), [loc, variance], retain_graph=True):
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("what", ["log_marginal", "kl", "misleading", "both", "prediction"])
def test_dirichlet(classes, what):
    loc, variance = outputs(1000, classes, 6)
    f, head = Moments(loc, variance), Dirichlet(classes)
    y = torch.arange(1000) % classes
    values = {
        "log_marginal": lambda: [head.log_marginal(f, y)],
        "kl": lambda: [head.kl(f)],
        "misleading": lambda: [head.kl(f, y, evidence="misleading")],
        "both": lambda: head.log_marginal_and_kl(f, y),
        "prediction": lambda: [head(f).log_probabilities.gather(-1, y[:, None])],
    }[what]()
    for value in values:
        assert_finite(value, loc, variance)


def test_dirichlet_gradients_are_probabilities_of_classes():
    """d log p_y/dm_c = 1(c = y) − P(c | y) lies between −1 and 1, however far out; roundings used to make it 10⁵."""
    loc, variance = outputs(2000, 10, 6)
    value = Dirichlet(10).log_marginal(Moments(loc, variance), torch.arange(2000) % 10)
    (grad,) = torch.autograd.grad(value.sum(), [loc])
    assert grad.abs().max() < 1.1


def test_dirichlet_uncertainties():
    loc, variance = outputs(1000, 10, 6)
    p = Dirichlet(10)(Moments(loc, variance))
    for value in (p.data, p.distributional, p.model, p.entropy, *p.paper_split()):
        assert torch.isfinite(value).all()
        assert (value >= -1e-6).all()


def test_normal():
    """Up to where the density itself, of a target as far out, is still a number: distances of 1e15."""
    loc, variance = outputs(1000, 2, 15)
    head, f = Normal(1), Moments(loc, variance)
    for sign in (-1.0, 1.0):
        assert_finite(head.log_marginal(f, sign * loc.detach()[:, 0].flip(0)), loc, variance)
    assert_finite(head.kl(f), loc, variance)


def test_normal_at_the_far_end():
    """The square of the distance overflows, the distance in standard deviations does not."""
    f = Moments(torch.tensor([[0.0, 80.0]], requires_grad=True), torch.zeros(1, 2, requires_grad=True))
    value = Normal(1).log_marginal(f, torch.tensor([1e25]))
    # −½((1e25)²e⁻⁸⁰ + 80 + log 2π)
    torch.testing.assert_close(value, torch.tensor([-0.5 * (1e50 * 1.8048513878454153e-35 + 80 + 1.8378770664093453)]))
    assert_finite(value, f.loc, f.variance)
