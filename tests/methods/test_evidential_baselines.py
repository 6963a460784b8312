"""EDL, R-EDL, prior networks and evidential regression against PyTorch, SciPy and another library."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor, nn
from torch.distributions import Dirichlet as TorchDirichlet
from torch.distributions import kl_divergence

from bedl import BEDLClassifier
from bedl.heads.predictive import StudentPredictive, mixture
from bedl.methods import Batch
from bedl.methods.baselines.evidential import (
    EDL,
    EvidentialRegression,
    NormalInverseGamma,
    PriorNetwork,
    RelaxedEDL,
    dirichlet_divergence,
)
from bedl.training import Constant, adam, fit, fit_replicas
from tests.closeness import assert_same_up_to_rounding


def points(n: int = 40, classes: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=g), torch.randint(classes, (n,), generator=g)


def batch_of(epoch: float | None, classes: int = 3) -> Batch:
    x, y = points(classes=classes)
    return Batch(x, y, len(x), epoch=None if epoch is None else torch.tensor(epoch))


# -- EDL ----------------------------------------------------------------------------------------------
def test_edl_is_that_of_another_library() -> None:
    theirs = pytest.importorskip("edl_pytorch")
    net = nn.Linear(4, 3)
    method, batch = EDL(net, 3, evidence="softplus"), batch_of(epoch=4.0)
    alpha = nn.functional.softplus(net(batch.x)) + 1
    truth = theirs.evidential_classification(alpha, batch.y, lamb=0.4)  # four of ten epochs
    torch.testing.assert_close(method.loss(batch), truth, rtol=1e-4, atol=1e-5)
    assert method.loss(batch._replace(epoch=None)) > method.loss(batch) > method.loss(batch_of(epoch=0.0))


def test_edl_losses_are_expectations_over_the_dirichlet() -> None:
    net, batch = nn.Linear(4, 3), batch_of(epoch=0.0)
    with torch.no_grad():
        alpha = EDL(net, 3).alpha(batch.x).double()
    draws = TorchDirichlet(alpha).sample((20_000,))
    y = nn.functional.one_hot(batch.y, 3)
    truths = {"squared": (y - draws).square().sum(-1), "digamma": -(y * draws.log()).sum(-1)}
    for loss, values in truths.items():
        ours = EDL(net, 3, loss=loss).loss(batch).detach()  # type: ignore[arg-type]
        means = values.mean(1)
        assert abs(float(ours) - float(means.mean())) < 5 * float(means.std()) / len(means) ** 0.5 + 1e-5
    marginal = -(y * draws).sum(-1).mean(0).log()
    assert EDL(net, 3, loss="log").loss(batch).item() == pytest.approx(float(marginal.mean()), abs=5e-3)


def test_weights_of_dense_layers_decay_as_those_of_an_optimiser() -> None:
    """A step of SGD with `weight_decay` on the linear layers; the convolution does not decay."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, 3))
    theirs, batch = copy.deepcopy(net), batch_of(epoch=4.0)
    for method, decay in ((EDL(net, 3, evidence="relu", decay=0.005), 0.0), (EDL(theirs, 3, evidence="relu"), 0.005)):
        groups = [
            {"params": [p], "weight_decay": decay if name == "4.weight" else 0.0}
            for name, p in method.net.named_parameters()
        ]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        method.loss(batch).backward()
        optimizer.step()
    for ours, other in zip(net.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours, other)
    with pytest.raises(ValueError, match="decay must be at least 0"):
        EDL(net, 3, decay=-1.0)


