"""Terms that ask for evidence: against torch.distributions and by hand; they add up with the others."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal as Gaussian
from torch.distributions import kl_divergence

from bedl import GaussianLinear, Moments
from bedl._utils.errors import BEDLError
from bedl.heads import Dirichlet, Normal, Sampled
from bedl.methods import BEDL, Batch
from bedl.objectives import ForwardPass, Known, Unknown, Unsure, WeightPrior
from bedl.objectives.ood_samples import around_and_beyond


class Fixed(nn.Module):
    """A network that gives the same outputs for whatever points."""

    def __init__(self, loc: torch.Tensor, variance: torch.Tensor):
        super().__init__()
        self.outputs = Moments(loc, variance)

    def forward(self, x: torch.Tensor) -> Moments:
        return self.outputs


def bhattacharyya(u: float, t: float) -> float:
    """Distance of N(0, u) and N(0, t), in the logarithm's form: −2 log of the affinity."""
    return -2 * math.log(math.sqrt(2 * math.sqrt(u * t) / (u + t)))


def test_known_is_a_distance_of_normals() -> None:
    """For classes of 1/alpha_0 from 2/N; for targets of lambda's variance from 2/N of the signal's."""
    x, y = torch.zeros(4, 1), torch.zeros(4, dtype=torch.long)
    net = Fixed(torch.full((4, 3), math.log(5.0)), torch.zeros(4, 3))
    found = Known(strength=0.5)(net, Dirichlet(3), Batch(x, y, n_train=300))
    assert found.item() == pytest.approx(0.5 * bhattacharyya(1 / 15, 2 / 300), rel=1e-5)
    loc = torch.tensor([[-1.0, -2.0, 0.0], [1.0, -2.0, 0.0]])
    net = Fixed(loc, torch.tensor([[0.3, 0.0, 0.0], [0.3, 0.0, 0.0]]))
    unknown = 0.3 + torch.exp(math.log(2) - torch.nn.functional.softplus(torch.tensor(math.log(2) + 2.0))).item()
    found = Known(strength=1.0)(net, Normal(1, noise="learned"), Batch(x[:2], x[:2], n_train=50))
    assert found.item() == pytest.approx(bhattacharyya(unknown, 2 / 50), rel=1e-5)  # the means' variance is 1


def test_known_asks_for_the_evidence_that_there_is() -> None:
    """Its gradient by the log evidence vanishes at alpha_0 = N/2, and pulls there from both sides."""
    x, y = torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)
    for log_alpha, sign in ((0.0, -1), (math.log(500 / 2 / 2), 0), (9.0, 1)):
        m = torch.full((1, 2), log_alpha, requires_grad=True)
        Known()(Fixed(m, torch.zeros(1, 2)), Dirichlet(2), Batch(x, y, n_train=500)).backward()
        assert m.grad is not None
        assert m.grad.sum().sign().item() == sign or m.grad.abs().max() < 1e-6


def test_unknown_is_the_root_of_the_divergence_from_the_prior() -> None:
    x = torch.zeros(3, 1)
    loc, variance = torch.tensor([[5.0, -1.0, 0.0]]).expand(3, 3), torch.tensor([[0.2, 0.0, 0.0]]).expand(3, 3)
    batch = Batch(x, x, 10, perturbed=x)
    head = Normal(1, noise="learned")
    u = 0.2 + torch.exp(math.log(2) - torch.nn.functional.softplus(torch.tensor(math.log(2) + 1.0)))
    truth = kl_divergence(Gaussian(0.0, u.sqrt()), Gaussian(0.0, 1.0))  # whatever the mean
    assert Unknown(0.7)(Fixed(loc, variance), head, batch).item() == pytest.approx(
        0.7 * math.sqrt(truth.item() + 1e-3), rel=1e-5
    )
    classes = Fixed(torch.zeros(3, 4), torch.zeros(3, 4))
    batch = Batch(x, torch.zeros(3, dtype=torch.long), 10, perturbed=x)
    assert Unknown(1.0)(classes, Dirichlet(4), batch).item() == pytest.approx(math.sqrt(1e-3), rel=0.1)


def test_unknown_makes_copies_of_a_share_of_the_points_which_count_as_these() -> None:
    term, head = Unknown(1.0, around_and_beyond, share=0.5), Normal(1, noise="learned")
    net = nn.Sequential(GaussianLinear(2, 4), nn.ReLU(), GaussianLinear(4, 3))
    weight = torch.tensor([1.0, 0.0, 3.0, 9.0, 9.0])
    batch = term.prepare(Batch(torch.randn(5, 2), torch.randn(5), 10, weight))
    assert batch.perturbed.shape == (3, 2)
    divergence = head.kl_centred(net(batch.perturbed))
    truth = ((divergence[0] + 3 * divergence[2]) / 4 + 1e-3).sqrt()
    torch.testing.assert_close(term(net, head, batch), truth)
    assert term.prepare(Batch(torch.randn(7, 4, 5, 2), torch.randn(7, 4, 5), 10)).perturbed.shape == (7, 4, 3, 2)
    with pytest.raises(ValueError, match="share must lie above 0"):
        Unknown(share=0.0)


