"""Values of objectives against hand computation, scipy's densities and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import bedl
from bedl import GaussianLinear
from bedl.heads import Dirichlet, Normal
from bedl.moments import Moments
from bedl.objectives import PAC, Batch, HyperPrior, MarginalLikelihood, Sum, VacuousBound


class Given(nn.Module):
    """A network whose outputs are known: the mean is the input, the variance fixed."""

    def __init__(self, variance: Tensor | float):
        super().__init__()
        self.variance = variance

    def forward(self, x: Tensor) -> Moments:
        return Moments(x, self.variance)


def regression(n_train: int = 100) -> tuple[nn.Module, Normal, Batch]:
    """Two points with (f1, f2) known: y ~ N(m1, 1/beta + v1 + exp(m2 + v2/2))."""
    x = torch.tensor([[0.5, -1.0], [-2.0, 0.3]], dtype=torch.float64)
    variance = torch.tensor([[0.2, 0.1], [0.4, 0.6]], dtype=torch.float64)
    y = torch.tensor([1.0, -1.0], dtype=torch.float64)
    return Given(variance), Normal(1, beta=4.0).double(), Batch(x, y, n_train)


SPREADS = (0.2 + math.exp(-1.0 + 0.05), 0.4 + math.exp(0.3 + 0.3))  # v1 + exp(m2 + v2/2)


def mean_kl() -> float:
    """KL(N(m1, s²) ‖ N(0, 1)) of the two points, from the textbook."""
    kls = [0.5 * (s2 + m * m - 1 - math.log(s2)) for m, s2 in zip((0.5, -2.0), SPREADS, strict=True)]
    return sum(kls) / 2


def test_marginal_likelihood_by_scipy() -> None:
    net, head, batch = regression()
    expected = [
        -stats.norm(m, math.sqrt(0.25 + s2)).logpdf(y)
        for m, s2, y in zip((0.5, -2.0), SPREADS, (1.0, -1.0), strict=True)
    ]
    assert float(MarginalLikelihood()(net, head, batch)) == pytest.approx(sum(expected) / 2, rel=1e-9)


@pytest.mark.parametrize("n_train, delta, strength", [(2, 0.05, 1.0), (100, 0.5, 1.0), (10_000, 0.05, 0.3)])
def test_pac_is_the_papers_formula(n_train: int, delta: float, strength: float) -> None:
    net, head, batch = regression(n_train)
    expected = strength * math.sqrt(mean_kl() - math.log(delta) / n_train + 4.0 / (2 * math.pi))
    assert float(PAC(delta, strength=strength)(net, head, batch)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("n_train", [2, 100, 10_000])
def test_pac_of_the_authors_code(n_train: int) -> None:
    net, head, batch = regression(n_train)
    expected = math.sqrt((mean_kl() + math.log(n_train) - math.log(0.05)) / n_train)
    assert float(PAC(kl_scale="authors-code")(net, head, batch)) == pytest.approx(expected, rel=1e-6)


def test_pac_takes_one_root_of_the_mean() -> None:
    net, head, batch = regression()
    together = float(PAC()(net, head, batch))
    alone = []
    for i in range(2):
        point = batch._replace(x=batch.x[i : i + 1], y=batch.y[i : i + 1])
        alone.append(float(PAC()(Given(net.variance[i : i + 1]), head, point)))
    assert together == pytest.approx(math.sqrt((alone[0] ** 2 + alone[1] ** 2) / 2), rel=1e-9)
    assert abs(together - sum(alone) / 2) > 1e-3


def test_pac_classification_by_torch_distributions() -> None:
    """With certain outputs the expected divergence is the divergence; the head adds a floor of 1e-3 to the evidence."""
    f = torch.tensor([[1.0, 0.0, -1.0], [2.0, 2.0, 0.5]], dtype=torch.float64)
    y = torch.tensor([0, 2])
    batch = Batch(f, y, n_train=50)
    prior = torch.distributions.Dirichlet(torch.ones(3, dtype=torch.float64))

    def root(alpha: Tensor) -> float:
        kl = torch.distributions.kl_divergence(torch.distributions.Dirichlet(alpha), prior).mean()
        return float((kl + 1 - math.log(0.05) / 50).sqrt())

    net, head = Given(0.0), Dirichlet(3)
    assert float(PAC()(net, head, batch)) == pytest.approx(root(f.exp() + 1e-3), rel=1e-3)
    misleading = f.exp().scatter(1, y[:, None], 1.0) + 1e-3
    assert float(PAC(evidence="misleading")(net, head, batch)) == pytest.approx(root(misleading), rel=1e-3)


def small_net(outputs: int, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            GaussianLinear(3, 6, init_logvar=-3), nn.ReLU(), GaussianLinear(6, outputs, init_logvar=-3)
        ).double()


HEADS = {
    "normal": (Normal(1).double(), torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64)),
    "learned beta": (Normal(1, beta=2.0, learn_beta=True).double(), torch.tensor([0.3, -1.0, 2.0, 0.0]).double()),
    "dirichlet": (Dirichlet(3), torch.tensor([0, 1, 2, 1])),
}
SETTINGS = {
    "paper": PAC(),
    "authors-code": PAC(kl_scale="authors-code"),
    "misleading": PAC(evidence="misleading"),
    "perturbed": PAC(on="perturbed"),
    "hyper": HyperPrior(2.0, 0.1, 0.5),
    "all": MarginalLikelihood() + PAC(strength=0.5) + HyperPrior(),
}


@pytest.mark.parametrize(
    "kind, setting", [(k, s) for k in HEADS for s in SETTINGS if k == "dirichlet" or s != "misleading"]
)
def test_gradients_by_finite_differences(kind: str, setting: str) -> None:
    head, y = HEADS[kind]
    net, objective = small_net(head.n_outputs), SETTINGS[setting]
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    objective = Sum(objective)
    batch = objective.prepare(Batch(x, y, n_train=40), torch.Generator().manual_seed(2))
    parameters = [*net.parameters(), *head.parameters()]
    gradients = torch.autograd.grad(objective(net, head, batch), parameters, allow_unused=True)
    # the race differentiates its exact integral, not its quadrature: they agree to the quadrature's error
    tolerance = 2e-3 if kind == "dirichlet" else 1e-6
    directions = torch.Generator().manual_seed(3)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        direction = torch.randn(parameter.shape, generator=directions, dtype=torch.float64)
        step = 1e-4 if kind == "dirichlet" else 1e-5
        with torch.no_grad():
            parameter += step * direction
            above = objective(net, head, batch)
            parameter -= 2 * step * direction
            below = objective(net, head, batch)
            parameter += step * direction
        slope = float(above - below) / (2 * step)
        found = 0.0 if gradient is None else float((gradient * direction).sum())
        assert found == pytest.approx(slope, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("a0, b0, alpha0", [(1.0, 0.01, 1.0), (3.5, 0.2, 0.1)])
def test_hyperprior_by_scipy(a0: float, b0: float, alpha0: float) -> None:
    net = small_net(2)
    expected = 0.0
    for layer in (net[0], net[2]):
        mu, variance = layer.weight_mean.detach().numpy(), layer.weight_logvar.detach().exp().numpy()
        expected += stats.norm(0, alpha0**-0.5).logpdf(mu).sum() + stats.invgamma(a0, scale=b0).logpdf(variance).sum()
    prior = HyperPrior(a0, b0, alpha0)
    assert prior.log_density(net).item() == pytest.approx(expected, rel=1e-6)
    batch = Batch(torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2), n_train=77)
    assert prior(net, Normal(1), batch).item() == pytest.approx(-expected / 77, rel=1e-6)


def test_hyperprior_is_a_density_of_the_variance() -> None:
    """By itself it pulls sigma² to b0/(a0 + 1), the mode of the density in sigma², and means to 0."""
    torch.manual_seed(0)
    net, prior = GaussianLinear(2, 2, dtype=torch.float64), HyperPrior(3.0, 0.4, 1.0)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -prior.log_density(net)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert torch.allclose(net.weight_logvar.exp(), torch.full((2, 2), 0.1, dtype=torch.float64), atol=1e-4)
    assert torch.allclose(net.weight_mean, torch.zeros(2, 2, dtype=torch.float64), atol=1e-4)


def test_hyperprior_counts_a_shared_weight_once() -> None:
    plain = nn.Linear(3, 3)
    tied = bedl.bayesianize(nn.Sequential(plain, nn.ReLU(), plain))
    alone = bedl.bayesianize(plain)
    with torch.no_grad():
        alone.weight_logvar.copy_(tied[0].weight_logvar)
    assert HyperPrior().log_density(tied).item() == pytest.approx(HyperPrior().log_density(alone).item(), rel=1e-6)


def test_hyperprior_needs_gaussian_weights() -> None:
    with pytest.raises(bedl.BEDLError, match="bayesianize"):
        HyperPrior().log_density(nn.Linear(2, 2))


def test_weights_of_points_count_and_padding_does_not() -> None:
    net, head, batch = regression()
    objective = MarginalLikelihood() + PAC()
    once = objective(net, head, batch)
    padded = Batch(
        torch.cat([batch.x, torch.full((1, 2), 1e30, dtype=torch.float64)]),
        torch.cat([batch.y, torch.zeros(1)]),
        batch.n_train,
        weight=torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64),
    )
    net.variance = torch.cat([net.variance, torch.ones(1, 2, dtype=torch.float64)])
    assert float(objective(net, head, padded)) == pytest.approx(float(once), rel=1e-12)


def test_bound_is_labelled_vacuous() -> None:
    net, head, batch = regression(n_train=2)
    bound = PAC().bound(net, head, batch)
    densities = [
        stats.norm(m, math.sqrt(0.25 + s2)).pdf(y) for m, s2, y in zip((0.5, -2.0), SPREADS, (1.0, -1.0), strict=True)
    ]
    assert isinstance(bound, VacuousBound)
    assert bound.risk == pytest.approx(-sum(densities) / 2, rel=1e-6)
    assert bound.value == pytest.approx(bound.risk + float(PAC()(net, head, batch)), rel=1e-6)
    assert bound.objective == pytest.approx(float((MarginalLikelihood() + PAC())(net, head, batch)), rel=1e-6)
    assert bound.vacuous
    assert "vacuous" in str(bound)
    with pytest.raises(ValueError, match="all 100"):
        PAC().bound(net, head, batch._replace(n_train=100))
    with pytest.raises(ValueError, match="regulariser"):
        PAC(strength=0.5).bound(net, head, batch)


def test_objectives_add_up() -> None:
    net, head, batch = regression()
    parts = [MarginalLikelihood(), PAC(), PAC(delta=0.5, strength=2.0)]
    total = parts[0] + parts[1] + parts[2]
    assert float(total(net, head, batch)) == pytest.approx(
        sum(float(part(net, head, batch)) for part in parts), rel=1e-9
    )
    assert not total.additive
    assert (MarginalLikelihood() + HyperPrior()).additive
    with pytest.raises(TypeError, match="objectives"):
        MarginalLikelihood() + 1.0  # type: ignore[operator]


@pytest.mark.parametrize(
    "wrong",
    [{"delta": 0.0}, {"delta": 1.5}, {"kl_scale": "mean"}, {"evidence": "none"}, {"on": "test"}, {"strength": -1.0},
     {"on": "perturbed", "evidence": "misleading"}],
)  # fmt: skip
def test_wrong_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="PAC"):
        PAC(**wrong)


def test_inputs_may_be_random() -> None:
    """Perturbed copies of noisy points are as noisy; a noisier input leaves the net less sure."""
    net, head = small_net(2), Normal(1).double()
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    objective = Sum(PAC(on="perturbed"))
    batch = objective.prepare(Batch(Moments(x, 0.3), x[:, 0], 6), torch.Generator().manual_seed(0))
    assert isinstance(batch.perturbed, Moments)
    assert torch.equal(batch.perturbed.variance, batch.x.variance)
    assert bool(objective(net, head, batch).isfinite())