def test_parts_of_edl_are_the_dirichlets() -> None:
    x, _ = points(5)
    method = EDL(nn.Linear(4, 3), 3, evidence="exp")
    with torch.no_grad():
        alpha, p = method.alpha(x).double(), method.predict(x)
    draws = TorchDirichlet(alpha).sample((20_000,))
    entropies = -(draws * draws.clamp_min(1e-300).log()).sum(-1)
    assert bool(((p.data - entropies.mean(0)).abs() < 5 * entropies.std(0) / 140 + 1e-6).all())
    torch.testing.assert_close(p.probabilities.double(), alpha / alpha.sum(-1, keepdim=True), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(p.vacuity.double(), 3 / alpha.sum(-1), rtol=1e-5, atol=1e-6)
    assert float(p.model.max()) < 1e-6


def test_divergence_of_dirichlets() -> None:
    a, b = (torch.rand(20, 4, dtype=torch.float64) * 9 + 0.1 for _ in range(2))
    torch.testing.assert_close(dirichlet_divergence(a, b), kl_divergence(TorchDirichlet(a), TorchDirichlet(b)))


def test_evidence_without_a_gradient() -> None:
    """The trap of relu: points whose outputs are all negative do not learn; with softplus they do."""
    for evidence, learns in (("relu", False), ("softplus", True)):
        net = nn.Linear(4, 3)
        nn.init.zeros_(net.weight)
        nn.init.constant_(net.bias, -1.0)
        EDL(net, 3, evidence=evidence).loss(batch_of(None)).backward()  # type: ignore[arg-type]
        assert (float(net.bias.grad.abs().sum()) > 0) is learns  # type: ignore[union-attr]


def test_the_ramp_is_the_same_alone_and_side_by_side() -> None:
    x, y = points()

    def fresh(seed: int) -> EDL:
        torch.manual_seed(seed)
        return EDL(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), 3, ramp=3.0)

    alone = fresh(1)
    fit(alone, (x, y), epochs=4, batch_size=16, optimizer=adam(0.01), schedule=Constant(), seed=1, compile=False)
    together = [fresh(0), fresh(1)]
    fit_replicas(together, (x, y), epochs=4, batch_size=16, lr=0.01, schedule=Constant(), seeds=[0, 1])
    for ours, theirs in zip(alone.parameters(), together[1].parameters(), strict=True):
        assert_same_up_to_rounding(ours, theirs, ulps=1e4)


# -- R-EDL --------------------------------------------------------------------------------------------
def test_relaxed_edl_by_hand() -> None:
    net, batch = nn.Linear(4, 3), batch_of(epoch=5.0)
    with torch.no_grad():
        evidence = nn.functional.softplus(net(batch.x))
    y = nn.functional.one_hot(batch.y, 3)
    p = (evidence + 0.1) / (evidence.sum(-1, keepdim=True) + 0.3)
    wrong = kl_divergence(TorchDirichlet(evidence * (1 - y) + 0.1), TorchDirichlet(torch.full_like(p, 0.1)))
    truth = ((y - p).square().sum(-1) + 0.5 * wrong).mean()
    torch.testing.assert_close(RelaxedEDL(net, 3, kl=1.0).loss(batch), truth, rtol=1e-4, atol=1e-5)


# -- prior networks -----------------------------------------------------------------------------------
@pytest.mark.parametrize("kl", ["reverse", "forward"])
def test_prior_network_by_hand(kl: str) -> None:
    net, batch = nn.Linear(4, 3), batch_of(None)
    batch = batch._replace(perturbed=batch.x + 3)
    with torch.no_grad():
        inside, outside = (TorchDirichlet(net(x).double().exp() + 1e-4) for x in (batch.x, batch.perturbed))
    sharp = TorchDirichlet(1 + 100.0 * nn.functional.one_hot(batch.y, 3).double())
    flat = TorchDirichlet(torch.ones(len(batch.x), 3, dtype=torch.float64))
    pairs = [(inside, sharp), (outside, flat)]
    truth = sum(kl_divergence(*(pair if kl == "reverse" else pair[::-1])).mean() for pair in pairs) / 100
    ours = PriorNetwork(net, 3, kl=kl).statistics(batch).sum().item()  # type: ignore[arg-type]
    assert ours == pytest.approx(float(truth), rel=1e-4)