def test_unsure_is_two_distances_and_vanishes_at_the_prior() -> None:
    """KL(1/C ‖ p) by torch.distributions, and of 1/alpha_0 from 1/evidence as in `Known`."""
    x, y = torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)
    batch = Batch(x, y, 10, perturbed=x)
    alpha = torch.tensor([[20.0, 0.5, 2.0, 1.0]])
    p = torch.distributions.Categorical(alpha / alpha.sum())
    truth = kl_divergence(torch.distributions.Categorical(torch.ones(1, 4)), p).item() + bhattacharyya(1 / 23.5, 1 / 2)
    found = Unsure(0.3, evidence=2.0)(Fixed(alpha.log(), torch.zeros(1, 4)), Dirichlet(4), batch).item()
    assert found == pytest.approx(0.3 * truth, rel=2e-3)
    nothing = Fixed(torch.full((1, 4), 0.25).log(), torch.zeros(1, 4))
    assert Unsure(1.0)(nothing, Dirichlet(4), batch).item() == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("log_alpha", [(8.0, -6.0, -7.0), (12.0, -30.0, -30.0), (0.0, 0.0, 0.0), (-9.0, -9.0, 3.0)])
def test_a_copy_that_is_taken_for_data_pulls_no_more_than_a_label(log_alpha: tuple[float, ...]) -> None:
    """`Unknown` does, even after its root: its divergence grows like 1/alpha."""
    x, y = torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)
    pulls = {}
    for objective in (Unsure(1.0), Unknown(1.0)):
        m = torch.tensor([log_alpha], requires_grad=True)
        objective(Fixed(m, torch.zeros(1, 3)), Dirichlet(3), Batch(x, y, 10, perturbed=x)).backward()
        assert m.grad is not None
        pulls[type(objective)] = m.grad.abs().max().item()
    assert pulls[Unsure] <= 1.51
    if log_alpha[0] == 8.0:
        assert pulls[Unknown] > 3


def test_unsure_is_for_classes_and_has_some_evidence() -> None:
    with pytest.raises(ValueError, match="evidence must be positive"):
        Unsure(evidence=0.0)
    batch = Batch(torch.zeros(2, 1), torch.zeros(2, 1), 10, perturbed=torch.zeros(2, 1))
    with pytest.raises(BEDLError, match="that is for classes"):
        Unsure()(Fixed(torch.zeros(2, 3), torch.ones(2, 3)), Normal(1, noise="learned"), batch)


def test_weight_prior_against_torch_distributions() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(GaussianLinear(3, 4), nn.ReLU(), GaussianLinear(4, 2, variances="output"))
    truth = torch.zeros(())
    for layer in (net[0], net[2]):
        std = (0.5 * layer.weight_logvar).exp().expand(layer.weight_mean.shape)
        truth = truth + kl_divergence(Gaussian(layer.weight_mean, std), Gaussian(0.0, 1.0)).sum()
    forward = ForwardPass(net, Normal(1), Batch(torch.zeros(2, 3), torch.zeros(2), n_train=40))
    assert torch.allclose(WeightPrior(2.0).statistic(forward), 2 * truth / 40, rtol=1e-5)


@pytest.mark.parametrize(
    "head, outputs", [(Normal(1, noise="learned"), 3), (Sampled(Normal(1), 4), 2), (Dirichlet(3), 3)]
)
def test_all_terms_together_have_gradients(head, outputs) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    net = nn.Sequential(GaussianLinear(2, 8), nn.ReLU(), GaussianLinear(8, outputs))
    method = BEDL(net, head, Known() + Unknown(perturbation=around_and_beyond) + WeightPrior(0.1))
    assert not method.additive
    y = torch.randint(3, (16,)) if head.task == "classification" else torch.randn(16)
    method.loss(Batch(torch.randn(16, 2), y, n_train=16)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


@pytest.mark.parametrize("columns", [1, 4])
def test_copies_reach_gaps_and_far_outside(columns: int) -> None:
    """Some of the copies lie between two clumps, and some far beyond them."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4000, columns, generator=g) * 0.1 + torch.where(torch.rand(4000, 1, generator=g) < 0.5, -1.0, 1.0)
    copies = around_and_beyond(x, g)
    first = copies[:, 0]
    assert copies.isfinite().all()
    assert 0.05 < (first.abs() < 0.5).float().mean() < 0.6
    assert (first.abs() > 6).float().mean() > 0.01
    assert (copies != x).any(1).float().mean() > 0.95


def test_copies_of_many_tables_are_each_of_its_own() -> None:
    """Tables that lie far apart: no copy mixes them, and each has the spread of its own."""
    x = torch.stack([torch.randn(500, 3), 1e6 + 10 * torch.randn(500, 3), -1e6 + 0.1 * torch.randn(500, 3)])
    copies = around_and_beyond(x, torch.Generator().manual_seed(0))
    assert copies.shape == x.shape
    inner = (copies - x.mean(1, keepdim=True)).abs().median(1).values / x.std(1)
    assert ((inner > 0.4) & (inner < 3)).all()


class Averaging(nn.BatchNorm1d):
    """Looks at the batch as a whole, so copies must not be in it."""


@pytest.mark.parametrize("front", [nn.Identity, lambda: Averaging(2)])
def test_points_and_copies_in_one_pass_or_in_two(front) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    net = nn.Sequential(front(), GaussianLinear(2, 3)).double()
    x, copies = torch.randn(2, 8, 2, dtype=torch.float64)
    batch = Batch(x, x[:, :1], 8, perturbed=copies)
    one, two = (ForwardPass(net, Normal(1), batch, copies=together) for together in (True, False))
    for name in ("outputs", "outputs_perturbed"):
        torch.testing.assert_close(getattr(one, name).loc, getattr(two, name).loc)
        torch.testing.assert_close(getattr(one, name).variance, getattr(two, name).variance)
    assert one.together == isinstance(net[0], nn.Identity)