def test_a_set_of_ones_own_says_what_is_outside() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int)
    outside = (X[:, ::-1] + [0.0, 12.0]).astype(np.float32)
    model = BEDLClassifier(
        method="prior-network", method_options={"outside": outside}, epochs=30, learning_rate=0.03, device="cpu",
        early_stopping=False, random_state=0,
    ).fit(X, y)  # fmt: skip
    unsure, sure = (np.median(model.predict_dist(rows).vacuity) for rows in (outside, X))
    assert unsure > 0.5 > 0.1 > sure
    assert model.score(X, y) > 0.9


# -- evidential regression ----------------------------------------------------------------------------
def nig() -> NormalInverseGamma:
    return NormalInverseGamma(*(torch.tensor([[v]], dtype=torch.float64) for v in (0.3, 2.0, 1.7, 0.8)))


def test_evidential_regression_is_that_of_another_library() -> None:
    theirs = pytest.importorskip("edl_pytorch")
    net, (x, _), y = nn.Linear(4, 4), points(), torch.randn(40, 1)
    method = EvidentialRegression(net, strength=0.3)
    truth = theirs.evidential_regression(tuple(method.evidence(x)), y, lamb=0.3)
    torch.testing.assert_close(method.loss(Batch(x, y[:, 0], 40)), truth, rtol=1e-4, atol=1e-5)


def test_the_marginal_of_a_normal_inverse_gamma_is_a_t() -> None:
    gamma, nu, alpha, beta = (float(part) for part in nig())
    t = stats.t(2 * alpha, gamma, np.sqrt(beta * (1 + nu) / (nu * alpha)))
    for y in (-2.0, 0.3, 4.0):
        ours = nig().log_prob(torch.tensor([[y]], dtype=torch.float64)).item()
        assert ours == pytest.approx(t.logpdf(y), rel=1e-9)

        def given(s2: float, y: float = y) -> float:  # mu integrated out by hand
            return stats.norm.pdf(y, gamma, np.sqrt(s2 * (1 + 1 / nu))) * stats.invgamma.pdf(s2, alpha, scale=beta)

        assert np.exp(ours) == pytest.approx(integrate.quad(given, 0, np.inf, limit=200)[0], rel=1e-6)


@pytest.mark.parametrize("df", [2.1, 3.0, 8.0, 200.0])
def test_student_against_scipy(df: float) -> None:
    parts = (1.0, 0.5, 1.5, 0.25, df)
    p = StudentPredictive(*(torch.full((1, 1), part, dtype=torch.float64) for part in parts))
    scale = np.sqrt(2.25 * (df - 2) / df)
    t = stats.t(df, 1.0, scale)
    y = torch.tensor([-3.0, 0.0, 1.0, 2.5, 9.0], dtype=torch.float64)[:, None, None]
    np.testing.assert_allclose(p.log_prob(y).numpy()[:, 0], t.logpdf(y.numpy())[:, 0, 0], rtol=1e-9)
    np.testing.assert_allclose(p.cdf(y).numpy(), t.cdf(y.numpy()), atol=1e-6)
    q = torch.tensor([0.01, 0.05, 0.5, 0.9, 0.995], dtype=torch.float64)
    np.testing.assert_allclose(p.quantile(q).numpy()[:, 0, 0], t.ppf(q.numpy()), rtol=1e-3, atol=1e-5)
    assert p.entropy.item() == pytest.approx(t.entropy(), rel=1e-6)
    draws = p.sample(20_000, torch.Generator().manual_seed(0)).numpy().ravel()
    assert stats.kstest(draws, t.cdf).pvalue > 1e-3
    twice = p.rescale(10.0, 2.0)
    assert (twice.mean.item(), twice.total.item()) == (12.0, pytest.approx(9.0))
    assert mixture([p, p]).total.item() == pytest.approx(2.25)
